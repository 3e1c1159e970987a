"""What every ledger promises."""

from __future__ import annotations

import pytest

from tests.contract.conftest import Place
from tests.contract.helpers import Lossy, entry, put_next
from tests.support.memory.ledger import Fault
from tidemark.core.errors import InvariantViolation
from tidemark.core.ledger import GENERATION, UPPER, Committed, Conflict, Head, JournalEntry, Put
from tidemark.pipeline.context import settle
from tidemark.ports.control import Ledger

Journal = Ledger[JournalEntry]


def test_a_new_ledger_is_empty_and_its_upper_is_one(ledger: Journal) -> None:
    head = ledger.head()
    assert (head.upper, head.generation) == (1, 0)
    assert list(ledger.read(0, 100)) == []
    assert list(ledger.find("1")) == []


def test_a_committed_record_is_read_by_number_and_by_key_through_another_handle(place: Place) -> None:
    added = put_next(place.open(), txn=7, note="grün ∅")
    other = place.open()
    assert other.head().upper == 2
    assert list(other.read(1, 2)) == [added]
    assert list(other.find("7")) == [added]
    assert list(other.find("8")) == []


def test_a_range_is_half_open_and_in_order(ledger: Journal) -> None:
    added = [put_next(ledger) for _ in range(4)]
    ledger.head()
    assert list(ledger.read(2, 4)) == added[1:3]
    assert list(ledger.read(4, 4)) == []
    assert list(ledger.read(0, 99)) == added


def test_invariant_2_a_commit_on_a_stale_head_conflicts_and_writes_nothing(place: Place) -> None:
    """Invariant 2: a blind append must not slip in at a later version."""
    ours, rival = place.open(), place.open()
    for number in (1, 2):  # The first round also decides who makes the table.
        head = ours.head()
        put_next(rival, token="rival")
        put = Put({UPPER: number + 1}, (entry(number, token="ours"),), None)
        assert ours.commit(head, put) == Conflict()
        assert ours.commit(head, put) == Conflict()
        assert ours.commit(head, Put({}, (), None)) == Conflict()
    assert ours.head() == rival.head()
    assert [record.token for record in ours.read(0, 99)] == ["rival", "rival"]


def test_invariant_2_of_many_commits_on_one_head_exactly_one_is_committed(place: Place) -> None:
    """Invariant 2: one winner a round, and its record is the one that is there."""
    for number in range(1, 6):
        writers = [place.open() for _ in range(4)]
        heads = [writer.head() for writer in writers]
        outcomes = [
            writer.commit(head, Put({UPPER: number + 1}, (entry(number, token=f"w{index}"),), None))
            for index, (writer, head) in enumerate(zip(writers, heads, strict=True))
        ]
        winners = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
        reader = place.open()
        reader.head()
        assert [record.token for record in reader.read(number, number + 1)] == [f"w{i}" for i in winners]
        assert len(winners) == 1


def test_a_second_commit_on_the_same_handles_own_head_conflicts(ledger: Journal) -> None:
    head = ledger.head()
    assert isinstance(ledger.commit(head, Put({UPPER: 2}, (entry(1),), None)), Committed)
    assert ledger.commit(head, Put({UPPER: 2}, (entry(1, token="again"),), None)) == Conflict()


def test_regression_a_commit_on_a_head_that_the_handle_has_passed_conflicts(place: Place) -> None:
    """A decision may load a newer version than the one that it is about: that is a lost race, not a mark that
    goes back."""
    ours, rival = place.open(), place.open()
    put_next(rival)
    head = ours.head()
    for _ in range(2):
        put_next(rival)
    ours.head()
    assert ours.commit(head, Put({UPPER: 3}, (entry(2, token="ours"),), None)) == Conflict()


def test_records_and_marks_go_in_together(ledger: Journal) -> None:
    records = (entry(1), entry(2), entry(3))
    ledger.commit(ledger.head(), Put({UPPER: 4, GENERATION: 2}, records, None))
    head = ledger.head()
    assert (head.upper, head.generation) == (4, 2)
    assert tuple(ledger.read(0, 99)) == records


def test_a_mark_moves_without_a_record_and_the_others_stay(ledger: Journal) -> None:
    put_next(ledger)
    assert isinstance(ledger.commit(ledger.head(), Put({GENERATION: 5}, (), None)), Committed)
    head = ledger.head()
    assert (head.upper, head.generation) == (2, 5)


def test_marks_are_found_by_the_beginning_of_their_names(ledger: Journal) -> None:
    for number, shards in enumerate(({"shard.a": 1, "shard.b": 1}, {"shard.a": 2}), start=1):
        ledger.commit(ledger.head(), Put({UPPER: number + 1, **shards}, (entry(number),), None))
    ledger.head()
    assert dict(ledger.marked("shard.")) == {"a": 2, "b": 1}
    assert dict(ledger.marked("other.")) == {}


def test_a_record_without_a_mark_is_kept_and_records_of_one_number_keep_their_order(ledger: Journal) -> None:
    records = [entry(1, txn=9, token=token) for token in ("first", "second", "third")]
    for record in records:
        ledger.commit(ledger.head(), Put({}, (record,), None))
    head = ledger.head()
    assert head.upper == 1
    assert list(ledger.read(1, 2)) == records
    assert list(ledger.find("9")) == records


def test_invariant_3_reads_answer_from_the_snapshot_of_the_last_head(place: Place) -> None:
    """Invariant 3: a decision sees one moment; the next head sees the next one."""
    ours, rival = place.open(), place.open()
    first = put_next(ours, txn=5)
    ours.head()
    second = put_next(rival, txn=5)
    assert list(ours.read(0, 99)) == list(ours.find("5")) == [first]
    assert ours.head().upper == 3
    assert list(ours.read(0, 99)) == list(ours.find("5")) == [first, second]


def test_own_commits_are_not_read_before_the_next_head(ledger: Journal) -> None:
    head = ledger.head()
    ledger.commit(head, Put({UPPER: 2}, (entry(1),), None))
    assert list(ledger.read(0, 99)) == []
    ledger.head()
    assert list(ledger.read(0, 99)) == [entry(1)]


def test_invariant_2_a_mark_never_goes_back(ledger: Journal) -> None:
    """Invariant 2: an upper never retreats, whoever asks."""
    put_next(ledger)
    put_next(ledger)
    head = ledger.head()
    with pytest.raises(InvariantViolation, match="would go back from 3 to 2"):
        ledger.commit(head, Put({UPPER: 2}, (entry(9),), None))
    assert ledger.head() == head
    assert len(ledger.read(0, 99)) == 2


def test_a_long_history_keeps_every_record_through_housekeeping(place: Place) -> None:
    writers = [place.open(), place.open()]
    added = [put_next(writers[number % 2], txn=number % 7 + 1) for number in range(35)]
    ours = place.open()
    assert ours.head().upper == 36
    assert list(ours.read(0, 99)) == added
    assert list(ours.find("3")) == [record for record in added if record.key == "3"]


def seal_like(ledger: Journal, number: int, token: str) -> str:
    """Put-if-absent of one number: our token if we won, the winner's if not."""

    def decide(head: Head) -> Put[JournalEntry, str] | str:
        if number < head.upper:
            return str(ledger.read(number, number + 1)[0].token)
        return Put({UPPER: number + 1}, (entry(number, token=token),), token)

    return settle(ledger, decide, what="the test's record")


def test_m4_a_lost_reply_is_success_without_a_second_write(place: Place) -> None:
    """Invariant 5: it had committed, and reading back finds it."""
    lossy = Lossy(place.open(), [Fault.LOSE_REPLY])
    assert seal_like(lossy, 1, "ours") == "ours"
    assert lossy.commits == 1
    ours = place.open()
    ours.head()
    assert [record.token for record in ours.read(0, 99)] == ["ours"]


def test_m4_a_lost_reply_is_success_even_when_a_rival_has_moved_on(place: Place) -> None:
    """Invariant 5: what decides is the record, not the newest version."""

    class Overtaken(Lossy):
        def commit(self, head: Head, put: Put[JournalEntry, object]) -> Committed | Conflict:
            try:
                return super().commit(head, put)
            finally:
                put_next(place.open(), token="rival")

    lossy = Overtaken(place.open(), [Fault.LOSE_REPLY])
    assert seal_like(lossy, 1, "ours") == "ours"
    assert lossy.commits == 1
    ours = place.open()
    ours.head()
    assert [record.token for record in ours.read(0, 99)] == ["ours", "rival"]


def test_m4_a_lost_request_without_a_rival_is_committed_by_the_next_try(place: Place) -> None:
    """Invariant 5: it had not committed, so it is put again, once."""
    lossy = Lossy(place.open(), [Fault.LOSE_REQUEST])
    assert seal_like(lossy, 1, "ours") == "ours"
    ours = place.open()
    ours.head()
    assert [record.token for record in ours.read(0, 99)] == ["ours"]


def test_m4_a_lost_request_with_a_rival_is_a_lost_race_and_a_value(place: Place) -> None:
    """Invariant 4: losing is a value, with the winner in it."""

    class Overtaken(Lossy):
        def commit(self, head: Head, put: Put[JournalEntry, object]) -> Committed | Conflict:
            try:
                return super().commit(head, put)
            finally:
                put_next(place.open(), token="rival")

    assert seal_like(Overtaken(place.open(), [Fault.LOSE_REQUEST]), 1, "ours") == "rival"
