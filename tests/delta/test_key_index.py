"""The key index finds what is there, is never believed beyond the head, and its mistakes are seen."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.indexed import TABLE_ID, Indexed, key_hash, rows_of
from tests.support.state_table import Hand
from tidemark.core.checksum import ENCODING
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.ledger import Committed
from tidemark.delta import index as index_module
from tidemark.delta.audit import Finding
from tidemark.delta.index import KeyIndex, chosen_for_merge
from tidemark.delta.overlay import overlay
from tidemark.delta.runs import DataFile, Records, Run, RunDamaged, RunScope, sorted_records, write_run
from tidemark.delta.state_files import DIGEST, KEY, RowKeys, digest_of, keys_of

SCOPE = RunScope(TABLE_ID, ENCODING)


def by_delta_rs(state: Indexed) -> dict[int, str]:
    return Hand(state.root / "state").by_delta_rs()


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


def test_publishes_through_the_index_are_read_right_and_keys_stay_unique(tmp_path: Path) -> None:
    state = Indexed(tmp_path)
    for at in range(12):
        upserts = dict.fromkeys(range(at % 5, 300, 3), f"{at}")
        assert isinstance(state.publish(upserts, set(range(at, 300, 11)) - upserts.keys()), Committed)
        state.index.merge(state.table.head())
    assert by_delta_rs(state) == state.model
    state.cover(state.table.head())
    assert (state.verify(), state.verify_index()) == ([], [])
    state.index.merge(state.table.head())
    assert state.verify_index() == []
    sizes = [run.records for run in state.index.runs]
    assert all(size > sum(sizes[at + 1 :]) for at, size in enumerate(sizes))


steps = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 15), st.text(max_size=2), max_size=8),
        st.sets(st.integers(0, 15), max_size=6),
        st.sampled_from(["", "merge", "lose", "lose one", "damage", "reopen", "old", "checkpoint"]),
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(steps)
def test_whatever_becomes_of_the_index_the_state_is_the_fold(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[dict[int, str], set[int], str]],
) -> None:
    """Runs lost, damaged, brought back from before; keys unique, counts and digest right."""
    state = Indexed(tmp_path_factory.mktemp("any"))
    old: dict[Path, bytes] = {}
    for upserts, deletes, accident in steps:
        assert isinstance(state.publish(upserts, deletes - upserts.keys()), Committed)
        runs = [run.path for run in state.index.runs]
        match accident:
            case "merge":
                old |= {path: path.read_bytes() for path in runs}
                state.index.merge(state.table.head())
            case "checkpoint":
                DeltaTable(str(state.root / "state")).create_checkpoint()
            case "lose" | "lose one":
                for path in runs[: None if accident == "lose" else 1]:
                    path.unlink()
            case "damage":
                for path in runs:
                    path.write_bytes(path.read_bytes()[:-5])
            case "old":
                # As if a merge had died before it deleted what it merged.
                for path, data in old.items():
                    path.write_bytes(data)
        if accident not in ("", "merge", "checkpoint"):
            state.reopen()
    assert state.verify() == []
    head = state.table.head()
    assert (head.rows, state.digest.count) == (len(state.model), len(state.model))
    state.cover(head)
    assert state.verify_index() == []
    assert by_delta_rs(state) == state.model


def test_runs_of_another_table_or_encoding_are_not_used_and_go(tmp_path: Path) -> None:
    state = Indexed(tmp_path)
    state.publish({1: "a"})
    state.publish({2: "a"})
    assert len(state.index.runs) == 1
    for scope in (RunScope("other", ENCODING), RunScope(TABLE_ID, ENCODING + 1)):
        assert KeyIndex(tmp_path / "index", scope).runs == ()
    assert list((tmp_path / "index").iterdir()) == []


def test_a_run_is_for_its_owners_eyes_only(tmp_path: Path) -> None:
    state = Indexed(tmp_path)
    state.publish({1: "a"})
    state.cover(state.table.head())
    (file,) = (tmp_path / "index").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_merging_leaves_out_files_that_are_gone(tmp_path: Path) -> None:
    state = Indexed(tmp_path)
    for value in "abc":
        state.publish({1: value, 2: value})
        state.cover(state.table.head())
    state.index.merge(state.table.head())
    assert [run.records for run in state.index.runs] == [2]
    assert state.verify_index() == []


def test_a_merge_in_many_parts_is_the_merge_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MERGE_RECORDS", 7)
    state = Indexed(tmp_path)
    for at in range(6):
        state.publish(dict.fromkeys(range(at * 20, at * 20 + 20), "x"))
        state.cover(state.table.head())
    state.index.merge(state.table.head())
    assert [run.records for run in state.index.runs] == [120]
    assert state.verify_index() == []


def test_a_file_that_the_index_lacks_stops_a_lookup(tmp_path: Path) -> None:
    state = Indexed(tmp_path)
    state.publish({1: "a"})
    head, tail = state.table.head(), rows_of({1: "b"})
    with pytest.raises(InvariantViolation, match="does not have"):
        state.index.find(
            keys_of(tail[KEY], tail[DIGEST]), head, lambda paths: state.table.hidden(head, paths)
        )


@pytest.mark.parametrize("is_merged", [False, True])
def test_a_block_that_is_damaged_is_met_once_and_its_run_is_made_again(
    tmp_path: Path, is_merged: bool
) -> None:
    state = Indexed(tmp_path)
    for at in range(2):
        state.publish(dict.fromkeys(range(at * 40, at * 40 + 40), "a"))
        state.cover(state.table.head())
    for run in state.index.runs:
        with run.path.open("r+b") as file:
            file.seek(-40 * 16 * 3, 2)
            file.write(b"damaged")
    if is_merged:
        with pytest.raises(Determinate, match="made again"):
            state.index.merge(state.table.head())
    else:
        # Once for each run.
        for _ in range(2):
            with pytest.raises(Determinate, match="made again"):
                state.publish(dict.fromkeys(range(80), "b"))
    assert isinstance(state.publish(dict.fromkeys(range(80), "b")), Committed)
    assert (state.verify(), by_delta_rs(state)) == ([], dict.fromkeys(range(80), "b"))


def test_an_older_sequence_loses_to_the_state_and_an_equal_one_wins(tmp_path: Path) -> None:
    hi = np.array([1, 2, 3], np.uint64)
    there = RowKeys(hi, hi, np.array([10, 20, 30]), np.array([5, 5, 5]))
    index = KeyIndex(tmp_path, SCOPE)
    index.add({DataFile("f", 9, 3): there})
    tail = RowKeys(hi, hi, np.array([11, 21, 31]), np.array([4, 5, 6]))
    _, records = index.runs[0].find(hi, hi)
    hits = index_module.Hits(("f",), np.arange(3), records)
    found = overlay(tail, np.ones(3, np.bool_), hits, base=digest_of(there.digest))
    assert found.comes.tolist() == [False, True, True]
    assert {path: set(rows) for path, rows in found.hidden.items()} == {"f": {1, 2}}
    assert found.digest == digest_of(np.array([10, 21, 31]))


# Mistakes of the index, each made by the code that makes its records.

Mutant = Callable[[Records], Records]


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


KEYS = sorted(range(8), key=key_hash)


@pytest.mark.parametrize("mutant", [forget, duplicate, misplace, wrong_digest])
def test_a_mistake_of_the_index_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: Mutant
) -> None:
    """By the publish itself, or by `verify` afterwards; and by comparing the index with the files."""
    state = Indexed(tmp_path)
    state.publish(dict.fromkeys(KEYS, "old"))
    real = sorted_records
    with monkeypatch.context() as patched:
        patched.setattr(index_module, "sorted_records", lambda *given, **named: mutant(real(*given, **named)))
        state.cover(state.table.head())
    seen: list[Finding | str] = []
    try:
        # The key whose record is wrong, and no other.
        state.publish({KEYS[0]: "new"})
    except InvariantViolation as error:
        seen.append(str(error))
    seen += state.verify()
    assert seen, "nobody noticed"
    assert state.verify_index()
    if mutant is forget:
        assert [str(one) for one in seen] == ["1 rows have a key that another live row has"]
    if mutant is duplicate:
        assert "two live rows or more" in str(seen[0])


def test_a_stale_file_of_the_index_is_no_hit_and_a_file_it_lacks_is_found_by_its_name(tmp_path: Path) -> None:
    """A run that was made when another file had the place: path, size and rows must all agree."""
    state = Indexed(tmp_path)
    state.publish({1: "a", 2: "a"})
    head = state.table.head()
    (file,) = head.files.values()
    keys = state.read(file)
    assert keys is not None
    state.index.add({DataFile(file.path, file.bytes + 1, file.rows): keys})
    assert state.index.missing(head) == [file]
    assert next(str(one) for one in state.verify_index()) == f"the index does not have {file.path}"
    state.publish({1: "b"})
    assert (state.verify(), by_delta_rs(state)) == ([], {1: "b", 2: "a"})
