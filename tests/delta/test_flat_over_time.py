"""A state that is published to again and again stays as quick to open and to read as it was, and every
transaction that was published within the promised days can still be read."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from tests.support.keyed_log import SHARD, Change, Key, KeyedLog
from tests.support.state_table import Hand
from tidemark.core.ids import ShardId
from tidemark.core.publish import VERSION_NONE, Published
from tidemark.delta import checkpoint, head, state_maintenance, state_status, vacuum
from tidemark.delta.head import TableHead, open_head, read_head, read_history
from tidemark.delta.overlay import TableIndex
from tidemark.delta.state import StateTable
from tidemark.delta.state_maintenance import TIDY_FILES, DeltaStateKeeper, MaintainedState, tidy
from tidemark.delta.state_status import app_id, read_state_status
from tidemark.delta.store import Store
from tidemark.pipeline import publish as step

Rows = list[tuple[Key, str]]
PUBLISHES = 40
DAY_MS = 86_400_000


def publishes(log: KeyedLog, count: int) -> Iterator[tuple[int, Rows]]:
    """Each with a new key, one that is there, and now and then a delete; the version of each, and what it
    has."""
    for number in range(count):
        changes: dict[Key, str | None] = {
            ("new", log.txn): "1",
            ("hot", number % 3): f"{number}",
            ("gone", number): None,
        }
        if number % 4 == 3:
            changes["new", log.txn - 2] = None
        log.append(*[Change(key, value, log.txn) for key, value in changes.items()])
        yield log.publish().version, sorted(log.expected().items(), key=repr)


def at_version(log: KeyedLog, version: int) -> Rows:
    found = pl.read_delta(log.spec.state, version=version)
    return sorted((((a, b), v) for a, b, v, _ in found.rows()), key=repr)


def operations(table: str) -> dict[int, list[dict[str, Any]]]:
    entries = sorted((Path(table) / "_delta_log").glob("*.json"))
    return {int(one.stem): [json.loads(line) for line in one.read_text().splitlines()] for one in entries}


def test_files_stay_few_by_commits_of_their_own_and_every_publish_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CHECKPOINT_BYTES_MIN", 8 * head.ENTRY_BYTES_MIN)
    log = KeyedLog(tmp_path, ordered=True)
    published = dict(publishes(log, PUBLISHES))
    for table in (log.spec.state, log.spec.tombstones):
        assert len(read_head(Store(table, {})).files) <= TIDY_FILES
    assert {version: at_version(log, version) for version in published} == published
    for version, lines in operations(log.spec.state).items():
        actions = [line[kind] for line in lines for kind in ("add", "remove") if kind in line]
        is_publish = version in published
        assert {action["dataChange"] for action in actions} <= {is_publish}, "one or the other, never both"
        assert is_publish or lines[0]["commitInfo"]["operation"] == "OPTIMIZE"
    # What opens the table reads a checkpoint and a few entries.
    newest = read_head(Store(log.spec.state, {}))
    opened = open_head(Store(log.spec.state, {}))
    assert newest.version - 8 <= opened.version <= newest.version
    log.check()
    log.reopen()
    log.append(Change(("hot", 0), "again", log.txn))
    log.publish()
    log.check()


def test_a_publish_reads_no_file_that_was_merged_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_maintenance, "TIDY_FILES", 4)
    log = KeyedLog(tmp_path, ordered=True)
    read: list[Published | None] = []
    real = TableIndex._read

    def seen(index: TableIndex, file: Any) -> Any:
        read.append(step.last_published(log.control, SHARD))
        return real(index, file)

    monkeypatch.setattr(TableIndex, "_read", seen)
    merges = 0
    for number, _ in enumerate(publishes(log, 9), 1):
        # The first tombstones are looked up by the second publish, and their index begins there.
        assert number == 2 or {one and one.number for one in read} <= {number}, "after it is on record"
        merges += len(read)
        read.clear()
        log.reopen()
    assert merges >= 4, "of the state and of the tombstones"
    log.check()


class Mock:
    """A table of which one method does something else."""

    def __init__(self, table: DeltaTable, method: str, instead: Any) -> None:
        self._table, self._other = table, {method: instead}

    def __getattr__(self, name: str) -> Any:
        return self._other.get(name) or getattr(self._table, name)


class PanicException(BaseException):
    """delta-rs has one, which can't be imported."""


@pytest.mark.parametrize("broken", ["create_checkpoint", "clean_log", "copy_rows"])
def test_a_publish_stands_whatever_becomes_of_what_it_leaves_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        if broken == "create_checkpoint":
            raise PanicException("No space left on device")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(head, "CHECKPOINT_BYTES_MIN", 0)
    with monkeypatch.context() as patched:
        if broken == "copy_rows":
            patched.setattr(state_maintenance, broken, full)
        elif broken == "clean_log":
            patched.setattr(checkpoint, broken, full)
        else:
            # The class can't be changed itself.
            patched.setattr(checkpoint, "DeltaTable", lambda *a, **k: Mock(DeltaTable(*a, **k), broken, full))
        log = KeyedLog(tmp_path)
        with caplog.at_level(logging.WARNING):
            published = dict(publishes(log, TIDY_FILES + 4))
        assert step.last_published(log.control, SHARD).txn == log.txn  # type: ignore[union-attr]
        assert "No space left" in caplog.text
        log.check()
    caplog.clear()
    log.append(Change(("hot", 0), "later"))
    log.publish()
    assert caplog.text == "", "the next one does it"
    assert len(read_head(Store(log.spec.state, {})).files) < TIDY_FILES
    log.check()
    assert {version: at_version(log, version) for version in published} == published


def test_a_publish_opens_the_table_once_in_a_process_and_follows_it_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, opened = KeyedLog(tmp_path), []
    real = open_head

    def counted(*args: Any, **known: Any) -> TableHead:
        opened.append(args[0].uri)
        return real(*args, **known)

    for module in (head, state_status):
        monkeypatch.setattr(module, "open_head", counted)
    list(publishes(log, 3))
    opened.clear()
    list(publishes(log, 3))
    assert not [uri for uri in opened if uri == log.spec.state]


def test_a_state_whose_log_was_cleaned_past_what_is_known_is_opened_again(tmp_path: Path) -> None:
    """A process that slept for longer than entries are kept."""
    log, other = KeyedLog(tmp_path), KeyedLog(tmp_path)
    list(publishes(log, 2))
    other.txn = log.txn
    other.appended = log.appended
    list(publishes(other, 4))
    DeltaTable(log.spec.state).create_checkpoint()
    for entry in sorted((Path(log.spec.state) / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    since = step.last_published(log.control, SHARD)
    app = app_id("p", SHARD)
    known = StateTable(log.spec.state)
    known._head = log.plane._table(SHARD).known
    found = read_state_status(log.spec.state, app=app, since=since, known=known.known)
    assert found == read_state_status(log.spec.state, app=app, since=since)
    log.txn = other.txn
    list(publishes(log, 1))
    log.check()


def test_only_files_that_are_worn_are_written_anew_and_their_history_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand(tmp_path / "state")
    hand.create()
    hand.publish(dict.fromkeys(range(100), "a" * 50))
    hand.publish(dict.fromkeys(range(100, 200), "b" * 50))
    hand.publish({}, {0, *range(100, 120)})
    older, before = dict(hand.model), hand.table.head()
    whole, worn = sorted(before.files.values(), key=lambda file: file.hidden)
    keeper = DeltaStateKeeper("p", {ShardId("t"): MaintainedState(str(tmp_path))})
    found = vacuum.table_stats(str(hand.root), now_ms=10 * DAY_MS, kept_ms=7 * DAY_MS)
    assert found is not None
    assert (found.purge_due, found.worn, found.worn_bytes) == (True, 1, worn.bytes)
    keeper.purge(ShardId("t"))
    after = hand.table.head().files
    assert whole.path in after
    assert worn.path not in after
    hand.check()
    keeper.vacuum(ShardId("t"), tombstones=VERSION_NONE)
    assert dict(pl.read_delta(str(hand.root), version=before.version).iter_rows()) == older
    # The vectors that are kept of a file have their budget too: as many bytes as the file has.
    size = after[whole.path].bytes
    kept = vacuum.retained_vector_bytes(read_history(hand.table.store), after_ms=0)
    for key in range(1, 9):
        hand.publish({}, {key})
    kept = vacuum.retained_vector_bytes(read_history(hand.table.store), after_ms=0)
    assert kept[whole.path] > 8 * 30
    file = hand.table.head().files[whole.path]
    assert not vacuum.is_due_for_rewrite(file, size)
    assert vacuum.is_due_for_rewrite(file, size + 1)
    assert vacuum.retained_vector_bytes(read_history(hand.table.store), after_ms=2**60)[whole.path] == (
        file.vector.size if file.vector else 0
    )


def test_files_of_which_a_third_is_hidden_are_written_anew_after_a_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head.LiveFile, "bytes", property(lambda file: file.rows))
    monkeypatch.setattr(state_maintenance, "TIDY_BYTES", (10, 20))
    monkeypatch.setattr(state_maintenance, "FILE_BYTES", 60)
    hand = Hand(tmp_path / "state")
    hand.create()
    for lower, count in ((0, 60), (100, 9), (200, 61), (300, 60)):
        hand.publish(dict.fromkeys(range(lower, lower + count), "a"))

    def hidden() -> list[tuple[int, int]]:
        return sorted((file.rows, file.hidden) for file in hand.table.head().files.values())

    hand.publish({}, {*range(20), *range(100, 108), *range(200, 230), *range(300, 320)})
    tidy(hand.table)
    assert hidden() == [(9, 8), (60, 20), (60, 20), (61, 30)], "a third is not enough"
    hand.publish({}, {20, 320})
    tidy(hand.table)
    assert hidden() == [(9, 8), (39, 0), (60, 21), (61, 30)], "no more at once than fits in a file"
    tidy(hand.table)
    assert hidden() == [(9, 8), (39, 0), (39, 0), (61, 30)], "tiny files are merged, large ones are left"
    hand.check()


def test_a_row_is_copied_once_for_each_size_that_its_file_grows_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head.LiveFile, "bytes", property(lambda file: file.rows))
    monkeypatch.setattr(state_maintenance, "TIDY_BYTES", (4, 16, 64))
    monkeypatch.setattr(state_maintenance, "TIDY_FILES", 4)
    copied: list[int] = []
    copy = state_maintenance.copy_rows

    def counted(*args: Any, **known: Any) -> Any:
        made = copy(*args, **known)
        copied.append(made.rows)
        return made

    monkeypatch.setattr(state_maintenance, "copy_rows", counted)
    hand = Hand(tmp_path / "state")
    hand.create()
    for key in range(128):
        hand.publish({key: "a"})
        tidy(hand.table)
        assert len(hand.table.head().files) <= 3 * 4 + key // 64
    assert sum(copied) <= 4 * 128
    hand.check()
