"""Publishing a state: what is decided, and that any crash is mended by the next publisher."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import Mock, patch

import pytest

from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tests.support.memory.fold import fold
from tests.support.memory.ledger import Crash, Fault
from tests.support.memory.state import MemoryStatePlane
from tests.support.memory.versions import MemoryStates, MemoryVersion
from tests.support.memory.world import A, Script, World, rec, simple
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage, InvariantViolation
from tidemark.core.ids import TXN_NONE, Txn, WriterToken
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.publish import (
    Policy,
    Published,
    PublishTail,
    PutOnRecord,
    StateCommit,
    StateOverwritten,
    StateStatus,
    UpToDate,
    carried_forward,
    decide_publish,
    decide_record,
    due,
    published_txn,
    state_as_of,
)
from tidemark.pipeline.publish import (
    NotDue,
    checked_record,
    is_due,
    last_published,
    publish,
    published_as_of,
    rebuild,
    verify_state,
)

W, X = WriterToken("w"), WriterToken("x")


@pytest.mark.parametrize("count", [0, 1, 2, 7, 64, 100])
def test_the_publish_of_a_moment_is_found_without_reading_all_of_them(count: int) -> None:
    """Two in three have a transaction of their own: a rebuild has that of the publish before it."""
    records = [record(2 * (number - number // 3), number, number=number) for number in range(1, count + 1)]
    ledger: Any = MemoryControl(MemoryWarehouse()).publishes(A)
    ledger.commit(ledger.head(), Put({UPPER: count + 1}, records, None))
    ledger.head()
    for as_of in range(2 * count + 2):
        assert published_as_of(ledger, as_of=Txn(as_of)) == state_as_of(records, as_of=Txn(as_of))
    read = Mock(wraps=ledger.read)
    with patch.object(ledger, "read", read):
        published_as_of(ledger, as_of=Txn(2 * count))
    assert read.call_count <= 2


def commit(txn: int, token: WriterToken = W) -> StateCommit:
    return StateCommit(Txn(txn), token, Digest(txn, txn, txn, txn))


def record(txn: int, version: int, token: WriterToken = W, number: int = 1) -> Published:
    return Published(number, version, commit(txn, token))


def state_at(txn: int, version: int, token: WriterToken = W, at_record: str | None = None) -> StateStatus:
    newest = commit(txn, token) if txn else None
    return StateStatus(
        version, Txn(txn), newest, version if txn else -1, token if at_record is None else at_record
    )


class TestDecidePublish:
    def decide(self, last: Published | None, found: StateStatus, upper: int) -> object:
        return decide_publish(A, last=last, status=found, log_upper=Txn(upper))

    def test_a_new_state_starts_at_the_first_transaction(self) -> None:
        assert self.decide(None, StateStatus(), 4) == PublishTail(Txn(1), Txn(4), None)
        assert self.decide(None, StateStatus(), 1) == UpToDate(TXN_NONE)

    def test_the_tail_follows_the_last_publish(self) -> None:
        last = record(3, 0)
        assert self.decide(last, state_at(3, 0), 6) == PublishTail(Txn(4), Txn(6), last)
        assert self.decide(last, state_at(3, 0), 4) == UpToDate(Txn(3))

    def test_invariant_5_a_commit_without_a_record_is_recorded(self) -> None:
        """Invariant 5: the table tells what became of a publish whose publisher died."""
        assert self.decide(None, state_at(3, 0), 6) == PutOnRecord(0, commit(3))
        assert self.decide(record(3, 0), state_at(5, 1, X, W), 6) == PutOnRecord(1, commit(5, X))

    def test_maintenance_moves_the_version_and_nothing_else(self) -> None:
        last = record(3, 0)
        found = replace(state_at(3, 0), version=2)
        assert self.decide(last, found, 5) == PublishTail(Txn(4), Txn(5), last)

    @pytest.mark.parametrize(
        ("found", "said"),
        [
            (StateStatus(), "is at transaction 0"),
            (state_at(2, 1), "is at transaction 2, version 1, but the record says 3 and 1"),
            (state_at(3, 0), "version 0, but the record says 3 and 1"),
            (state_at(3, 1, X), "written by x, but the record says w"),
            (replace(state_at(3, 2, W), foreign_writes=("2 UPDATE",)), "other writers changed it .2 UPDATE"),
            (replace(state_at(4, 2, W), newest=None), "no publish is recorded for its transaction 4"),
            (replace(state_at(4, 2, W), newest=commit(3)), "no publish is recorded for its transaction 4"),
        ],
    )
    def test_m13_a_state_that_is_not_as_recorded_stops_the_publisher(
        self, found: StateStatus, said: str
    ) -> None:
        with pytest.raises(StateOverwritten, match=said):
            self.decide(record(3, 1), found, 6)

    def test_m13_a_history_that_was_cleaned_up_is_no_proof_against_anyone(self) -> None:
        last = record(3, 1)
        assert self.decide(last, state_at(3, 9, W, ""), 6) == PublishTail(Txn(4), Txn(6), last)

    def test_a_log_behind_its_state_is_refused(self) -> None:
        with pytest.raises(InvariantViolation, match="only reaches 2"):
            self.decide(record(3, 0), state_at(3, 0), 3)


class TestDecideRecord:
    def test_a_publish_is_recorded_under_the_next_number(self) -> None:
        decision = decide_record(head=Head(1, {"upper": 2}), last=record(3, 0), version=1, commit=commit(5))
        assert isinstance(decision, Put)
        assert decision.result == Published(2, 1, commit(5))
        assert decision.marks == {"upper": 3}

    def test_the_same_publish_is_recorded_once(self) -> None:
        last = record(3, 0)
        assert decide_record(head=Head(1, {"upper": 2}), last=last, version=0, commit=commit(3)) == last

    def test_a_rebuild_is_the_same_transaction_at_a_later_version(self) -> None:
        decision = decide_record(
            head=Head(1, {"upper": 2}), last=record(3, 0), version=4, commit=commit(3, X)
        )
        assert isinstance(decision, Put)

    @pytest.mark.parametrize(("txn", "version"), [(2, 1), (3, 0)])
    def test_a_second_publisher_of_the_same_transaction_is_an_error(self, txn: int, version: int) -> None:
        with pytest.raises(InvariantViolation, match="comes after one of 3"):
            decide_record(
                head=Head(1, {"upper": 2}), last=record(3, 0), version=version, commit=commit(txn, X)
            )


def test_a_policy_counts_transactions_and_a_manual_one_never_asks() -> None:
    assert due(published=Txn(0), log_upper=Txn(2), policy=Policy(1))
    assert not due(published=Txn(1), log_upper=Txn(2), policy=Policy(1))
    assert not due(published=Txn(2), log_upper=Txn(12), policy=Policy(10))
    assert due(published=Txn(2), log_upper=Txn(13), policy=Policy(10))
    assert not due(published=Txn(0), log_upper=Txn(1_000), policy=Policy(None))


def test_a_read_as_of_starts_from_the_latest_publish_at_or_below_it() -> None:
    records = [record(2, 0), record(5, 1, number=2), record(5, 2, X, number=3)]
    assert state_as_of(records, as_of=Txn(1)) is None
    assert state_as_of(records, as_of=Txn(4)) == records[0]
    assert state_as_of(records, as_of=Txn(9)) == records[2]


def test_a_digest_carried_forward_is_the_digest_of_the_rows() -> None:
    before, gone, come = [1, 2**64 - 1, 7, 7], [2**64 - 1, 7], [9, 2**63]
    found = carried_forward(Digest.of(before), removed=Digest.of(gone), added=Digest.of(come))
    assert found == Digest.of([1, 7, 9, 2**63])
    with pytest.raises(InvariantViolation, match="removed from a state of 0"):
        carried_forward(Digest(), removed=Digest.of([1]), added=Digest())
    with pytest.raises(InvalidUsage, match="another encoding"):
        carried_forward(Digest(encoding=3), removed=Digest(), added=Digest())


class PublishWorld(World):
    """A world with states."""

    def __init__(self) -> None:
        super().__init__()
        self.states = MemoryStates()

    def publish(
        self, chaos: Script | None = None, token: WriterToken = W, policy: Policy | None = None
    ) -> object:
        return publish(*self.handles(chaos), A, token=token, policy=policy)

    def handles(self, chaos: Script | None = None) -> tuple[MemoryControl, MemoryStatePlane]:
        plane = MemoryStatePlane(self.warehouse, self.files, self.states, chaos)
        return MemoryControl(self.warehouse, chaos), plane

    @property
    def last(self) -> Published | None:
        return last_published(self.handles()[0], A)


@pytest.fixture
def world() -> PublishWorld:
    return PublishWorld()


def test_a_state_follows_its_log_and_a_second_publish_has_nothing_to_do(world: PublishWorld) -> None:
    world.commit(rec("k", 1), rec("l", 1))
    assert isinstance(world.publish(), Published)
    world.commit(rec("k", 2))
    world.commit(rec("l", None))
    assert isinstance(world.publish(), Published)
    assert world.publish() == UpToDate(Txn(3))
    assert simple(world.states.values(A)) == {"k": 2}
    assert len(world.states.of(A)) == 2
    assert verify_state(*world.handles(), A).commit.digest.count == 1


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL, Fault.LOSE_REPLY])
@pytest.mark.parametrize("call", ["state.commit", "publishes.commit"])
def test_invariant_5_whatever_a_publisher_died_of_the_next_one_mends(
    world: PublishWorld, call: str, fault: Fault
) -> None:
    """Invariant 5: an unknown outcome is decided by reading back; nothing is published twice."""
    world.commit(rec("k", 1))
    try:
        world.publish(Script().fault(call, fault))
    except (Crash, Determinate, Indeterminate):
        world.publish(token=X)
    assert published_txn(world.last) == 1
    assert len(world.states.of(A)) == 1
    assert simple(world.states.values(A)) == {"k": 1}


def test_a_recovered_publish_goes_on_with_what_came_since(world: PublishWorld) -> None:
    world.commit(rec("k", 1))
    with pytest.raises(Crash):
        world.publish(Script().fault("publishes.commit", Fault.CRASH_BEFORE))
    world.commit(rec("k", 2))
    world.publish(token=X)
    assert [version.commit.txn for version in world.states.of(A) if version.commit] == [1, 2]
    assert world.last is not None
    assert world.last.token == X


def test_m13_a_publish_over_a_publish_is_noticed_by_publishers_and_readers(world: PublishWorld) -> None:
    world.commit(rec("k", 1))
    world.publish()
    world.states.of(A)[0] = replace(world.states.of(A)[0], commit=commit(1, X))
    world.commit(rec("k", 2))
    with pytest.raises(StateOverwritten, match="written by x"):
        world.publish()
    with pytest.raises(StateOverwritten, match="written by x"):
        checked_record(*world.handles(), A)


def test_m13_a_state_that_was_overwritten_is_rebuilt_from_its_log(world: PublishWorld) -> None:
    world.commit(rec("k", 1), rec("l", 1))
    world.publish()
    world.states.of(A).append(MemoryVersion({}, None))
    with pytest.raises(StateOverwritten, match="other writers changed"):
        world.publish()
    rebuilt = rebuild(*world.handles(), A, token=X)
    assert simple(world.states.values(A)) == {"k": 1, "l": 1}
    assert checked_record(*world.handles(), A) == rebuilt
    world.commit(rec("k", 2))
    world.publish()
    assert simple(world.states.values(A)) == {"k": 2, "l": 1}


def test_a_rebuild_follows_the_log_until_it_has_caught_up(world: PublishWorld) -> None:
    world.commit(rec("k", 1))
    world.publish()
    script = Script()
    for number in range(3):  # While it folds, and at each publish that follows.
        script.before("state.commit", partial(world.commit, rec("k", 2 + number)), nth=1 + number)
    rebuilt = rebuild(*world.handles(script), A, token=X)
    assert (rebuilt.txn, world.last and world.last.txn) == (1, 4)
    assert simple(world.states.values(A)) == {"k": 4}


def test_a_rebuild_gives_up_against_publishers_at_its_deadline_and_changes_nothing(
    world: PublishWorld,
) -> None:
    world.commit(rec("k", 1))

    def rivals() -> None:
        world.commit(rec("k", 2))
        world.publish()

    chaos, clock = Mock(meet=lambda call: rivals() if call == "state.commit" else None), count()
    with pytest.raises(Determinate, match="each time that it was rebuilt, for 5 s: retry while"):
        rebuild(*world.handles(chaos), A, token=X, seconds_max=5, clock=lambda: next(clock))
    versions = world.states.of(A)
    assert len(versions) == 5
    assert {version.commit and version.commit.token for version in versions} == {W}


def test_a_rebuild_that_has_won_leaves_the_rest_at_its_deadline(world: PublishWorld) -> None:
    world.commit(rec("k", 1))
    chaos = Mock(meet=lambda call: world.commit(rec("k", 2)) if call == "state.commit" else None)
    clock = count()
    rebuild(*world.handles(chaos), A, token=X, seconds_max=3, clock=lambda: next(clock))
    assert world.last is not None
    assert (world.last.txn, is_due(world.handles()[0], A, Policy(1))) == (3, True)


def test_a_rebuild_starts_only_from_a_version_that_has_its_recorded_digest(world: PublishWorld) -> None:
    world.commit(rec("k", 1))
    world.publish()
    first = world.last
    assert first is not None
    world.commit(rec("l", 2))
    rebuild(*world.handles(), A, token=X, base=first)
    assert simple(world.states.values(A)) == {"k": 1, "l": 2}
    world.states.of(A)[0] = replace(world.states.of(A)[0], rows=fold([]))
    with pytest.raises(StateOverwritten, match="has 0 rows"):
        rebuild(*world.handles(), A, token=X, base=first)


def test_a_policy_holds_a_publish_back(world: PublishWorld) -> None:
    world.commit(rec("k", 1))
    assert world.publish(policy=Policy(2)) == NotDue(TXN_NONE, Txn(2))
    assert not is_due(world.handles()[0], A, Policy(2))
    world.commit(rec("k", 2))
    assert isinstance(world.publish(policy=Policy(2)), Published)
