"""A correction in a shard with a sequence: it wins its key, and later records compete with it. Every story of
a key is a key of one log, which is published after other transactions each time; without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.keyed_log import SHARD, Change, KeyedLog
from tidemark.core.ids import TXN_NONE, Txn, WriterToken
from tidemark.core.ledger import Conflict
from tidemark.pipeline import publish as step
from tidemark.spark import state as state_module

B = 3
"""The correction, between two transactions before and two after it."""

Record = tuple[str, int] | None
UPSERTS: list[Record] = [("U", 1), ("U", 2), ("U", 3)]
DELETES: list[Record] = [("D", 1), ("D", 2), ("D", 3)]
ANY: list[Record] = [None, *UPSERTS, *DELETES]


def stories(*options: list[Record]) -> list[tuple[Record, ...]]:
    return list(product(*options))


def transactions(told: list[tuple[Record, ...]]) -> Iterator[list[Change]]:
    """What each key's story has in each transaction; the values are all different."""
    for txn in range(1, len(told[0]) + 1):
        found = ((number, story[txn - 1]) for number, story in enumerate(told))
        yield [
            Change((f"{number}", 0), f"{number} at {txn}" if record[0] == "U" else None, record[1])
            for number, record in found
            if record is not None
        ]


@pytest.mark.parametrize(
    ("before", "publishes"),
    [
        (ANY, {5}),
        (ANY, {3, 5}),
        (ANY, {3, 4, 5}),
        (ANY, {4, 5}),
        # Where tombstones were published before it, Spark removes those that it voids.
        ([None, *UPSERTS], {1, 2, 3, 4, 5}),
        ([None, *UPSERTS], {2, 5}),
        ([None, *UPSERTS], {1, 4, 5}),
    ],
)
def test_the_index_gives_the_fold_of_all_stories_with_a_correction_whenever_it_publishes(
    tmp_path: Path, before: list[Record], publishes: set[int]
) -> None:
    log = KeyedLog(tmp_path, ordered=True)
    for txn, changes in enumerate(transactions(stories(before, before, ANY, ANY, ANY)), start=1):
        log.append(*changes, corrects=txn == B)
        if txn in publishes:
            log.publish()
            log.check()
    assert log.rows() == sorted(log.expected().items(), key=repr)


def dead(log: KeyedLog) -> DeltaTable:
    return DeltaTable(log.spec.tombstones)


def test_a_publisher_that_slept_through_a_correction_brings_no_tombstone_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = KeyedLog(tmp_path, ordered=True)
    log.append(Change(("x", 0), "1", 1))
    log.publish()
    log.append(Change(("x", 0), None, 9))
    slept = KeyedLog(tmp_path, ordered=True)
    real, woken = state_module.SparkStatePlane._stands_at, []

    def stands_at(plane: Any, *args: Any) -> bool:
        found = real(plane, *args)
        if plane is slept.plane and not woken:
            woken.append(True)
            log.append(Change(("x", 0), "2", 2), corrects=True)
            # The other publisher writes tombstones, and dies before its commit.
            with monkeypatch.context() as patch:
                patch.setattr(state_module.SparkStatePlane, "_commit", lambda *_, **__: Conflict())
                patch.setattr(step, "STEPS_MAX", 1)
                with pytest.raises(Exception, match="was published 1 times meanwhile"):
                    log.publish()
            assert dead(log).version() == 0
        return found

    monkeypatch.setattr(state_module.SparkStatePlane, "_stands_at", stands_at)
    done = step.publish(slept.control, slept.plane, SHARD, token=WriterToken("slept"))
    assert isinstance(done, step.Published)
    assert (woken, done.txn) == ([True], Txn(3)), "it has decided again"
    rows = [pq.read_table(path.replace("file://", "")).num_rows for path in dead(log).file_uris()]
    assert rows == []
    # With the tombstone of sequence 9, this one would be buried.
    log.append(Change(("x", 0), "3", 5))
    log.publish()
    log.check()
    assert log.rows() == [(("x", 0), "3")]
    assert done.commit.tombstones > TXN_NONE - 1


def test_a_correction_without_a_sequence_is_left_to_spark_before_anything_is_written(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path, ordered=True)
    log.append(Change(("x", 0), "1", 1))
    log.publish()
    log.append(Change(("x", 0), None, None), corrects=True)
    with pytest.raises(AssertionError, match="Spark was started"):
        log.publish()
    assert not Path(log.spec.tombstones).exists()


def test_published_tombstones_that_a_correction_voids_are_removed_by_spark(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path, ordered=True)
    log.append(Change(("x", 0), None, 9), Change(("y", 0), None, 9))
    log.publish()
    log.append(Change(("z", 0), "1", 1), corrects=True)
    log.publish()
    log.append(Change(("x", 0), "1", 1), corrects=True)
    with pytest.raises(AssertionError, match="Spark was started"):
        log.publish()
    assert log.rows() == [(("z", 0), "1")]
