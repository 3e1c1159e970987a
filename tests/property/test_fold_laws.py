"""Laws of the fold: it does not matter how changes are cut, or when a state is published."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.memory.fold import Change, Key, Position, fold, too_late, visible
from tidemark.core.ids import TXN_NONE, Txn

keys = st.tuples(st.sampled_from([None, "", "a"]), st.sampled_from([None, 1]))
values = st.one_of(st.none(), st.integers(0, 9))
sequences = st.one_of(st.none(), st.integers(0, 12))
# One record: key, value, sequence. A transaction is a list of them.
Record = tuple[Key, object, int | None]
records = st.tuples(keys, values, sequences)
transactions = st.lists(st.lists(records, max_size=4), max_size=8)


def changes_of(content: list[list[Record]]) -> list[list[Change]]:
    """Numbered and placed; partitions take turns, so that their order is not that of arrival."""
    return [
        [
            Change(key, value, Txn(txn), Position(f"p{index % 2}", txn, index), sequence)
            for index, (key, value, sequence) in enumerate(content_of_txn)
        ]
        for txn, content_of_txn in enumerate(content, start=1)
    ]


def corrected(placed: list[list[Change]], corrections: set[int]) -> list[list[Change]]:
    """The same transactions, some of which are corrections, with one record per key."""
    return [
        [replace(change, since=Txn(txn)) for change in fold(changes).values()]
        if txn in corrections
        else changes
        for txn, changes in enumerate(placed, start=1)
    ]


def all_of(content: list[list[Change]]) -> list[Change]:
    return [change for changes in content for change in changes]


@given(transactions, st.randoms(use_true_random=False), st.lists(st.integers(0, 30), max_size=5))
def test_folding_in_any_chunks_and_any_order_gives_the_same(content, random, cuts) -> None:  # type: ignore[no-untyped-def]
    changes = all_of(changes_of(content))
    whole = fold(changes)
    random.shuffle(changes)
    bounds = [0, *sorted(min(cut, len(changes)) for cut in cuts), len(changes)]
    chunks = [fold(changes[lower:upper]) for lower, upper in pairwise(bounds)]
    random.shuffle(chunks)
    folded: dict[Key, Change] = {}
    for chunk in chunks:
        folded = fold([*folded.values(), *chunk.values()])
    assert folded == whole
    assert fold(whole.values()) == whole


@given(transactions)
def test_the_fold_keeps_the_greatest_of_each_key_and_only_keys_that_were_there(content) -> None:  # type: ignore[no-untyped-def]
    changes = all_of(changes_of(content))
    folded = fold(changes)
    assert set(folded) == {change.key for change in changes}
    for change in changes:
        assert change.order <= folded[change.key].order
    assert visible(folded) == {key: last.value for key, last in folded.items() if last.value is not None}


@given(transactions, st.sets(st.integers(1, 8), max_size=2))
def test_a_correction_voids_what_is_below_it_and_competes_with_what_is_above(  # type: ignore[no-untyped-def]
    content, corrections: set[int]
) -> None:
    changes = all_of(corrected(changes_of(content), corrections))
    folded = fold(changes)
    for key, last in folded.items():
        mine = [change for change in changes if change.key == key]
        since = max((change.txn for change in mine if change.since), default=TXN_NONE)
        assert last.order == max(change.order for change in mine if change.txn >= since)


def watermarks_of(content: list[list[Change]]) -> list[int | None]:
    """The highest sequence up to and with each transaction, from the records alone."""
    found: list[int | None] = []
    highest: int | None = None
    for changes in content:
        for change in changes:
            if isinstance(change.sequence, int):
                highest = change.sequence if highest is None else max(highest, change.sequence)
        found.append(highest)
    return found


class Publisher:
    """A state and its tombstones, as tables: rows without transaction or position of their own."""

    def __init__(self, lateness: int | None) -> None:
        self.lateness = lateness
        self.rows: dict[Key, Change] = {}
        self.tombstones: dict[Key, Change] = {}
        self.tail: list[Change] = []

    def folded(self) -> dict[Key, Change]:
        return fold([*self.rows.values(), *self.tombstones.values(), *self.tail])

    def publish(self, txn: Txn, watermark: int | None) -> None:
        folded = self.folded()
        # A state doesn't say which of its rows were corrected.
        kept = {
            key: replace(last, txn=txn, position=Position("", 0), since=TXN_NONE)
            for key, last in folded.items()
        }
        self.rows = {key: last for key, last in kept.items() if not last.deletes}
        self.tombstones = {
            key: last
            for key, last in kept.items()
            if last.deletes
            and last.sequence is not None  # Nothing loses to a NULL sequence.
            and not too_late(last.sequence, watermark=watermark, lateness=self.lateness)
        }
        self.tail = []


@given(
    transactions,
    st.one_of(st.none(), st.integers(0, 6)),
    st.sets(st.integers(1, 8)),
    st.sets(st.integers(2, 8), max_size=2),
)
@example(
    [[(("a", 1), 1, 5)], [(("a", 1), None, 6)], [((None, 1), 1, 12)], [(("a", 1), 2, None)]], 2, {3}, set()
)
@example([[(("a", 1), None, 9)], [(("a", 1), 1, 2)], [(("a", 1), 2, 5)]], None, {1}, {2})
def test_u11_the_result_never_depends_on_when_publishes_happen(  # type: ignore[no-untyped-def]
    content, lateness: int | None, publish_after: set[int], corrections: set[int]
) -> None:
    placed = corrected(changes_of(content), corrections)
    marks = watermarks_of(placed)
    in_time = [
        [
            change
            for change in changes
            if change.since
            or not too_late(change.sequence, watermark=marks[index - 1] if index else None, lateness=lateness)
        ]
        for index, changes in enumerate(placed)
    ]
    publisher = Publisher(lateness)
    for index, changes in enumerate(in_time):
        publisher.tail += fold(changes).values()  # Ingest has folded each transaction by itself.
        rebuilt = visible(fold(all_of(in_time[: index + 1])))
        assert visible(publisher.folded()) == rebuilt, "the fresh read"
        if index + 1 in publish_after:
            publisher.publish(Txn(index + 1), marks[index])
            assert {key: row.value for key, row in publisher.rows.items()} == rebuilt, "the state"


@given(transactions, st.integers(0, 6))
def test_without_a_lateness_no_record_is_too_late(content, watermark: int) -> None:  # type: ignore[no-untyped-def]
    for change in all_of(changes_of(content)):
        assert not too_late(change.sequence, watermark=watermark, lateness=None)
