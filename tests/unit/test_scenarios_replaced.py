"""Scenarios G25 to G30 in memory: a promotion that gives a shard another key, type or order replaces it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.memory.control import MemoryControl
from tests.support.memory.fold import fold, visible
from tests.support.memory.generations import SHARDS, GenerationWorld, settings, shapes_in
from tests.support.memory.ledger import Crash, Fault
from tests.support.memory.parts import MemoryParts
from tests.support.memory.state import MemoryStatePlane
from tests.support.memory.versions import MemoryStates
from tests.support.memory.world import A, B, Script, rec
from tidemark.core.binding import Configuration
from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.generation import Superseded
from tidemark.core.ids import ShardId, Txn
from tidemark.core.lease import SINCE, HolderToken
from tidemark.core.ledger import Put
from tidemark.core.log import BeforeReplacement
from tidemark.core.publish import Published
from tidemark.core.reading import ShardReplaced, lease_name
from tidemark.core.replay import Verdict
from tidemark.core.seal import Decision
from tidemark.core.shape import Misfit
from tidemark.pipeline.consume import Reading, ShardReader
from tidemark.pipeline.context import settle
from tidemark.pipeline.leases import Leases, take_hold
from tidemark.pipeline.promotion import NotReady
from tidemark.pipeline.publish import publish, rebuild, verify_state
from tidemark.pipeline.recover import recover
from tidemark.pipeline.repair import repair
from tidemark.pipeline.replay import PROMOTION_DIFFERS
from tidemark.pipeline.run import finish, replay
from tidemark.pipeline.schema_change import Fit, fit_of
from tidemark.pipeline.upsert import bring_up_log

OLD = {"half": False, "text": False, "ordered": False}
KEY: dict[str, Any] = {**OLD, "half": True}
TYPE: dict[str, Any] = {**OLD, "text": True}
ORDER: dict[str, Any] = {**OLD, "ordered": True}
IDENTICAL, NOT_COMPARABLE = Verdict.IDENTICAL, Verdict.NOT_COMPARABLE


def three() -> GenerationWorld:
    """A world with three transactions; the second touches b as well. By the order of `s`, k is 1."""
    world = GenerationWorld(**OLD)
    world.commit(rec("k", 1, sequence=9), rec("gone", 1, sequence=1))
    world.commit(rec("k", 2, sequence=3), rec("l", 3, table="b", sequence=1), rec("late", None, sequence=7))
    world.commit(rec("m", 4, sequence=1), rec("gone", None, sequence=5))
    return world


def swap(world: GenerationWorld, rules: dict[str, Any], generation: int = 1, **known: Any) -> Configuration:
    """Promote rules that replace both shards; returns the configuration."""
    configuration = settings(generation, **rules)
    world.replaced(configuration, replaces=SHARDS, **known)
    return configuration


def sealed_only(world: GenerationWorld) -> None:
    """The promotion is sealed, and its process has died before the logs have it."""
    candidate = world.start(settings(1, **KEY), replaces=SHARDS)
    world.follow(candidate)
    with pytest.raises(Crash):
        world.promote(candidate, Script().fault("seals.commit", Fault.CRASH_AFTER))
    assert (world.generation, world.log_txns()) == (1, [1, 2, 3])


def wanted(world: GenerationWorld, configuration: Configuration, shard: ShardId = A) -> dict[object, object]:
    """The rows that a configuration makes of all that is bound: by sequence where it has an order."""
    rows: dict[object, tuple[Any, object]] = {}
    from tests.support.memory.generations import decoded

    for binding in world.bindings:
        for _, record in world.source.records(binding):
            found = decoded(configuration, record)
            if found is None or found.table != shard:
                continue
            order = found.sequence if found.sequence is not None else -1
            if found.key not in rows or rows[found.key][0] <= order:
                rows[found.key] = (order, found.value)
    return {key: value for key, (_, value) in rows.items() if value is not None}


def require_right(world: GenerationWorld, configuration: Configuration) -> None:
    for shard in SHARDS:
        assert world.state(shard) == wanted(world, configuration, shard), shard
    assert [one.txn for one in world.seals] == list(range(1, len(world.seals) + 1))


class Target:
    """A consumer's table: it merges changes, and is made anew by a snapshot."""

    def __init__(self, world: GenerationWorld, name: str = "copy") -> None:
        self.world, self.name = world, name
        self.rows: dict[object, object] = {}
        self.txns: list[int] = []

    @contextmanager
    def reader(self, accept: int = 0) -> Iterator[ShardReader]:
        control = MemoryControl(self.world.warehouse)
        token = self.world.attempt().token
        leases = Leases(MemoryControl(self.world.warehouse).leases)
        hold = take_hold(leases, lease_name(self.name, A), HolderToken(token), wait_seconds=0)
        if accept:
            hold.accept(Txn(accept))
        world = self.world
        pipeline = world.made(world.warehouse, world.files, world.opened().configuration, None)
        reading = Reading(self.name, A, token)
        try:
            yield ShardReader(pipeline, MemoryParts(control, self.world.files), hold, reading, name="p")
        finally:
            hold.release()

    def listen(self, accept: int = 0, *, batches: int = 100) -> None:
        with self.reader(accept) as reader:
            while batches and (given := reader.next_range()) is not None:
                batches -= 1
                rows = [row for part in given.parts for row in self.world.files[part.path]]
                for key, row in fold(rows).items():
                    self.rows.pop(key, None)
                    self.rows.update({key: row.value} if row.value is not None else {})
                self.txns.append(given.txn)
                reader.delivered(given)

    def snapshot(self, accept: int = 0, as_of: int | None = None) -> int:
        with self.reader(accept) as reader:
            given = reader.plan_snapshot(None if as_of is None else Txn(as_of))
            rows = [row for row in self.world.rows(A) if row.txn <= given.txn]
            self.rows = dict(visible(fold(rows)))
            reader.delivered(given)
            return given.txn


def states(world: GenerationWorld) -> MemoryStatePlane:
    if not hasattr(world, "planes"):
        world.planes = MemoryStatePlane(world.warehouse, world.files, MemoryStates())  # type: ignore[attr-defined]
    return world.planes  # type: ignore[attr-defined, no-any-return]


def published(world: GenerationWorld, shard: ShardId = A) -> object:
    pipeline = world.opened()
    return publish(
        pipeline.control, states(world), shard, token=world.attempt().token, generation=pipeline.generation
    )


# G25


@pytest.mark.parametrize("rules", [KEY, TYPE, ORDER, {**KEY, **TYPE, **ORDER, "half": True, "text": True}])
def test_g25_the_log_begins_anew_with_the_whole_new_state_under_the_new_shape(rules: dict[str, Any]) -> None:
    world = three()
    candidate = world.start(settings(1, **rules), replaces=SHARDS)
    world.follow(candidate)
    world.commit(rec("kk", 6, sequence=2))
    before = world.log()
    done = world.promote(candidate)
    assert done.txn == 5
    assert world.log_txns() == [5], "no row of before is beside the new ones"
    assert world.log() != before
    assert world.warehouse.shapes[A] == shapes_in(candidate.configuration)[A]
    assert set(world.seals[-1].replaced) == set(SHARDS)
    require_right(world, candidate.configuration)
    assert fit_of(world.opened()) == Fit(), "every shard is still in the file"
    world.commit(rec("k", 7, sequence=10), rec("n", 1, sequence=1))
    assert world.log_txns() == [5, 6]
    require_right(world, candidate.configuration)


def test_g25_a_shard_without_rows_in_the_new_generation_is_replaced_by_nothing() -> None:
    world = three()
    rules = {**KEY, "without": ["k", "gone", "late", "m"]}
    new = swap(world, rules)
    assert (world.rows(A), world.state(A)) == ([], {})
    assert world.warehouse.shapes[A] == shapes_in(new)[A]
    world.commit(rec("n", 1))
    assert [row.txn for row in world.rows(A)] == [5]
    found = replay(world.opened(), world.attempt(), txn_from=Txn(4), txn_to=Txn(4))
    assert [one.verdict for one in found] == [IDENTICAL]
    require_right(world, new)


def test_g25_one_shard_is_replaced_and_another_corrected() -> None:
    world = GenerationWorld(**OLD)
    world.commit(rec("k", 1), rec("l", 3, table="b"))
    world.commit(rec("lm", 2, table="b"))
    new = settings(1, **{**KEY, "of": ["b"]})
    world.replaced(new, replaces=(B,))
    assert world.log_txns(A) == [1]
    assert world.log_txns(B) == [3]
    assert set(world.seals[-1].replaced) == {B}
    require_right(world, new)


def test_g25_with_an_order_a_late_record_stays_beaten_by_a_tombstone_of_before() -> None:
    world = three()
    new = swap(world, ORDER)
    world.commit(rec("gone", 8, sequence=4), rec("late", 8, sequence=6), rec("k", 8, sequence=8))
    assert ("gone",) not in world.state()
    assert ("late",) not in world.state()
    assert world.state()["k",] == 1
    require_right(world, new)
    world.commit(rec("gone", 9, sequence=6))
    assert world.state()["gone",] == 9


# G26


@pytest.mark.parametrize("replaces", [(), (B,)])
def test_g26_nothing_is_replaced_that_nobody_has_agreed_to(replaces: tuple[ShardId, ...]) -> None:
    world = three()
    candidate = world.start(settings(1, **KEY), replaces=replaces)
    world.follow(candidate)
    with pytest.raises(NotReady, match="shard a: keys is recorded as"):
        world.promote(candidate)
    assert len(world.bindings) == 3, "nothing was bound, so no run has to wait"
    require_right(world, world.first)


def test_g26_a_file_of_the_same_generation_is_refused_as_before() -> None:
    world = three()
    world.feed(rec("k", 5))
    with pytest.raises(Misfit, match="shard a: keys is recorded as"):
        world.run(pipeline=world.made(world.warehouse, world.files, settings(0, **KEY), None))
    assert world.log_txns() == [1, 2, 3]


def test_g26_from_now_on_replaces_nothing() -> None:
    world = three()
    with pytest.raises(NotReady):
        swap(world, KEY, from_now=True)
    require_right(world, world.first)


# G27


def test_g27_a_consumer_stops_until_it_agrees_and_then_has_the_new_state() -> None:
    world = three()
    target = Target(world)
    target.listen(batches=1)
    had = dict(target.rows)
    new = swap(world, KEY)
    with target.reader() as reader:
        assert not reader.needs_snapshot, "it has not agreed"
    world.commit(rec("p", 8), rec("k", 9))
    for _ in range(2):
        with pytest.raises(ShardReplaced, match="transaction 4 replaced shard 'a'") as told:
            target.listen()
        assert (told.value.txn, told.value.accepted) == (4, False)
        assert "consumers accept p a copy 4" in str(told.value)
    with pytest.raises(ShardReplaced):
        target.snapshot()
    assert target.rows == had, "it has not had a row of the other key"
    with pytest.raises(ShardReplaced) as told:
        target.listen(accept=4)
    assert told.value.accepted
    assert "snapshot()" in str(told.value)
    with pytest.raises(BeforeReplacement):
        target.snapshot(as_of=3)
    with target.reader() as reader:
        assert reader.needs_snapshot
    assert target.snapshot() == 5, "the agreement is on record"
    with target.reader() as reader:
        assert not reader.needs_snapshot
    assert target.rows == world.state() == wanted(world, new)
    world.commit(rec("q", 1), rec("k", None))
    target.listen()
    assert target.rows == world.state() == wanted(world, new)


def test_g27_a_consumer_that_has_all_of_before_stops_too() -> None:
    world = three()
    target = Target(world)
    target.listen()
    swap(world, TYPE)
    with pytest.raises(ShardReplaced):
        target.listen()
    assert target.snapshot(accept=4) == 4
    assert target.rows == world.state()


def test_g27_an_agreement_to_one_replacement_is_none_to_the_next() -> None:
    world = three()
    target = Target(world)
    target.listen()
    swap(world, KEY)
    target.snapshot(accept=4)
    swap(world, OLD, generation=2)
    with pytest.raises(ShardReplaced, match="transaction 5 replaced"):
        target.snapshot(accept=4)
    assert target.snapshot(accept=5) == 5
    assert target.rows == world.state() == wanted(world, world.first)


def test_g27_a_batch_that_was_handed_out_before_is_part_of_the_snapshot() -> None:
    world = three()
    target = Target(world)
    with target.reader() as reader:
        assert reader.next_range() is not None, "and it dies with it"
    swap(world, KEY)
    world.commit(rec("p", 8))
    with pytest.raises(ShardReplaced):
        target.snapshot()
    with target.reader(accept=4) as reader:
        assert reader.plan_snapshot(None).txn == 5, "and it dies with this one"
    world.commit(rec("q", 8))
    assert target.snapshot() == 5, "what was handed out is handed out again"
    target.listen()
    assert target.rows == world.state()


def test_g27_a_new_consumer_needs_a_snapshot_and_no_agreement() -> None:
    world = three()
    new = swap(world, KEY)
    target = Target(world)
    with pytest.raises(ShardReplaced) as told:
        target.listen()
    assert told.value.accepted
    assert target.snapshot() == 4
    assert target.rows == wanted(world, new)


def test_g27_a_shard_that_is_replaced_while_it_is_listed_is_not_read() -> None:
    world = three()
    target = Target(world)
    with target.reader() as reader:
        listed = reader._files.listed
        reader._files.listed = lambda *a, **k: (swap(world, KEY), listed(*a, **k))[1]  # type: ignore[method-assign]
        with pytest.raises(ShardReplaced):
            reader.next_range()


def test_g27_an_agreement_is_kept_while_the_consumer_renews() -> None:
    world = three()
    target = Target(world)
    target.listen()
    swap(world, KEY)
    with target.reader() as reader:
        Leases(MemoryControl(world.warehouse).leases).accept(lease_name("copy", A), Txn(4))
        reader._hold.plan(Txn(4))
        with pytest.raises(ShardReplaced) as told:
            reader.next_range()
        assert told.value.accepted


# G28


@pytest.mark.parametrize("rules", [KEY, TYPE, ORDER])
def test_g28_a_state_is_made_of_the_new_log_alone(rules: dict[str, Any]) -> None:
    world = three()
    assert isinstance(published(world), Published)
    old = world.opened()
    new = swap(world, rules)
    with pytest.raises(Determinate, match="transaction 4 replaced the shard"):
        verify_state(world.opened().control, states(world), A)
    with pytest.raises(Superseded):
        publish(old.control, states(world), A, token=world.attempt().token, generation=0)
    world.commit(rec("p", 8, sequence=1))
    done = published(world)
    assert isinstance(done, Published)
    assert done.txn == 5
    assert states(world)._states.values(A) == world.state() == wanted(world, new)
    assert verify_state(world.opened().control, states(world), A) == done
    world.commit(rec("k", 8, sequence=20))
    published(world)
    assert states(world)._states.values(A) == world.state() == wanted(world, new)


def test_g28_a_publisher_that_slept_through_it_publishes_nothing_of_it() -> None:
    world = three()
    published(world)
    world.commit(rec("p", 8))
    plane = states(world)
    real = plane.publish

    def slept(*known: Any, **more: Any) -> Any:
        swap(world, KEY)
        plane.publish = real  # type: ignore[method-assign]
        published(world)
        return real(*known, **more)

    plane.publish = slept  # type: ignore[method-assign]
    old = world.opened()
    with pytest.raises(Superseded):
        publish(old.control, plane, A, token=world.attempt().token, generation=0)
    assert states(world)._states.values(A) == world.state()


def test_g28_a_rebuild_begins_with_the_replacement() -> None:
    world = three()
    published(world)
    new = swap(world, KEY)
    world.commit(rec("p", 8))
    control = world.opened().control
    first = control.publishes(A)
    first.head()
    (old,) = first.read(1, 2)
    with pytest.raises(BeforeReplacement, match="transaction 4 replaced it"):
        rebuild(control, states(world), A, token=world.attempt().token, base=old)
    for _ in range(2):
        rebuild(control, states(world), A, token=world.attempt().token)
        assert states(world)._states.values(A) == world.state() == wanted(world, new)


def test_g28_a_log_that_lacks_the_replacement_is_not_published_and_gets_it() -> None:
    world = three()
    published(world)
    sealed_only(world)
    with pytest.raises(Determinate, match="its log does not have it yet"):
        published(world)
    world.run()
    assert world.log_txns() == [4]
    published(world)
    assert states(world)._states.values(A) == world.state() == wanted(world, settings(1, **KEY))


def test_g28_a_log_that_lost_commits_goes_straight_to_the_replacement() -> None:
    """What is before it is of another shape, and nobody reads it any more."""
    world = three()
    new = swap(world, KEY)
    world.commit(rec("p", 8))
    world.warehouse.log(A).restore(1)
    assert world.log_txns() == [1]
    recover(world.opened(), world.attempt())
    assert world.log_txns() == [4, 5]
    require_right(world, new)


# G29


def test_g29_replays_prove_by_the_input_what_was_replaced_and_by_parts_what_is_there() -> None:
    world = three()
    swap(world, {**KEY, "of": ["a"], "half": True})
    world.commit(rec("p", 8))
    found = replay(world.opened(), world.attempt(), txn_from=Txn(1), txn_to=Txn(5))
    assert [one.verdict for one in found] == [IDENTICAL] * 5
    assert found[0].why == "by its input; its parts were replaced in shard a by transaction 4"
    assert found[3].why == found[4].why == ""
    part = world.seals[1].shards[B].parts[0]
    world.files[part.path] = ()
    (broken,) = replay(world.opened(), world.attempt(), txn_from=Txn(2), txn_to=Txn(2))
    assert broken.verdict is Verdict.DIFFERS, "a part that is still in a log is still compared"
    mended = repair(world.opened(), world.attempt(), Txn(2))
    assert [shard for shard, _ in mended.parts] == [B]
    (found,) = replay(world.opened(), world.attempt(), txn_from=Txn(2), txn_to=Txn(2))
    assert found.verdict is IDENTICAL


def test_g29_changed_input_differs_all_the_same() -> None:
    world = three()
    swap(world, KEY)
    for records in world.source.partitions.values():
        records[0] = rec("k", 99, sequence=9)
    (found,) = replay(world.opened(), world.attempt(), txn_from=Txn(1), txn_to=Txn(1))
    assert found.verdict is Verdict.DIFFERS


def test_g29_a_promotion_whose_rows_were_replaced_is_not_comparable() -> None:
    world = three()
    swap(world, KEY)
    swap(world, OLD, generation=2)
    found = replay(world.opened(), world.attempt(), txn_from=Txn(4), txn_to=Txn(5))
    assert [one.verdict for one in found] == [NOT_COMPARABLE, IDENTICAL]
    assert "replaced in shard a by transaction 5" in found[0].why
    assert repair(world.opened(), world.attempt(), Txn(4)).finding.verdict is NOT_COMPARABLE


def test_a_promotion_whose_parts_were_deleted_is_not_comparable() -> None:
    world = three()
    world.replaced(settings(1, **OLD, times=2))
    ((part,),) = (parts.parts for shard, parts in world.seals[3].shards.items() if shard == A)
    (before,) = replay(world.opened(), world.attempt(), txn_from=Txn(4), txn_to=Txn(4))
    del world.files[part.path]
    (damaged,) = replay(world.opened(), world.attempt(), txn_from=Txn(4), txn_to=Txn(4))
    leases = world.opened().control.leases
    settle(leases, lambda head: Put(marks={SINCE: Txn(5)}, records=(), result=True), what="a truncation")
    (deleted,) = replay(world.opened(), world.attempt(), txn_from=Txn(4), txn_to=Txn(4))
    assert [one.verdict for one in (before, damaged, deleted)] == [IDENTICAL, Verdict.DIFFERS, NOT_COMPARABLE]
    # No repair is advised, as no input gives these rows again.
    assert damaged.why == PROMOTION_DIFFERS
    assert deleted.why == "its parts below 5 are deleted, and a promotion has no input"


def test_g29_a_replay_that_slept_through_it_raises_no_false_alarm() -> None:
    world = three()
    candidate = world.start(settings(1, **KEY), replaces=SHARDS)
    world.follow(candidate)
    script = Script().before("plane.replay", lambda: world.promote(candidate))
    (found,) = replay(world.opened(script), world.attempt(), txn_from=Txn(1), txn_to=Txn(1))
    assert found.verdict is IDENTICAL
    assert "replaced in shard a" in found.why


# G30


@pytest.mark.parametrize("rules", [KEY, TYPE, ORDER])
def test_g30_going_back_replaces_the_shard_again(rules: dict[str, Any]) -> None:
    world = three()
    swap(world, rules)
    world.commit(rec("p", 8, sequence=2), rec("k", 3, sequence=1))
    world.promote(world.rollback(replaces=SHARDS))
    assert world.log_txns(A) == [6]
    require_right(world, world.first)
    assert world.warehouse.shapes[A] == shapes_in(world.first)[A]


def test_g30_going_back_needs_an_agreement_too() -> None:
    world = three()
    new = swap(world, KEY)
    with pytest.raises(NotReady):
        world.promote(world.rollback())
    require_right(world, new)


@pytest.mark.parametrize("call", ["bindings.commit", "seals.commit", "plane.write", "log.head", "log.commit"])
def test_g30_of_two_promotes_at_once_one_wins(call: str) -> None:
    world = three()
    new = settings(1, **KEY)
    candidate = world.start(new, replaces=SHARDS)
    world.follow(candidate)
    told: list[Exception] = []

    def promoting(script: Script | None) -> None:
        try:
            world.promote(candidate, script)
        except (Determinate, InvalidUsage) as error:
            told.append(error)

    promoting(Script().before(call, lambda: promoting(None)))
    assert len(told) <= 1
    assert [one.decision for one in world.seals].count(Decision.CORRECTED) == 1
    require_right(world, new)


def kills(work: Callable[[GenerationWorld, Script], object]) -> int:
    """Kill the work before and after every durable step; runs go on, and the tables are right."""
    script = Script()
    work(three(), script)
    count = 0
    for call in sorted({one for one in script.calls if one.endswith((".commit", ".write", ".discard"))}):
        for nth in range(1, script.calls.count(call) + 1):
            for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
                world = three()
                with pytest.raises(Crash):
                    work(world, Script().fault(call, fault, nth=nth))
                count += 1
                world.commit(rec("after", 6, sequence=2))
                configuration = world.opened().configuration
                require_right(world, configuration)
                candidate = world.candidate
                if not world.generation and candidate is not None:
                    world.promote(candidate)
                    require_right(world, candidate.configuration)
                found = replay(
                    world.opened(), world.attempt(), txn_from=Txn(1), txn_to=Txn(world.sealed_upper - 1)
                )
                assert all(one.verdict is IDENTICAL for one in found)
    return count


@pytest.mark.parametrize("rules", [KEY, ORDER])
def test_g30_killed_at_every_step_of_a_promotion_that_replaces(rules: dict[str, Any]) -> None:
    def work(world: GenerationWorld, script: Script) -> None:
        candidate = world.start(settings(1, **rules), replaces=SHARDS)
        world.promote(candidate, script)

    assert kills(work) > 20


def test_g30_an_unknown_outcome_of_the_logs_commit_is_read_back() -> None:
    for fault in (Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DUPLICATE, Fault.DELAY):
        world = three()
        new = settings(1, **KEY)
        candidate = world.start(new, replaces=SHARDS)
        world.follow(candidate)
        world.promote(candidate, Script().fault("log.commit", fault))
        for _ in world.warehouse.land_delayed():
            pass
        assert world.log_txns() == [4]
        require_right(world, new)


def test_g30_a_process_of_the_old_generation_finishes_the_promotion_and_writes_nothing_else() -> None:
    world = three()
    old = world.opened()
    sealed_only(world)
    assert bring_up_log(old, A).appended == (4,)
    assert world.warehouse.shapes[A] == shapes_in(settings(1, **KEY))[A]
    old.control.log(A).declare(shapes_in(world.first)[A])
    assert world.warehouse.shapes[A] == shapes_in(settings(1, **KEY))[A]
    world.run(pipeline=old)
    require_right(world, settings(1, **KEY))


def test_g30_a_transaction_after_it_is_not_sealed_by_the_shape_of_before() -> None:
    """A process of the new generation seals before the log has the promotion."""
    world = three()
    sealed_only(world)
    world.feed(rec("p", 8))
    world.run()
    assert world.log_txns() == [4, 5]
    require_right(world, settings(1, **KEY))


def test_g30_a_replacement_whose_decision_was_lost_is_named_and_not_guessed() -> None:
    world = three()
    before = world.warehouse.history.version
    swap(world, KEY)
    history = world.warehouse.history
    sealed = next(v for v in range(before, history.version + 1) if history.head(v).generation)
    history.restore(sealed - 1)
    with pytest.raises(InvariantViolation, match="has replaced shard a, b, and its decision is lost"):
        recover(world.opened(), world.attempt())
    assert world.seals[-1].txn == 3


def test_g30_the_next_generation_corrects_a_replaced_shard_as_any_other() -> None:
    world = three()
    swap(world, KEY)
    world.commit(rec("p", 8))
    new = settings(2, **KEY, times=10)
    world.replaced(new)
    assert world.log_txns(A) == [4, 5, 6]
    require_right(world, new)
    pipeline = world.opened()
    world.feed(rec("q", 1))
    with pytest.raises((Determinate, InvalidUsage)):
        finish(pipeline, world.attempt(), Txn(9))
    world.run()
    require_right(world, new)
