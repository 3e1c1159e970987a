"""Scenarios U1 to U13 through the whole pipeline in memory: any partitions, any cut, and after a replay."""

from __future__ import annotations

import pytest

from tests.support.memory.source import SourceRecord
from tests.support.memory.world import A, World, rec, simple
from tidemark.core.ids import Txn
from tidemark.core.replay import Verdict
from tidemark.pipeline.run import replay

cuts = pytest.mark.parametrize("records_max", [1, 2, 1_000_000], ids=["one", "two", "all"])
spread = pytest.mark.parametrize("partitions", [1, 2, 5])


def play(records: list[SourceRecord], *, partitions: int = 1, records_max: int = 1_000_000) -> World:
    """Run the records through; a key stays in its partition. Then prove it all again."""
    world = World(records_max=records_max)
    keys = list(dict.fromkeys(record.key for record in records))
    for record in records:
        world.feed(record, partition=f"p{keys.index(record.key) % partitions}")
    world.run()
    prove(world)
    return world


def prove(world: World) -> None:
    before = world.state(A)
    findings = replay(world.process(), world.attempt(), txn_from=Txn(1), txn_to=Txn(len(world.bindings)))
    assert {finding.verdict for finding in findings} == {Verdict.IDENTICAL}
    assert world.state(A) == before


@spread
@cuts
def test_u1_updates_and_deletes_leave_the_last_value_of_each_key(partitions: int, records_max: int) -> None:
    told = ["a1", "b1", "c1", "d1", "b-", "c2", "e1", "d-", "e2"]
    records = [rec(word[0], None if word[1] == "-" else int(word[1])) for word in told]
    world = play(records, partitions=partitions, records_max=records_max)
    assert simple(world.state()) == {"a": 1, "c": 2, "e": 2}


def test_u2_a_delete_then_an_insert_in_one_transaction_is_an_insert() -> None:
    world = play([rec("k", None), rec("k", 2)])
    assert len(world.bindings) == 1
    assert simple(world.state()) == {"k": 2}


U3 = [
    rec(("p", "q"), 1), rec((None, "r"), 2), rec(("s", None), 3), rec(("t", "u"), 4),
    rec((None, "r"), 5), rec(("t", "u"), 6), rec(("s", None), 7), rec(("t", "u"), None),
]  # fmt: skip


@spread
@cuts
def test_u3_u13_a_null_key_part_is_a_value_like_any_other(partitions: int, records_max: int) -> None:
    world = play(U3, partitions=partitions, records_max=records_max)
    assert world.state() == {("p", "q"): 1, (None, "r"): 5, ("s", None): 7}


def test_u3_starting_at_offset_one_omits_the_first() -> None:
    assert play(U3[1:]).state() == {(None, "r"): 5, ("s", None): 7}


@spread
@cuts
def test_u4_keys_that_share_a_part_stay_two_keys(partitions: int, records_max: int) -> None:
    records = [rec(("A", "Z"), 1), rec(("A", "Z"), 2), rec(("B", "Z"), 3)]
    world = play(records, partitions=partitions, records_max=records_max)
    assert world.state() == {("A", "Z"): 2, ("B", "Z"): 3}


def test_u5_keys_that_differ_in_one_accent_stay_two_keys() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert simple(play([rec(composed, 1), rec(decomposed, 2)]).state()) == {composed: 1, decomposed: 2}


def test_u6_the_same_value_again_changes_nothing_in_the_feed() -> None:
    world = play([rec("k", 1), rec("k", 1), rec("k", 1)], records_max=1)
    assert world.feed_of_changes() == [("+", ("k",), 1, 1)]


def test_u6_delete_then_insert_is_present_and_deleting_what_is_absent_is_nothing() -> None:
    world = play([rec("k", 1), rec("k", None), rec("k", 2), rec("absent", None)], records_max=1)
    assert simple(world.state()) == {"k": 2}
    assert world.feed_of_changes() == [
        ("+", ("k",), 1, 1), ("-", ("k",), 1, 2), ("+", ("k",), 2, 3),
    ]  # fmt: skip


def test_u7_many_updates_of_one_key_in_one_transaction_are_one_row_and_one_change() -> None:
    world = play([rec("k", value) for value in range(10_000)])
    assert [row.value for row in world.rows()] == [9_999]
    assert world.feed_of_changes() == [("+", ("k",), 9_999, 1)]
    assert world.seals[0].source.count == 10_000


@cuts
def test_u11_an_older_sequence_never_replaces_a_newer_one(records_max: int) -> None:
    records = [
        rec("older", "new", sequence=10), rec("older", "late", sequence=5),
        rec("equal", "first", sequence=7), rec("equal", "second", sequence=7),
        rec("late delete", 1, sequence=10), rec("late delete", None, sequence=5),
        rec("deleted", None, sequence=10), rec("deleted", "late", sequence=5),
        rec("again", None, sequence=10), rec("again", "newer", sequence=11),
    ]  # fmt: skip
    world = play(records, records_max=records_max)
    assert simple(world.state()) == {"older": "new", "equal": "second", "late delete": 1, "again": "newer"}


def test_u12_one_key_in_two_partitions_of_one_transaction_is_decided_the_same_way_each_time() -> None:
    for order in ("p0", "p1"), ("p1", "p0"):
        world = World()
        for partition in order:
            world.feed(rec("k", f"from {partition}"), partition=partition)
        world.run()
        assert len(world.bindings) == 1
        assert simple(world.state()) == {"k": "from p1"}
        prove(world)


def test_u13_null_equals_null_across_transactions_and_partitions() -> None:
    world = World()
    world.commit(rec((None, None), 1))
    world.commit(rec((None, None), 2), partition="p1")
    world.commit(rec((None, "x"), 1), rec((None, "x"), None))
    assert world.state() == {(None, None): 2}
    prove(world)
