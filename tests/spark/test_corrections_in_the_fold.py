"""A correction in a shard with a sequence, by Spark: publish by scan, the fresh read and rebuild give the
fold of every story of a key, whenever states are published. See `tests/delta` for the index."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.memory.fold import Change, Position, fold, visible
from tests.support.state import SHARD, Row, StateRig, gone, ordered
from tidemark.core.ids import TXN_NONE, Txn
from tidemark.pipeline.publish import verify_state

pytestmark = pytest.mark.spark

B = 3
RECORDS = [None, *product("UD", (1, 2, 3))]
STORIES = [
    (*story, ("U", 2))
    for story in product(
        RECORDS, [None, ("U", 2), ("D", 3)], [*RECORDS, ("D", None)], RECORDS, [None, ("D", 2)]
    )
]
"""Two transactions, the correction, and three transactions. The last record is of every key, so it shows
which tombstones there are."""
LAST = len(STORIES[0])


def changes_at(txn: int) -> list[Change]:
    since = Txn(txn if txn == B else TXN_NONE)
    found = ((f"{number}", story[txn - 1]) for number, story in enumerate(STORIES))
    return [
        Change(
            (key,),
            f"{key} at {txn}" if record[0] == "U" else None,
            Txn(txn),
            Position("p", 0),
            record[1],
            since,
        )
        for key, record in found
        if record is not None
    ]


def rows_at(txn: int) -> list[Row]:
    """By the core's fold."""
    folded = fold(change for one in range(1, txn + 1) for change in changes_at(one))
    return ordered([(key[0], value, folded[key].sequence) for key, value in visible(folded).items()])


def append(rig: StateRig, *, upto: int) -> None:
    while rig.txn < upto:
        changes = changes_at(rig.txn + 1)
        rig.append(
            *[
                gone(*one.key, one.sequence) if one.deletes else (*one.key, one.value, one.sequence)
                for one in changes
            ],
            corrects=rig.txn + 1 == B,
        )


def made(spark: SparkSession, root: Path, *, says_keys: bool = False) -> StateRig:
    root.mkdir()
    return StateRig(spark, root, "k STRING, v STRING, s INT", sequence_by="s", says_keys=says_keys)


def check(rig: StateRig) -> None:
    """The state is the fold of the log; in the end its digest, which is carried from publish to publish, is
    that of its rows."""
    assert rig.state() == rows_at(rig.txn)
    if rig.txn == LAST:
        assert verify_state(rig.control, rig.plane, SHARD) is not None


@pytest.mark.parametrize("says_keys", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_published_after_each_transaction(spark: SparkSession, tmp_path: Path, says_keys: bool) -> None:
    rig = made(spark, tmp_path / "p", says_keys=says_keys)
    for txn in range(1, LAST + 1):
        append(rig, upto=txn)
        if txn in (B, B + 1):
            assert rig.fresh() == rows_at(txn)
        rig.publish()
        check(rig)


def test_with_a_correction_amid_a_long_tail(spark: SparkSession, tmp_path: Path) -> None:
    rig = made(spark, tmp_path / "p")
    append(rig, upto=2)
    rig.publish()
    base = rig.last
    append(rig, upto=5)
    assert rig.fresh() == rows_at(5)
    rig.publish()
    check(rig)
    # A rebuild from an earlier state, and one from nothing, leave the right tombstones too.
    for number, start in enumerate((base, None)):
        rig.rebuild(token=f"rebuilds{number}", base=start)
        check(rig)
        append(rig, upto=5)
    append(rig, upto=LAST)
    rig.publish()
    check(rig)


def test_without_a_state(spark: SparkSession, tmp_path: Path) -> None:
    rig = made(spark, tmp_path / "p")
    append(rig, upto=5)
    assert rig.fresh() == rows_at(5)
    rig.publish()
    check(rig)
    append(rig, upto=LAST)
    assert rig.fresh() == rows_at(LAST)
    rig.publish()
    check(rig)
