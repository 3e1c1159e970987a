"""Publishing by the key index, through the publish step and without Spark: state = fold of the log
(Invariant 18)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.keyed_log import SHARD, Change, Key, KeyedLog
from tests.support.s3 import ObjectStore
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.publish import UpToDate
from tidemark.delta import index as index_module
from tidemark.delta.commit import entry_bytes, entry_path
from tidemark.delta.compaction import copy_rows, read_source, table_schema
from tidemark.delta.index import KeyIndex
from tidemark.delta.overlay import are_equal
from tidemark.delta.state import StateTable
from tidemark.delta.store import Store
from tidemark.pipeline import publish as step
from tidemark.spark import publish


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_at(number: int) -> Iterator[None]:
    """Die before the so-manieth durable step, or after it, in turn."""
    left = [number]

    def dying(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            found = real(*args, **kwargs)
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return found

        return call

    with (
        patch.object(Store, "put_synced", dying(Store.put_synced)),
        patch.object(Store, "put_if_absent", dying(Store.put_if_absent)),
        patch.object(os, "fsync", dying(os.fsync)),
        patch.object(KeyIndex, "add", dying(KeyIndex.add)),
    ):
        yield


def rewrite(log: KeyedLog) -> None:
    """What a foreign OPTIMIZE does: the live rows are in one file of another name, in the place of all."""
    table = StateTable(log.spec.state)
    head = table.head()
    if not head.files:
        return
    sources = [read_source(table.store, file) for file in head.files.values()]
    hidden, version = table.hidden(head, head.files), head.version + 1
    made = copy_rows(table.store, sources, hidden, table_schema(head), version=version, nonce=uuid.uuid4())
    actions: list[dict[str, Any]] = [{"commitInfo": {"operation": "OPTIMIZE"}}]
    for file in head.files.values():
        vector = {"deletionVector": file.vector.action} if file.vector is not None else {}
        gone = {"path": file.path, "dataChange": False, "deletionTimestamp": 1, **vector}
        actions.append({"remove": gone})
    if made is not None:
        path = f"part-{uuid.uuid4()}.parquet"
        table.store.move(made.path, path)
        add = {"path": path, "partitionValues": {}, "size": made.bytes, "modificationTime": 1}
        actions.append({"add": add | {"dataChange": False, "stats": made.stats}})
    assert table.store.put_if_absent(entry_path(version), entry_bytes(actions))


@contextmanager
def rewritten_before_its_entry(log: KeyedLog) -> Iterator[None]:
    """The foreign rewrite comes between the look of a publisher and its commit."""
    real, done = Store.put_if_absent, []

    def late(store: Store, path: str, data: bytes) -> bool:
        if not done and store.uri == log.spec.state:
            done.append(path)
            rewrite(log)
        return real(store, path, data)

    with patch.object(Store, "put_if_absent", late):
        yield


KEYS: st.SearchStrategy[Key] = st.tuples(st.sampled_from(["x", "y", "", None]), st.sampled_from([0, 1, None]))
CHANGES = st.lists(
    st.builds(Change, KEYS, st.sampled_from(["1", "2", "3", None]), st.integers(0, 4)),
    min_size=1, max_size=5, unique_by=lambda one: one.key,
)  # fmt: skip
STEPS_OF_A_PUBLISH = 60
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), CHANGES),
        st.tuples(st.just("publish"), st.none()),
        st.tuples(st.just("die"), st.integers(1, STEPS_OF_A_PUBLISH)),
        st.tuples(st.sampled_from(["rewrite", "rewrite amid a publish"]), st.none()),
        st.tuples(st.sampled_from(["reopen", "lose the index", "keep a copy", "restore it with"]), st.none()),
    ),
    min_size=2, max_size=14,
)  # fmt: skip


Rows = list[tuple[Key, str]]


def attacked(root: Path, steps: list[tuple[str, Any]], *, ordered: bool) -> tuple[Rows, Rows]:
    """Go through the steps and publish once more: the rows of the state, and those of the fold. They are
    compared after each publish too."""
    log, copy = KeyedLog(root, ordered=ordered), root / "copy"

    def publish() -> None:
        step.publish(log.control, log.plane, SHARD, token="p")  # type: ignore[arg-type]
        log.check()

    for what, given_ in [*steps, ("append", [Change(("x", 0), "last", 9)]), ("publish", None)]:
        if what == "append":
            log.append(*given_)
        elif what == "publish" and log.txn:
            publish()
        elif what == "die" and log.txn:
            with killed_at(given_):
                try:
                    step.publish(log.control, log.plane, SHARD, token="dead")  # type: ignore[arg-type]
                except Killed:
                    log.reopen()
        elif what == "rewrite":
            rewrite(log)
        elif what == "rewrite amid a publish" and log.txn:
            with rewritten_before_its_entry(log):
                publish()
        elif what == "reopen":
            log.reopen()
        elif what == "lose the index":
            shutil.rmtree(log.index, ignore_errors=True)
            log.reopen()
        elif what == "keep a copy" and log.index.exists():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(log.index, copy)
        elif what == "restore it with" and copy.exists():
            shutil.rmtree(log.index, ignore_errors=True)
            shutil.copytree(copy, log.index)
            log.reopen()
    found = log.rows(), sorted(log.expected().items(), key=repr)
    shutil.rmtree(root)
    return found


@pytest.mark.parametrize("ordered", [False, True])
@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_whatever_happens_the_state_is_the_fold_of_its_log_and_keys_are_unique(
    tmp_path_factory: pytest.TempPathFactory, ordered: bool, steps: list[tuple[str, Any]]
) -> None:
    found, expected = attacked(tmp_path_factory.mktemp("log"), steps, ordered=ordered)
    assert found == expected


@pytest.mark.sweep
@pytest.mark.parametrize("ordered", [False, True])
@given(steps=STEPS)
@settings(max_examples=1500, deadline=None)
def test_whatever_happens_in_three_thousand_series(
    tmp_path_factory: pytest.TempPathFactory, ordered: bool, steps: list[tuple[str, Any]]
) -> None:
    found, expected = attacked(tmp_path_factory.mktemp("log"), steps, ordered=ordered)
    assert found == expected


def test_a_row_that_is_the_same_again_is_no_change_and_one_with_an_equal_digest_is(tmp_path: Path) -> None:
    """64 bits are not proof: rows are compared."""
    log = KeyedLog(tmp_path)
    log.append(Change(("x", 1), "1"), Change(("y", 1), "1"))
    log.publish()
    log.append(Change(("x", 1), "1"), Change(("y", 1), "2"))
    version = log.publish().version
    added = [
        one for one in DeltaTable(log.spec.state, version=version).file_uris() if f"v{version:020}" in one
    ]
    assert [pq.read_metadata(one).num_rows for one in added] == [1]
    with patch("tests.support.keyed_log.digest_of", lambda row: 7):
        log.append(Change(("x", 1), "5"))
        log.publish()
        log.append(Change(("x", 1), "6"))
        log.publish()
    assert dict(log.rows())["x", 1] == "6"


def test_regression_rows_with_far_times_in_a_list_are_written_again_instead_of_stopping_every_publish() -> (
    None
):
    far = pa.table({"a": pa.array([[2**60], [0]], pa.list_(pa.timestamp("us")))})
    assert are_equal(far, far, ["a"]).tolist() == [False, False]
    near = pa.table({"a": pa.array([[0], [1]], pa.list_(pa.timestamp("us")))})
    assert are_equal(near, near, ["a"]).tolist() == [True, True]


def test_an_index_that_forgets_a_row_is_found_by_the_proof_of_unique_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest that is carried forward agrees with both rows there, so it does not tell."""
    log = KeyedLog(tmp_path)
    log.append(Change(("x", 1), "1"), Change(("y", 1), "1"))
    log.publish()
    real = index_module._is_hidden

    def forgets(*args: Any) -> Any:
        return np.ones(len(real(*args)), np.bool_)

    monkeypatch.setattr(index_module, "_is_hidden", forgets)
    log.append(Change(("x", 1), "2"))
    log.publish()
    monkeypatch.undo()
    assert [key for key, _ in log.rows()].count(("x", 1)) == 2
    log.append(Change(("x", 1), "3"))
    with pytest.raises(InvariantViolation, match="two live rows"):
        log.publish()


def test_regression_two_publishes_after_the_look_at_the_record_are_no_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, rival = KeyedLog(tmp_path), KeyedLog(tmp_path)
    log.append(Change(("x", 1), "1"))
    log.publish()
    rival.txn = log.txn
    real, overtaken = log.plane.state_status, []

    def state_status(*args: Any) -> Any:
        if not overtaken:
            for value in ("2", "3"):
                rival.append(Change(("x", 1), value))
                overtaken.append(rival.publish())
        return real(*args)

    monkeypatch.setattr(log.plane, "state_status", state_status)
    done = step.publish(log.control, log.plane, SHARD, token=WriterToken("late"))
    assert (done, log.rows()) == (UpToDate(Txn(3)), [(("x", 1), "3")])


def test_what_the_index_is_not_for_is_left_to_spark_and_nothing_is_written_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = KeyedLog(tmp_path, ordered=True)
    log.append(Change(("x", 1), "1", 1), Change(("y", 1), None, 1))
    log.publish()
    log.append(Change(("x", 1), "1", 1), Change(("y", 2), None, 1))

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    bounds = {"TAIL_ROWS_MAX": 1, "TAIL_BYTES_MAX": 1, "ALIKE_BYTES_MAX": 1}
    for name, bound in bounds.items():
        monkeypatch.setattr(publish, name, bound)
        with pytest.raises(AssertionError, match="Spark was started"):
            log.publish()
        monkeypatch.undo()
    shutil.rmtree(log.index)
    log.reopen()
    monkeypatch.setattr(KeyIndex, "add", full)
    with pytest.raises(AssertionError, match="Spark was started"):
        log.publish()
    monkeypatch.undo()
    assert DeltaTable(log.spec.tombstones).version() == 0
    log.publish()
    log.check()


def test_a_damaged_part_is_named_and_the_state_stays_as_it_is(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path)
    log.append(*[Change((f"key {number}", number), "a value") for number in range(50)])
    (file,) = Path(log.spec.log).glob("_txn-*/*/*.parquet")
    whole = file.read_bytes()
    values = pq.read_metadata(file).row_group(0).column(2)
    at = values.data_page_offset + values.total_compressed_size - 5
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(Determinate, match=f"{file.name} of .* can't be read"):
        log.publish()
    file.write_bytes(whole)
    log.publish()
    log.check()


def test_what_dead_processes_left_of_runs_is_removed_and_what_living_ones_write_stays(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path)
    log.append(Change(("x", 1), "1"))
    log.publish()
    log.append(Change(("x", 1), "2"))
    log.publish()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = [log.index / "state" / f"a.run.{number}.tmp" for number in (dead.pid, os.getpid())]
    for path in left:
        path.touch()
    log.reopen()
    log.append(Change(("x", 1), "3"))
    log.publish()
    assert [path.exists() for path in left] == [False, True]
    assert {path.stat().st_mode & 0o077 for path in log.index.rglob("*.run")} == {0}


@pytest.mark.server
def test_a_state_on_an_object_store_is_published_by_an_index_of_this_machine(
    s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    log = KeyedLog(f"s3://{s3.bucket}/published/{tmp_path.name}", ordered=True, options=s3.options)
    for changes in ([("1", 1), ("2", 1)], [("1", 2), (None, 3)], [("3", 2), ("3", 2)]):
        log.append(*[Change((name, 0), value, at) for name, (value, at) in zip("xy", changes, strict=True)])
        log.publish()
        log.reopen()
    log.check()
    assert log.rows() == [(("x", 0), "3")]
    (folder,) = tmp_path.glob("tidemark-*")
    assert folder.stat().st_mode & 0o077 == 0
    assert len(list(folder.glob("*/*.run"))) >= 2, "the state's and the tombstones'"
