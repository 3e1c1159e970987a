"""Mistakes of the key index, each made by the code that makes its records: a publish refuses them, or
`tidemark verify` finds what they have done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support.state import SHARD, StateRig, gone
from tidemark.core.errors import InvariantViolation
from tidemark.core.publish import StateOverwritten
from tidemark.delta import index as index_module
from tidemark.delta.head import read_head
from tidemark.delta.index_runs import DataFile, Records, sorted_records
from tidemark.delta.store import Store
from tidemark.pipeline import publish as step

pytestmark = pytest.mark.spark
Mutant = Callable[[Records], Records]
KEYS = [f"key {number}" for number in range(8)]


def forget(records: Records) -> Records:
    """A row is there under a key that nobody asks for."""
    records["hi"][:1] ^= np.uint64(1)
    return records


def duplicate(records: Records) -> Records:
    """A key has two rows, one of them another key's."""
    records["hi"][1], records["lo"][1] = records["hi"][0], records["lo"][0]
    return records


def misplace(records: Records) -> Records:
    """Two rows have each other's places."""
    records["row"][[0, 1]] = records["row"][[1, 0]]
    return records


def wrong_digest(records: Records) -> Records:
    records["digest"] ^= np.uint64(1 << 40)
    return records


MISTAKES: list[tuple[Mutant, str]] = [
    (forget, "1 keys of version 1 have several rows"),
    (duplicate, "two live rows or more"),
    (misplace, "8 rows with digest"),
    (wrong_digest, "8 rows with digest"),
]


def test_a_mistake_of_the_index_is_refused_or_found(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []

    def mutated(mutant: Mutant) -> Callable[..., Records]:
        def made(*args: Any, **known: Any) -> Records:
            records = mutant(sorted_records(*args, **known))
            rows.append(records["row"][0])
            return records

        return made

    for mutant, told in MISTAKES:
        rig = StateRig(spark, tmp_path / mutant.__name__)
        rig.append(*[(key, "old") for key in KEYS])
        with monkeypatch.context() as patched:
            patched.setattr(index_module, "sorted_records", mutated(mutant))
            rig.publish()
        # The key whose record is wrong, and no other.
        rig.append((KEYS[rows[-1]], "new"))
        with pytest.raises((InvariantViolation, StateOverwritten), match=told):
            published_and_verified(rig)


def test_a_run_that_is_taken_for_another_file_s_is_found(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale file: the run of a file that was rewritten is used for the file that replaced it."""
    rig = StateRig(spark, tmp_path / "stale")
    rig.append(*[(key, "old") for key in KEYS])
    rig.publish()
    (stale,) = read_head(Store(rig.spec.state, {})).files.values()
    rig.append(gone(KEYS[0]), ("another key", "old"))
    rig.rebuild()
    known = DataFile(stale.path, stale.bytes, stale.rows)
    (rewritten,) = [
        path
        for path in read_head(Store(rig.spec.state, {})).files
        if "another key" in pq.read_table(f"{rig.spec.state}/{path}")["k"].to_pylist()
    ]
    real = index_module._data_file
    monkeypatch.setattr(
        index_module, "_data_file", lambda file: known if file.path == rewritten else real(file)
    )
    rig.append(("another key", "new"))
    with pytest.raises(StateOverwritten, match=r"1 keys of version \d+ have several rows"):
        published_and_verified(rig)


def published_and_verified(rig: StateRig) -> None:
    rig.publish()
    step.verify_state(rig.control, rig.plane, SHARD)
