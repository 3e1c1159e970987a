"""The Delta ledger's own business: housekeeping, unknown outcomes, the documented columns."""

from __future__ import annotations

import json
import os
import time
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.delta.helpers import entry, log_entries, open_journal, put_next, record_files
from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage, InvariantViolation
from tidemark.core.ledger import CHAIN, FORMAT, UPPER, Committed, Conflict, Put
from tidemark.delta import table
from tidemark.delta.commit import COMMIT_SECONDS_MAX
from tidemark.delta.ledger import DeltaLedger
from tidemark.delta.records import FILES_MAX, RecordFile, choose_merge, journal_codec
from tidemark.delta.store import Store


def test_reading_makes_no_table(tmp_path: Path) -> None:
    ledger = open_journal(tmp_path / "journal")
    ledger.head()
    ledger.read(0, 9)
    assert not (tmp_path / "journal").exists()


def test_the_number_of_active_files_stays_small_and_the_log_gets_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    ledger = open_journal(folder)
    for _ in range(125):
        put_next(ledger)
    assert len(DeltaTable(str(folder)).file_uris()) < 2 * FILES_MAX
    assert len(list((folder / "_delta_log").glob("*.checkpoint.parquet"))) == 2


def test_merging_changes_no_record_and_is_no_change_of_data(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    ledger = open_journal(folder)
    added = [put_next(ledger) for _ in range(FILES_MAX)]
    assert len(DeltaTable(str(folder)).file_uris()) == 1
    merge = log_entries(folder)[-1].read_text()
    assert '"dataChange":true' not in merge
    assert '"txn"' not in merge
    reader = open_journal(folder)
    reader.head()
    assert list(reader.read(0, 99)) == added
    old = open_journal(folder)
    assert old.head().marks == reader.head().marks


def test_a_merge_that_fails_leaves_the_commit_standing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_journal(tmp_path / "journal")

    def broken(*_: object) -> None:
        raise Determinate("no room")

    monkeypatch.setattr(ledger, "_merge", broken)
    added = [put_next(ledger) for _ in range(FILES_MAX + 2)]
    monkeypatch.undo()
    added.append(put_next(ledger))
    ledger.head()
    assert list(ledger.read(0, 99)) == added
    assert len(DeltaTable(ledger.uri).file_uris()) == 1


def test_a_replaced_file_is_swept_only_after_the_retention(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    ledger = open_journal(folder)
    added = [put_next(ledger) for _ in range(FILES_MAX)]
    slow = open_journal(folder)
    slow.head()
    assert len(record_files(folder)) == FILES_MAX + 1
    ledger.sweep()
    assert len(record_files(folder)) == FILES_MAX + 1
    assert list(slow.read(0, 99)) == added


def test_regression_a_snapshot_from_before_a_merge_and_a_sweep_is_looked_at_anew(tmp_path: Path) -> None:
    """A run may read from a snapshot for hours; what was merged and swept since is not lost."""
    folder = tmp_path / "journal"
    ledger = open_journal(folder)
    added = [put_next(ledger) for _ in range(FILES_MAX - 1)]
    slow = open_journal(folder)
    upper = slow.head().upper
    added.append(put_next(ledger))
    (merged,) = DeltaTable(ledger.uri).file_uris()
    for file in record_files(folder):
        if file.name != Path(merged).name:
            file.unlink()
    assert list(slow.read(0, upper)) == added[:-1]
    assert list(open_journal(folder).read(0, 99)) == []
    slow.head()
    Path(merged).unlink()
    with pytest.raises(InvariantViolation, match="is gone"):
        open_and_read(folder)


def open_and_read(folder: Path) -> None:
    ledger = open_journal(folder)
    ledger.head()
    ledger.read(0, 99)


def clean_up_after(folder: Path, *, commits: int) -> None:
    """Add so many records, then let log clean-up take every entry but the last."""
    rival = open_journal(folder)
    for _ in range(commits):
        put_next(rival)
    long_ago = time.time() - 7200
    for path in (folder / "_delta_log").iterdir():
        os.utime(path, (long_ago, long_ago))
    table = DeltaTable(str(folder))
    table.create_checkpoint()
    table.cleanup_metadata()
    assert len(log_entries(folder)) == 1


def test_a_writer_that_slept_through_log_clean_up_conflicts(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    sleeper = open_journal(folder)
    put_next(sleeper)
    head = sleeper.head()
    clean_up_after(folder, commits=15)
    files = record_files(folder)
    assert sleeper.commit(head, Put({UPPER: 3}, (entry(2, token="late"),), None)) == Conflict()
    assert record_files(folder) == files
    assert sleeper.head().upper == 17
    assert len(sleeper.read(0, 99)) == 16


def test_a_head_that_nothing_came_after_is_not_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "journal"
    put_next(open_journal(folder))
    reader = open_journal(folder)
    head, opened = reader.head(), []
    monkeypatch.setattr(table, "open_head", lambda store: opened.append(store.uri))
    assert (reader.head(), reader.head()) == (head, head)
    put_next(open_journal(folder))
    assert reader.head().upper == head.upper + 1
    assert opened == []
    put_next(reader)
    assert reader.head().upper == head.upper + 2


def test_a_head_is_loaded_again_once_log_clean_up_may_have_taken_what_came_after(tmp_path: Path) -> None:
    folder, now = tmp_path / "journal", time.time_ns()
    put_next(open_journal(folder))
    sleeper = DeltaLedger(str(folder), journal_codec(), clock_ns=lambda: now)
    assert sleeper.head().upper == 2
    clean_up_after(folder, commits=15)
    now += (COMMIT_SECONDS_MAX + 1) * 10**9
    assert sleeper.head().upper == 17


def test_invariant_5_a_commit_whose_reply_was_lost_is_found_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 5: a client that retries its own put meets itself, and that is no conflict."""
    ledger = open_journal(tmp_path / "journal")
    put_next(ledger)
    head = ledger.head()
    put = Store.put_if_absent

    def lost(store: Store, path: str, data: bytes) -> bool:
        put(store, path, data)
        raise OSError("connection reset")

    def twice(store: Store, path: str, data: bytes) -> bool:
        put(store, path, data)
        return put(store, path, data)

    for number, broken in ((2, lost), (3, twice)):
        monkeypatch.setattr(Store, "put_if_absent", broken)
        outcome = ledger.commit(head, Put({UPPER: number + 1}, (entry(number),), None))
        assert outcome == Committed(head.version + 1)
        monkeypatch.undo()
        head = ledger.head()
        assert len(ledger.read(0, 99)) == number


def test_invariant_5_a_commit_that_took_too_long_is_not_believed(tmp_path: Path) -> None:
    """Invariant 5: a writer frozen past the log's retention can't tell absent from cleaned away."""
    put_next(open_journal(tmp_path / "journal"))
    ticks = count(0, (COMMIT_SECONDS_MAX + 1) * 10**9)
    ledger = DeltaLedger(str(tmp_path / "journal"), journal_codec(), clock_ns=lambda: next(ticks))
    head = ledger.head()
    with pytest.raises(Indeterminate, match="took over 60 s"):
        ledger.commit(head, Put({UPPER: 3}, (entry(2),), None))
    assert ledger.head().upper == 3
    assert list(ledger.read(2, 3)) == [entry(2)]


def test_regression_invariant_5_an_entry_that_may_have_been_cleaned_away_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 5: the commit landed, its reply took longer than entries are kept, and then was lost."""
    folder = tmp_path / "journal"
    put_next(open_journal(folder))
    now = [0]
    ledger = DeltaLedger(str(folder), journal_codec(), clock_ns=lambda: now[0])
    head = ledger.head()
    commit = Store.put_if_absent

    def slow(store: Store, path: str, data: bytes) -> bool:
        monkeypatch.undo()
        commit(store, path, data)
        clean_up_after(folder, commits=15)
        now[0] += (COMMIT_SECONDS_MAX + 1) * 10**9
        raise OSError("connection reset")

    monkeypatch.setattr(Store, "put_if_absent", slow)
    with pytest.raises(Indeterminate, match="may have been written"):
        ledger.commit(head, Put({UPPER: 3}, (entry(2),), None))


def test_an_error_whose_effect_nobody_knows_is_indeterminate_on_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_journal(tmp_path / "journal")
    put_next(ledger)
    head = ledger.head()
    files = record_files(tmp_path / "journal")

    def unreachable(*_: object) -> bool:
        raise OSError("connection reset")

    monkeypatch.setattr(Store, "put_if_absent", unreachable)
    with pytest.raises(Determinate, match="was not written: connection reset"):
        ledger.commit(head, Put({UPPER: 3}, (entry(2),), None))
    assert record_files(tmp_path / "journal") == files
    # As if it were not a local disk: a request may be under way.
    monkeypatch.setattr(Store, "local", False)
    with pytest.raises(Indeterminate, match="may have been written: connection reset"):
        ledger.commit(head, Put({UPPER: 3}, (entry(2),), None))
    # Its record file may be needed yet, so it stays.
    assert len(record_files(tmp_path / "journal")) == len(files) + 1


def test_marks_that_the_ledger_does_not_keep_are_refused(tmp_path: Path) -> None:
    ledger = open_journal(tmp_path / "journal")
    for name in ("unheard", CHAIN):
        with pytest.raises(InvalidUsage, match=name):
            ledger.commit(ledger.head(), Put({name: 1}, (entry(1),), None))
    assert record_files(tmp_path / "journal") == []


def test_the_documented_columns_can_be_selected(tmp_path: Path) -> None:
    ledger = open_journal(tmp_path / "journal")
    put_next(ledger, txn=4, token="w", note="hello")
    rows = (
        QueryBuilder()
        .register("journal", DeltaTable(ledger.uri))
        .execute("SELECT number, kind, key, txn, token, format, body FROM journal WHERE at > '2020-01-01'")
    )
    found = rows.read_all()
    assert found.num_rows == 1
    assert [found[name][0].as_py() for name in ("number", "kind", "key", "txn", "token", "format")] == [
        1,
        "event",
        "4",
        4,
        "w",
        FORMAT,
    ]
    assert json.loads(found["body"][0].as_py())["detail"] == {"note": "hello"}


def test_a_record_file_is_small(tmp_path: Path) -> None:
    ledger = open_journal(tmp_path / "journal")
    put_next(ledger)
    [path] = record_files(tmp_path / "journal")
    assert path.stat().st_size < 4096
    assert pq.read_metadata(path).num_rows == 1


def file_of_rows(rows: int, number: int) -> RecordFile:
    return RecordFile(f"f{number}", number, number, 0, 0, rows, 10, 1, 1, "a", "a")


def test_the_newest_neighbours_are_merged_and_old_full_files() -> None:
    def tiers(*rows: int) -> list[int] | None:
        merge = choose_merge([file_of_rows(one, number) for number, one in enumerate(rows)])
        return [file.rows for file in merge.files] if merge else None

    def places(*rows: int) -> list[int] | None:
        files = [file_of_rows(one, number) for number, one in enumerate(rows)]
        merge = choose_merge(files)
        return [files.index(file) for file in merge.files] if merge else None

    assert tiers(*[1] * 9) is None
    assert tiers(*[1] * 10) == [1] * 10
    assert tiers(5000, *[1] * 10) == [1] * 10
    assert tiers(*[10] * 9, *[1] * 9) == [10] * 9 + [1] * 9
    assert tiers(1, 200, *[1] * 9) == [1, 200] + [1] * 9
    # Of full files the oldest ten, once ten newer ones stay; large ones never.
    assert tiers(*[1000] * 19, *[1] * 9) is None
    assert places(10_000, *[1000] * 20, *[1] * 9) == [*range(1, 11)]
    assert places(10_000, *[1000] * 10, 10_000, *[1000] * 20) == [*range(12, 22)]
    assert tiers(*[10_000] * 50) is None
