"""Scenarios W2 in memory: whatever was set back, `recover` and the next run end with the right tables, and a
replay says the truth (Invariant 16)."""

from __future__ import annotations

from itertools import product

import pytest

from tests.support.memory.ledger import Crash, Fault, MemoryLedger
from tests.support.memory.state import MemoryStatePlane
from tests.support.memory.versions import MemoryStates
from tests.support.memory.world import A, B, Script, World, rec
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.history import Forked, Recovery
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Event
from tidemark.core.replay import Verdict
from tidemark.core.seal import Decision
from tidemark.pipeline.decide import skip
from tidemark.pipeline.history import epoch_of, losses
from tidemark.pipeline.maintain import sweep
from tidemark.pipeline.publish import publish
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.recover import Recovered, plan, recover
from tidemark.pipeline.run import replay


class Warehouse(World):
    """A world with states, and three transactions: all touch a, the second touches b as well."""

    def __init__(self) -> None:
        super().__init__()
        self.states = MemoryStates()
        self.commit(rec("k", 1))
        self.publish_all()
        self.commit(rec("k", 2), rec("l", 2, table="b"))
        self.commit(rec("m", 3))
        self.publish_all()

    @property
    def plane(self) -> MemoryStatePlane:
        return MemoryStatePlane(self.warehouse, self.files, self.states)

    def publish_all(self) -> None:
        for shard in (A, B):
            token = WriterToken(f"p{shard}{len(self.states.of(shard))}")
            publish(self.process().control, self.plane, shard, token=token)

    def ledgers(self) -> dict[str, MemoryLedger]:  # type: ignore[type-arg]
        truth = self.warehouse
        return {
            "history": truth.history,
            "log a": truth.log(A),
            "log b": truth.log(B),
            "checkpoints": truth.checkpoints,
        }

    def set_back(self, versions: tuple[int, ...]) -> None:
        for ledger, version in zip(self.ledgers().values(), versions, strict=True):
            ledger.restore(version)

    def recover(self, chaos: Script | None = None, *, restored: bool = False) -> Recovered:
        attempt = self.attempt("recover")
        return recover(self.process(chaos), attempt, restored=restored)

    @property
    def recoveries(self) -> list[Recovery]:
        return list(self.warehouse.recoveries.records(self.warehouse.recoveries.version))

    def verdicts(self) -> dict[int, Verdict]:
        last = Txn(self.sealed_upper - 1)
        found = replay(self.process(), self.attempt("proof"), txn_from=Txn(1), txn_to=last)
        return {one.txn: one.verdict for one in found}


VERSIONS = {name: ledger.version for name, ledger in Warehouse().ledgers().items()}
SET_BACK = list(product(*(range(version + 1) for version in VERSIONS.values())))


def check_right(world: Warehouse) -> None:
    """The states are the fold of the source's records, every log reads like that, and nothing contradicts."""
    wanted = {A: {("k",): 2, ("m",): 3, ("n",): 4}, B: {("l",): 2}}
    assert {shard: world.state(shard) for shard in (A, B)} == wanted
    world.publish_all()
    assert {shard: world.states.values(shard) for shard in (A, B)} == wanted
    assert not losses(world.process().control, (A, B))
    assert world.checkpoint == world.sealed_upper - 1
    lost = {seal.txn for seal in world.seals if seal.decision is Decision.LOST}
    for txn, verdict in world.verdicts().items():
        assert verdict is (Verdict.LOST if txn in lost else Verdict.IDENTICAL), f"transaction {txn}"


@pytest.mark.parametrize("versions", SET_BACK, ids=lambda one: "-".join(map(str, one)))
def test_w2_after_a_recovery_the_next_run_ends_with_the_right_tables(versions: tuple[int, ...]) -> None:
    world = Warehouse()
    named = {seal.txn for seal in world.seals}
    kept = {
        name: list(one.records(one.version)) for name, one in world.ledgers().items() if name != "history"
    }
    world.set_back(versions)
    ahead = {
        name: [record for record in records if record in one.records(one.version)]
        for (name, records), one in zip(kept.items(), list(world.ledgers().values())[1:], strict=True)
    }
    world.feed(rec("n", 4))
    acknowledged, files = world.acknowledged, dict(world.files)
    seals = world.seals
    world.recover()
    # Only forward: nothing that was there is gone, changed or acknowledged.
    assert world.seals[: len(seals)] == seals
    assert world.acknowledged == acknowledged
    assert files.items() <= world.files.items()
    for name, one in list(world.ledgers().items())[1:]:
        assert list(one.records(one.version))[: len(ahead[name])] == ahead[name]
    world.run()
    world.run()
    check_right(world)
    sweep(world.process())
    check_right(world)
    new = [binding for binding in world.bindings if binding.owner.run_id.startswith("run")]
    # No number that was named is given out again: what was published names three.
    assert all(one.txn > 3 for one in new if one.txn not in named)


@pytest.mark.parametrize("name", list(VERSIONS))
def test_w2_a_newest_commit_that_is_lost_alone_comes_back_as_it_was(name: str) -> None:
    world = Warehouse()
    seals, logs = world.seals, {shard: world.log(shard) for shard in (A, B)}
    world.ledgers()[name].restore(VERSIONS[name] - 1)
    world.recover()
    world.run()
    assert [(one.txn, one.link, one.decision) for one in world.seals] == [
        (one.txn, one.link, one.decision) for one in seals
    ]
    assert {shard: world.log(shard) for shard in (A, B)} == logs
    assert set(world.verdicts().values()) == {Verdict.IDENTICAL}


def test_w2_the_plan_says_what_will_be_done_and_changes_nothing() -> None:
    world = Warehouse()
    world.warehouse.history.restore(VERSIONS["history"] - 3)
    world.warehouse.log(B).restore(0)
    before = {name: one.version for name, one in world.ledgers().items()}
    found = plan(world.process())
    assert (found.plan.again, found.plan.lost, found.plan.first) == ((2,), (3,), 4)
    assert {
        "the newest checkpoint has transaction 3",
        "the log of shard a has transaction 3",
        "a publish of shard a has transaction 3",
    } <= {str(one) for one in found.plan.witnesses}
    assert {name: one.version for name, one in world.ledgers().items()} == before


def test_w2_where_nothing_is_lost_nothing_is_done() -> None:
    world = Warehouse()
    before = world.warehouse.history.version
    assert not plan(world.process()).is_needed
    assert world.recover() == Recovered(epoch=0)
    assert world.warehouse.history.version == before


def test_w2_a_lost_transaction_is_named_and_never_identical() -> None:
    world = Warehouse()
    world.warehouse.history.restore(VERSIONS["history"] - 2)
    done = world.recover()
    assert list(done.lost) == [3]
    assert "its binding is lost (epoch 1); a has 1 rows of it" in done.lost[Txn(3)]
    world.run()
    assert world.verdicts()[3] is Verdict.LOST
    assert [one.txn for one in world.journal(Event.RECOVERED)] == [3]
    assert [one.txn for one in world.bindings] == [1, 2, 3, 4]
    assert world.bindings[-1].lower == world.bindings[1].upper
    assert epoch_of(world.process().control, Txn(3)) == 0


def test_w2_an_epoch_tells_numbers_that_are_given_out_again_from_those_of_before() -> None:
    """All of the warehouse was put back: only a consumer elsewhere may still know of a transaction 3."""
    world = Warehouse()
    links = [one.link for one in world.bindings]
    world.warehouse.history.restore(VERSIONS["history"] - 2)
    for ledger in (world.warehouse.log(A), world.warehouse.checkpoints, world.warehouse.attempts):
        ledger.restore(ledger.version - 1)
    world.warehouse.journal.restore(
        world.warehouse.journal.version - sum(one.txn == 3 for one in world.journal())
    )
    world.warehouse.publishes(A).restore(1)
    del world.states.of(A)[1:]
    world.warehouse.publishes(B).restore(0)
    world.states.of(B).clear()
    world.files = {path: rows for path, rows in world.files.items() if "/3/" not in path}
    assert not plan(world.process()).is_needed
    assert world.recover(restored=True).epoch == 1
    world.run()
    control = world.process().control
    control.seals.head()
    assert [epoch_of(control, Txn(txn)) for txn in (1, 2, 3)] == [0, 0, 1]
    assert world.bindings[2].upper == world.source.offer(None)[-1].upper
    assert world.bindings[2].link != links[2]


def test_two_recoveries_at_once_one_begins_and_the_other_says_so() -> None:
    world = Warehouse()
    world.warehouse.history.restore(VERSIONS["history"] - 2)
    script = Script().before("recoveries.commit", world.recover)
    with pytest.raises(Determinate, match="another recovery has begun epoch 1"):
        world.recover(script)
    assert len(world.recoveries) == 1
    world.feed(rec("n", 4))
    world.run()
    check_right(world)


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOSE_REPLY, Fault.FAIL])
@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("call", ["recoveries.commit", "seals.commit", "log.commit", "journal.commit"])
def test_a_recovery_that_dies_anywhere_goes_on_with_the_next_one(call: str, nth: int, fault: Fault) -> None:
    world = Warehouse()
    world.warehouse.history.restore(VERSIONS["history"] - 3)
    world.warehouse.log(B).restore(0)
    world.feed(rec("n", 4))
    try:
        world.recover(Script().fault(call, fault, nth=nth))
    except (Crash, Determinate):
        world.recover()
    assert [one.number for one in world.recoveries] == [1]
    world.run()
    check_right(world)


def test_a_run_that_goes_on_while_the_plan_is_made_is_no_loss() -> None:
    """The history is looked at first, the logs after it: what was appended in between is in both."""
    world = Warehouse()
    world.feed(rec("n", 4))
    script = Script().before("checkpoints.head", world.run)
    assert not plan(world.process(script)).is_needed
    world.feed(rec("o", 5))
    script = Script().before("checkpoints.head", world.run)
    assert recover(world.process(script), world.attempt("recover")).epoch == 0
    assert world.recoveries == []


def test_a_run_waits_for_a_recovery_that_is_not_finished() -> None:
    world = Warehouse()
    world.warehouse.history.restore(VERSIONS["history"] - 3)
    with pytest.raises(Crash):
        world.recover(Script().fault("seals.commit", Fault.CRASH_BEFORE))
    before = world.seals
    with pytest.raises(Determinate, match="a recovery is not finished"):
        world.run()
    assert world.seals == before
    assert "a recovery is not finished" in losses(world.process().control, (A, B))[0]


def test_a_writer_from_before_the_loss_cant_seal_what_is_lost() -> None:
    """It has staged transaction 3 for a binding that is lost: the number stands for nothing that is read."""
    world = Warehouse()
    world.feed(rec("z", 9))
    zombie, attempt = world.process(), world.attempt("zombie")
    reclock(zombie, attempt)
    truth = world.warehouse.history
    truth.restore(VERSIONS["history"] - 2)
    with pytest.raises(Crash):
        world.recover(Script().fault("seals.commit", Fault.CRASH_BEFORE))
    from tidemark.core.seal import BeingRecovered
    from tidemark.pipeline.run import finish

    with pytest.raises(BeingRecovered):
        finish(world.process(), attempt, Txn(3))
    with pytest.raises(InvariantViolation, match="set back under a living process"):
        finish(zombie, attempt, Txn(3))


def test_a_skip_that_is_lost_is_skipped_again_for_the_same_reason() -> None:
    world = World()
    world.commit(rec("k", 1))
    world.feed(rec("bad", 2))
    reclock(world.process(), world.attempt("run"))
    skip(world.process(), world.attempt("person"), Txn(2), reason="not ours")
    sealed = world.seals
    world.warehouse.history.restore(world.warehouse.history.version - 1)
    recover(world.process(), world.attempt("recover"))
    assert world.seals == sealed


def test_a_fork_is_named_and_nothing_is_changed() -> None:
    world = Warehouse()
    world.warehouse.history.restore(VERSIONS["history"] - 2)
    world.warehouse.checkpoints.restore(VERSIONS["checkpoints"] - 1)
    for shard in (A, B):
        world.warehouse.publishes(shard).restore(0)
        world.states.of(shard).clear()
    log = list(world.log(A))
    world.warehouse.log(A).restore(VERSIONS["log a"] - 1)
    world.commit(rec("z", 9))
    other = MemoryLedger[object]()
    for entry in log:
        head = other.head(other.version)
        from tidemark.core.ledger import LINK, UPPER, Put

        other.commit(head, Put({UPPER: entry.txn + 1, LINK: 77}, (entry,), None))
    world.warehouse.logs[A] = other  # type: ignore[assignment]
    before = world.warehouse.history.version
    with pytest.raises(Forked, match="the log of shard a and the history have different transactions 3"):
        world.recover()
    assert world.warehouse.history.version == before


def test_w2_input_that_is_gone_makes_a_bound_transaction_a_lost_one() -> None:
    world = Warehouse()
    world.warehouse.history.restore(VERSIONS["history"] - 1)
    del world.source.partitions["p0"][3:]
    done = world.recover()
    assert "its input: partition 'p0' ends at 3" in done.lost[Txn(3)]
    assert world.state(A) == {("k",): 2, ("m",): 3}
    assert [row.value for row in world.rows(A)] == [1, 2, 3]


def test_w2_input_that_has_changed_is_not_taken_for_what_the_logs_have() -> None:
    world = Warehouse()
    world.warehouse.history.restore(VERSIONS["history"] - 1)
    world.source.partitions["p0"][3] = rec("m", 99)
    done = world.recover()
    assert "its input now yields other rows than the logs have" in done.lost[Txn(3)]
    assert world.state(A) == {("k",): 2, ("m",): 3}


def test_w2_parts_that_are_gone_are_named_and_their_log_is_left_alone() -> None:
    world = Warehouse()
    world.warehouse.log(A).restore(2)
    [lost] = [path for path in world.files if "/3/" in path]
    del world.files[lost]
    done = world.recover()
    assert done.damaged == {A: (3,)}
    assert world.log_txns(A) == [1, 2]
    assert ShardId("b") not in done.damaged
