"""What is left over goes by version and not by age: no clock removes a file that is needed or may yet be."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.delta.helpers import open_journal, put_next, record_files
from tests.support.state_table import SCHEMA, Hand
from tidemark.core.ledger import Committed, JournalEntry
from tidemark.delta import table as table_module
from tidemark.delta.commit import entry_path, file_folder
from tidemark.delta.ledger import DeltaLedger
from tidemark.delta.log import DeltaLog
from tidemark.delta.records import FILES_MAX, journal_codec
from tidemark.delta.state import Change, NewFile
from tidemark.delta.store import Store
from tidemark.delta.vacuum import table_stats, vacuum

HOUR_NS = 3_600_000_000_000
DAY_MS = 86_400_000


def journal(folder: Path, *, hours_ahead: float = 0) -> DeltaLedger[JournalEntry]:
    """A handle of a machine whose clock is ahead."""
    ahead = int(hours_ahead * HOUR_NS)
    return DeltaLedger(str(folder), journal_codec(), clock_ns=lambda: time.time_ns() + ahead)


def before_entry(patch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Let something happen once, between a commit's files and its entry."""
    put, left = table_module.put_entry, [work]

    def late(*args: Any, **known: Any) -> Any:
        if left:
            left.pop()()
        return put(*args, **known)

    patch.setattr(table_module, "put_entry", late)


@pytest.mark.parametrize("records", [3, FILES_MAX - 1])
def test_regression_w4_a_sweep_with_a_clock_ahead_leaves_what_is_about_to_be_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    """The file of a record, and the one that records are merged into, are old by their times, and are
    committed after the sweep has looked."""
    ledger = open_journal(tmp_path / "journal")
    added = [put_next(ledger) for _ in range(records)]

    def sweep() -> None:
        for file in record_files(tmp_path / "journal"):
            os.utime(file, (0, 0))
        journal(tmp_path / "journal", hours_ahead=2).sweep()

    before_entry(monkeypatch, sweep)
    added.append(put_next(ledger))
    reader = open_journal(tmp_path / "journal")
    reader.head()
    assert list(reader.read(0, 99)) == added
    # The same at the commit that merges files.
    before_entry(monkeypatch, sweep)
    added += [put_next(ledger) for _ in range(FILES_MAX)]
    reader.head()
    assert list(reader.read(0, 99)) == added


def test_a_merge_is_swept_only_when_its_version_is_there_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    ledger = open_journal(tmp_path / "journal")
    added = [put_next(ledger) for _ in range(FILES_MAX - 1)]
    with monkeypatch.context() as patch:
        merge = ledger._merge
        patch.setattr(ledger, "_merge", lambda *given: before_entry(patch, kill) or merge(*given))
        with pytest.raises(Killed):
            put_next(ledger)
    found = open_journal(tmp_path / "journal")
    found.head()
    added = list(found.read(0, 99))
    assert len(record_files(tmp_path / "journal")) == FILES_MAX + 1
    assert found.sweep() == 0, "it may still come in"
    rival = open_journal(tmp_path / "journal")
    added.append(put_next(rival))
    assert journal(tmp_path / "journal", hours_ahead=-5).sweep() == 1, "no clock is asked"
    assert journal(tmp_path / "journal", hours_ahead=2).sweep() == FILES_MAX + 1, "those that were merged"
    found.head()
    assert list(found.read(0, 99)) == added


def unlinked(folder: Path, version: int) -> Path:
    """What a writer leaves that dies between the bytes of its entry and its name."""
    names: list[Path] = []

    def die(source: Path, _: Path) -> None:
        names.append(Path(source))
        names.append(Path(source).with_suffix(".kept"))
        Path(source).rename(names[1])
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", die)
        with pytest.raises(KeyboardInterrupt):
            Store(str(folder), {}).put_if_absent(entry_path(version), b"{}\n")
    return names[1].rename(names[0])


def test_entries_of_writers_that_died_go_when_their_versions_are_there(tmp_path: Path) -> None:
    ledger = open_journal(tmp_path / "journal")
    put_next(ledger)
    log = DeltaLog(str(tmp_path / "log"), schema=None)
    hand = Hand(tmp_path / "state")
    hand.create()
    for folder in ("journal", "state", "log"):
        (tmp_path / folder / "_delta_log").mkdir(parents=True, exist_ok=True)
    version = ledger.head().version
    lost, early = unlinked(tmp_path / "journal", version), unlinked(tmp_path / "journal", version + 1)
    ledger.sweep()
    assert (lost.exists(), early.exists()) == (False, True)
    gone, kept = unlinked(hand.root, 0), unlinked(hand.root, 1)
    vacuum(hand.table.store, now_ms=0, kept_ms=0)
    assert (gone.exists(), kept.exists()) == (False, True)
    left = unlinked(tmp_path / "log", 0)
    log.delete([])
    assert left.exists()
    log._head = ledger.head()
    log.delete([])
    assert not left.exists()


def test_an_entry_whose_bytes_are_taken_away_before_it_is_linked_has_lost(tmp_path: Path) -> None:
    """Its version is there by another writer, and a vacuum has removed what it was to be linked from."""
    hand = Hand(tmp_path / "state")
    hand.create()
    head = hand.table.head()
    change = hand.change(head, {1: "late"})
    link, rival = os.link, Hand(hand.root)
    with pytest.MonkeyPatch.context() as patch:

        def late(source: Path, target: Path) -> None:
            patch.setattr(os, "link", link)
            assert isinstance(rival.publish({1: "first"}), Committed)
            vacuum(rival.table.store, now_ms=0, kept_ms=0)
            assert not Path(source).exists()
            link(source, target)

        patch.setattr(os, "link", late)
        outcome = hand.table.commit(head, change)
    assert not isinstance(outcome, Committed)
    assert hand.by_delta_rs() == {1: "first"}


@pytest.fixture
def fed(tmp_path: Path) -> Hand:
    """A state with a change data feed and without vectors, whose touched files are rewritten."""
    hand = Hand(tmp_path / "state", vectors=False)
    hand.create(feed=True)
    hand.publish({1: "a", 2: "a"})
    return hand


def feed_file(hand: Hand, version: int, rows: int = 3) -> NewFile:
    import uuid

    changes = pa.table({"k": [2, 2, 3], "v": ["a", "b", "c"]}, schema=SCHEMA).slice(0, rows)
    return hand.write(changes, folder=f"_change_data/{file_folder(version, uuid.uuid4())}/")


def rewritten(hand: Hand) -> NewFile:
    """Key 2 changes and key 3 comes: one row is carried over, three changes are in the feed."""
    head = hand.table.head()
    rows = pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]}, schema=SCHEMA)
    feed = feed_file(hand, head.version + 1)
    change = Change(
        "WRITE", 3, removed=list(head.files), added=[hand.write(rows)], carried=1, feed=[feed],
    )  # fmt: skip
    assert isinstance(hand.table.commit(head, change), Committed)
    return feed


def test_files_of_the_feed_go_when_the_entry_that_names_them_is_older_than_the_retention(fed: Hand) -> None:
    named = rewritten(fed)
    lost, coming = feed_file(fed, 2), feed_file(fed, 3)
    now = time.time_ns() // 1_000_000
    for file in (named, lost, coming):
        os.utime(fed.root / file.path, (0, 0))

    def there() -> list[bool]:
        return [(fed.root / file.path).exists() for file in (named, lost, coming)]

    facts = table_stats(str(fed.root), now_ms=now, kept_ms=7 * DAY_MS)
    assert facts is not None
    assert facts.old == 1, "the one that its version is there without"
    vacuum(fed.table.store, now_ms=now, kept_ms=7 * DAY_MS)
    assert there() == [True, False, True]
    vacuum(fed.table.store, now_ms=now + 6 * DAY_MS, kept_ms=7 * DAY_MS)
    assert there() == [True, False, True]
    vacuum(fed.table.store, now_ms=now + 7 * DAY_MS + 60_000, kept_ms=7 * DAY_MS)
    assert there() == [False, False, True], "what may still be committed stays, however old it is"
    assert fed.table.head().version == 2


def test_files_of_the_feed_whose_entry_was_cleaned_away_go(fed: Hand) -> None:
    from deltalake import DeltaTable

    named = rewritten(fed)
    DeltaTable(str(fed.root)).create_checkpoint()
    (fed.root / entry_path(2)).unlink()
    vacuum(Store(str(fed.root), {}), now_ms=0, kept_ms=0)
    assert not (fed.root / named.path).exists()
