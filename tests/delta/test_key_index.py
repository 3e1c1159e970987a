"""The key index finds what is there, is never believed beyond the head, and its mistakes are seen."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import keyed_log
from tests.support.keyed_log import KeyedLog
from tests.support.state_table import Hand, rows_of
from tidemark.core.checksum import ENCODING
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.delta import index as index_module
from tidemark.delta.head import LiveFile
from tidemark.delta.index import KeyIndex, chosen_for_merge
from tidemark.delta.index_runs import DataFile, Run, RunDamaged, RunScope, sorted_records, write_run
from tidemark.delta.overlay import overlay
from tidemark.delta.state_files import RowKeys, digest_of, keys_of

TABLE_ID = "table-1"
SCOPE = RunScope(TABLE_ID, ENCODING)


@pytest.fixture
def state(tmp_path: Path) -> Hand:
    made = Hand(tmp_path / "state")
    made.create()
    return made


@pytest.fixture
def index(tmp_path: Path) -> KeyIndex:
    return KeyIndex(tmp_path / "index", SCOPE)


def keys_in(state: Hand, file: LiveFile) -> RowKeys:
    rows = pq.read_table(state.root / file.location)
    return keys_of(rows)


def cover(index: KeyIndex, state: Hand) -> None:
    """Have every live file in the index."""
    for file in index.missing(state.table.head()):
        index.add({DataFile(file.path, file.bytes, file.rows): keys_in(state, file)})


def check_index(index: KeyIndex, state: Hand) -> None:
    """It says of each live file's rows what the file says, each row once."""
    live = state.table.head().files
    found, wanted = [], []
    for run in index.runs:
        for hi, lo, digest, row, file in run.all()[["hi", "lo", "digest", "row", "file"]].tolist():
            if run.files[file].path in live:
                found.append((run.files[file].path, row, hi, lo, digest))
    for path, file in live.items():
        keys = keys_in(state, file)
        rows = zip(keys.hi.tolist(), keys.lo.tolist(), keys.digest.view(np.uint64).tolist(), strict=True)
        wanted += [(path, row, *one) for row, one in enumerate(rows)]
    assert sorted(found) == sorted(wanted)


def run_of(path: Path, hi: list[int], lo: list[int] | None = None) -> Run:
    keys = np.array(hi, np.uint64)
    low = np.array(lo if lo is not None else range(len(hi)), np.uint64)
    records = sorted_records(keys, low, np.arange(len(hi), dtype=np.int64))
    return write_run(path, SCOPE, [DataFile("f", 1, len(hi))], [records])


numbers = st.integers(0, 40) | st.integers(0, (1 << 64) - 1)


@settings(deadline=None)
@given(st.lists(numbers, min_size=1, max_size=200), st.lists(numbers, max_size=30), st.booleans())
def test_a_run_finds_every_record_of_a_key_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, there: list[int], asked: list[int], is_same: bool
) -> None:
    """Keys that agree in their first half too, and one whose records fill several blocks."""
    there += [7] * (100 if is_same else 0)
    run = run_of(tmp_path_factory.mktemp("run") / "a.run", there, [key % 3 for key in there])
    wanted = sorted(set(asked) | {7})
    query, found = run.find(np.array(wanted, np.uint64), np.array([key % 3 for key in wanted], np.uint64))
    expected = sorted(
        (at, row) for at, key in enumerate(wanted) for row, one in enumerate(there) if one == key
    )
    assert sorted(zip(query.tolist(), found["row"].tolist(), strict=True)) == expected
    assert len(run.find(np.array([7], np.uint64), np.array([9], np.uint64))[1]) == 0


@settings(deadline=None)
@given(st.lists(numbers, min_size=1, max_size=150), numbers, numbers)
def test_a_range_of_a_run_is_all_of_it(
    tmp_path_factory: pytest.TempPathFactory, there: list[int], one: int, other: int
) -> None:
    run = run_of(tmp_path_factory.mktemp("run") / "a.run", there)
    low, high = sorted((one, other))
    assert run.between(low, high)["hi"].tolist() == sorted(key for key in there if low <= key < high)
    assert run.between(0, 1 << 64)["hi"].tolist() == run.all()["hi"].tolist() == sorted(there)


def test_every_changed_byte_of_a_run_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    run_of(path, [key * 977 for key in range(70)])
    whole = path.read_bytes()
    head = 32 + int.from_bytes(whole[8:16], "little") + 16 * 5
    start = len(whole) - 5 * 16 * 40
    changed = {*range(head), *range(start, len(whole), 7), len(whole) - 1}
    for at in changed:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(RunDamaged):
            Run(path).all()
    for size in (0, 10, head, start, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(RunDamaged):
            Run(path)
    block = 16 * 40
    swapped = whole[:start] + whole[start + block : start + 2 * block] + whole[start : start + block]
    path.write_bytes(swapped + whole[start + 2 * block :])
    with pytest.raises(RunDamaged, match="checksums"):
        Run(path).all()


def test_a_run_has_as_many_records_as_its_files_have_rows(tmp_path: Path) -> None:
    records = sorted_records(*(np.arange(40, dtype=np.uint64) for _ in range(2)), np.arange(40))
    for rows in (1, 32, 49):
        with pytest.raises(RunDamaged, match=r"records|blocks"):
            write_run(tmp_path / "a.run", SCOPE, [DataFile("f", 1, rows)], [records])
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.integers(1, 1000), max_size=12))
def test_after_a_merge_each_run_is_larger_than_all_that_follow(sizes: list[int]) -> None:
    sizes.sort(reverse=True)
    for _ in range(len(sizes)):
        chosen = chosen_for_merge(sizes)
        if chosen == len(sizes):
            break
        sizes = sorted([*sizes[:chosen], sum(sizes[chosen:])], reverse=True)
    assert all(size > sum(sizes[at + 1 :]) for at, size in enumerate(sizes))


def test_runs_of_another_table_or_encoding_are_not_used_and_go(tmp_path: Path) -> None:
    for scope in (RunScope("other", ENCODING), RunScope(TABLE_ID, ENCODING + 1)):
        run_of(tmp_path / "a.run", [1, 2])
        assert len(KeyIndex(tmp_path, SCOPE).runs) == 1
        assert KeyIndex(tmp_path, scope).runs == ()
        assert list(tmp_path.iterdir()) == []


def test_a_run_is_for_its_owners_eyes_only(tmp_path: Path, state: Hand, index: KeyIndex) -> None:
    state.publish({1: "a"})
    cover(index, state)
    (file,) = (tmp_path / "index").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_merging_leaves_out_files_that_are_gone(state: Hand, index: KeyIndex) -> None:
    for value in "abc":
        state.publish({1: value, 2: value})
        cover(index, state)
    index.merge(state.table.head())
    assert [run.records for run in index.runs] == [2]
    check_index(index, state)


def test_a_merge_in_many_parts_is_the_merge_in_one(
    state: Hand, index: KeyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "MERGE_RECORDS", 7)
    for at in range(6):
        state.publish(dict.fromkeys(range(at * 20, at * 20 + 20), "x"))
        cover(index, state)
    index.merge(state.table.head())
    assert [run.records for run in index.runs] == [120]
    check_index(index, state)


def test_what_a_merge_that_died_left_behind_is_found_once(
    tmp_path: Path, state: Hand, index: KeyIndex
) -> None:
    for at in range(2):
        state.publish({at: "x", at + 10: "x"})
        cover(index, state)
    before = {run.path: run.path.read_bytes() for run in index.runs}
    index.merge(state.table.head())
    for path, data in before.items():
        path.write_bytes(data)
    again, head = KeyIndex(tmp_path / "index", SCOPE), state.table.head()
    assert len(again.runs) == 3
    tail = rows_of(dict.fromkeys((0, 1, 10, 11), "y"))
    hits = again.find(keys_of(tail), head, lambda paths: state.table.hidden(head, paths))
    assert sorted(hits.query.tolist()) == [0, 1, 2, 3]
    again.merge(head)
    check_index(again, state)


def test_a_file_that_the_index_lacks_stops_a_lookup(state: Hand, index: KeyIndex) -> None:
    state.publish({1: "a"})
    head, tail = state.table.head(), rows_of({1: "b"})
    with pytest.raises(InvariantViolation, match="does not have"):
        index.find(keys_of(tail), head, lambda paths: state.table.hidden(head, paths))


def test_a_file_of_another_size_is_not_the_one_that_a_run_names(state: Hand, index: KeyIndex) -> None:
    """Path, size and rows must all agree: what the run says was true of another file."""
    state.publish({1: "a", 2: "a"})
    head = state.table.head()
    (file,) = head.files.values()
    for stale in (
        DataFile(file.path, file.bytes + 1, file.rows),
        DataFile(f"x{file.path}", file.bytes, file.rows),
    ):
        index.add({stale: keys_in(state, file)})
    assert index.missing(head) == [file]


def damage(run: Run) -> None:
    with run.path.open("r+b") as file:
        file.seek(-40 * 16 * 3, 2)
        file.write(b"damaged")


def test_a_damaged_run_stops_a_merge_and_is_made_again(state: Hand, index: KeyIndex) -> None:
    for at in range(2):
        state.publish(dict.fromkeys(range(at * 40, at * 40 + 40), "a"))
        cover(index, state)
    for run in index.runs:
        damage(run)
    with pytest.raises(Determinate, match="builds it again"):
        index.merge(state.table.head())
    cover(index, state)
    check_index(index, state)


def test_a_damaged_block_stops_one_publish_and_its_run_is_made_again(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path)
    changes = [[keyed_log.Change(("x", key), value) for key in range(80)] for value in "ab"]
    log.append(*changes[0])
    log.publish()
    (path,) = (log.index / "state").glob("*.run")
    damage(Run(path))
    log.reopen()
    log.append(*changes[1])
    with pytest.raises(Determinate, match="builds it again"):
        log.publish()
    log.publish()
    log.check()


def test_an_older_sequence_loses_to_the_state_and_an_equal_one_wins(tmp_path: Path) -> None:
    hi = np.array([1, 2, 3], np.uint64)
    there = RowKeys(hi, hi, np.array([10, 20, 30]), np.array([5, 5, 5]))
    index = KeyIndex(tmp_path, SCOPE)
    index.add({DataFile("f", 9, 3): there})
    tail = RowKeys(hi, hi, np.array([11, 21, 31]), np.array([4, 5, 6]))
    _, records = index.runs[0].find(hi, hi)
    hits = index_module.Hits(("f",), np.arange(3), records)
    found = overlay(tail, np.ones(3, np.int64), np.ones(3, np.bool_), hits, base=digest_of(there.digest))
    assert found.comes.tolist() == [False, True, True]
    assert {path: set(rows) for path, rows in found.hidden.items()} == {"f": {1, 2}}
    assert found.digest == digest_of(np.array([10, 21, 31]))


def test_regression_a_run_that_another_process_merges_and_removes_at_once_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def and_gone(self: Path, target: Path) -> Path:
        made = replace(self, target)
        made.unlink()
        return made

    monkeypatch.setattr(Path, "replace", and_gone)
    hi = np.array([1, 2], np.uint64)
    records = sorted_records(hi, hi, hi)
    run = write_run(tmp_path / "a.run", SCOPE, [DataFile("f", 1, 2)], [records])
    assert run.path == tmp_path / "a.run"
    assert run.all()["hi"].tolist() == [1, 2]
