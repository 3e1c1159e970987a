"""Vacuum: delete the files of a table that no version within the retention needs; and a table's statistics.

It serves states, tombstones and control tables, where other vacuums don't work. That of delta-rs deletes
deletion vectors that are in use, and deletes by age files that are about to be committed. Spark's skips the
folder of our vectors. So this one decides by the log:

- Files and vectors of the newest version stay.
- A removed file stays for the retention, with the vector that it had then, and is deleted after it.
- An unreferenced file with a name of ours was written for a version, or for any version up to it. It is
  deleted once that version exists, because it can't be committed any more. No clock is involved, so a slow
  writer loses nothing.
- An unreferenced file with a foreign name is deleted by age, as Delta does it.
- Files of the change data feed stay for the retention, counted from the entry that names them.

Files are listed before the head is read. A file that is written in between is for a later version; a file
that is committed in between is in the head.

The statistics tell maintenance how many files are small or old, and how many rows are hidden.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.publish import VERSION_NONE
from tidemark.delta import commit, deletion_vectors, records
from tidemark.delta.commit import entry_actions, entry_path, unlinked_version
from tidemark.delta.head import History, LiveFile, TableHead, read_history
from tidemark.delta.protocol import LOG_RETENTION, interval_ms
from tidemark.delta.store import Store

RETENTION: Final = "delta.deletedFileRetentionDuration"
LOG_DAYS_MIN: Final = 30
"""Delta's default retention of a table's log."""
_RETENTION_DEFAULT: Final = "interval 1 week"
_VECTOR: Final = re.compile(r"(?:[^/]*/)?deletion_vector_([0-9a-f-]{36})\.bin\Z")
_FEED: Final = "_change_data/"


def retention_properties(days: int) -> dict[str, str]:
    """The retention of removed files as Delta properties, which any VACUUM obeys. The log is kept at least as
    long: without it a file can't be read, and Delta rejects a table that keeps files longer than its log."""
    return {
        RETENTION: f"interval {days} days",
        LOG_RETENTION: f"interval {max(days, LOG_DAYS_MIN)} days",
    }


@dataclass(frozen=True, slots=True)
class Obsolete:
    """A file to delete, and the reason."""

    path: str
    bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a table with their sizes, and the history that was read afterwards. `modified_ms` are the
    modification times of files with foreign names; `fed_ms` are the times of the entries that name files of
    the feed."""

    listed: Mapping[str, int]
    history: History
    modified_ms: Mapping[str, int]
    fed_ms: Mapping[str, int]


def read_listing(store: Store) -> Listing:
    """List a table's files, then read its log."""
    listed = store.listed()
    modified_ms = store.modified_ms(path for path in listed if _is_tables(path) and version_in(path) is None)
    history = read_history(store)
    feed = {version_in(path) for path in listed if path.startswith(_FEED)} - {None}
    fed_ms = {
        path: at
        for version in feed
        for path, at in _named_in_feed(store, version, history.head.version).items()
    }
    return Listing(listed, history, modified_ms, fed_ms)


def _named_in_feed(store: Store, version: int | None, newest: int) -> dict[str, int]:
    """The feed's files of an entry, and the entry's time; empty if the entry does not exist or was cleaned
    up."""
    if version is None or version > newest:
        return {}
    try:
        actions = entry_actions(store.get(entry_path(version)), version, store.uri)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Determinate(f"the log of {store.uri} can't be read: {error}", hint="retry") from error
    at_ms = next((int(line["commitInfo"]["timestamp"]) for line in actions if "commitInfo" in line), 0)
    return {unquote(line["cdc"]["path"]): at_ms for line in actions if "cdc" in line}


def decide_vacuum(found: Listing, *, now_ms: int, kept_ms: int) -> list[Obsolete]:
    """The listed files that may be deleted."""
    head = found.history.head
    if head.version < 0:
        return []
    needed = set(_needed(found.history, after_ms=now_ms - kept_ms))
    needed |= {path for path, at_ms in found.fed_ms.items() if now_ms - at_ms < kept_ms}
    removed = {path for one in found.history.removed for path in _paths(one.location, one.vector)}
    removed |= found.fed_ms.keys()
    obsolete = []
    for path, size in sorted(found.listed.items()):
        if path in needed or not _is_tables(path):
            continue
        version = version_in(path)
        if path in removed:
            obsolete.append(Obsolete(path, size, "removed longer ago than the retention"))
        elif version is not None and version <= head.version:
            obsolete.append(Obsolete(path, size, f"version {version} is there without it"))
        elif version is None and now_ms - found.modified_ms.get(path, now_ms) >= kept_ms:
            obsolete.append(Obsolete(path, size, "in no version, and older than the retention"))
    return obsolete


def vacuum(store: Store, *, now_ms: int, kept_ms: int) -> Sequence[Obsolete]:
    """Delete obsolete files and return them. Concurrent vacuums are harmless."""
    found = read_listing(store)
    if found.history.head.version >= 0:
        check_remembered(found.history.head, kept_ms)
    obsolete = decide_vacuum(found, now_ms=now_ms, kept_ms=kept_ms)
    for one in obsolete:
        store.delete(one.path)
    return obsolete


def version_in(path: str) -> int | None:
    """The version that a file was written for; None for a foreign name."""
    vector = _VECTOR.match(path)
    if vector is not None:
        return (
            deletion_vectors.version_in(uuid.UUID(vector[1]))
            if path.startswith(f"{deletion_vectors.FOLDER}/")
            else None
        )
    for of in (commit.file_version, records.version_in, unlinked_version):
        if (version := of(path.removeprefix(_FEED))) is not None:
            return version
    return None


def _is_tables(path: str) -> bool:
    """Whether a file is of a kind that tables have. Other files are ignored."""
    if _VECTOR.match(path) is not None or version_in(path) is not None:
        return True
    return path.endswith(".parquet") and not path.removeprefix(_FEED).startswith("_")


def _needed(history: History, *, after_ms: int) -> Iterator[str]:
    for file in history.head.files.values():
        yield from _paths(file.location, file.vector)
    for gone in history.removed:
        if gone.at_ms > after_ms:
            yield from _paths(gone.location, gone.vector)


def _paths(location: str, vector: deletion_vectors.Descriptor | None) -> Iterator[str]:
    yield location
    if vector is not None and vector.path is not None:
        yield vector.path


def check_remembered(head: TableHead, kept_ms: int) -> None:
    """`InvalidUsage` if the table's log lists removed files for a shorter time than files are to be kept."""
    text = head.configuration.get(RETENTION, _RETENTION_DEFAULT)
    found = interval_ms(text)
    if found is None or found < kept_ms:
        raise InvalidUsage(
            f"{RETENTION} is {text!r}, and files have to be kept for {kept_ms // 1000} s",
            hint="raise the property first, or the log forgets which files those are",
        )


SMALL_BYTES: Final = 128 * 1024 * 1024
SMALL_FILES_DUE: Final = 10
HIDDEN_ROWS_DUE: Final = 0.1
HISTORY_TIMES_MAX: Final = 10
HISTORY_BYTES_MIN: Final = 1 << 30


def is_due_for_rewrite(file: LiveFile, vector_bytes: int = 0) -> bool:
    """Whether to rewrite a file without its hidden rows: they are many, or its retained vectors, which each
    publish writes in full, are larger than the file."""
    return hidden_share(file) > HIDDEN_ROWS_DUE or vector_bytes > file.bytes


def hidden_share(file: LiveFile) -> float:
    """The share of a file's rows that are hidden."""
    return file.hidden / max(_rows(file), 1)


def retained_vector_bytes(history: History, *, after_ms: int) -> Counter[str]:
    """The bytes of each data file's vectors, including those of older versions within the retention."""
    found: Counter[str] = Counter()
    live = ((file.path, file.vector, after_ms + 1) for file in history.head.files.values())
    gone = ((file.path, file.vector, file.at_ms) for file in history.removed)
    for path, vector, at_ms in (*live, *gone):
        if vector is not None and at_ms > after_ms:
            found[path] += vector.size
    return found


@dataclass(frozen=True, slots=True)
class TableStats:
    """Statistics of a table for maintenance.

    `small` files could be merged; `hidden` of the `rows` are hidden by deletion vectors; `worn` files are due
    to be rewritten; no version within the retention needs the `old` files; the newest version does not need
    the `waiting` ones."""

    files: int
    bytes: int
    rows: int
    hidden: int
    small: int
    small_bytes: int
    worn: int
    worn_bytes: int
    old: int
    old_bytes: int
    waiting: int
    waiting_bytes: int
    configuration: Mapping[str, str]

    @property
    def merge_due(self) -> bool:
        """Whether to merge small files."""
        return self.small >= SMALL_FILES_DUE

    @property
    def purge_due(self) -> bool:
        """Whether to rewrite files without their hidden rows."""
        return self.worn > 0

    @property
    def history_large(self) -> bool:
        """Whether the files that only older versions need are much larger than the table itself."""
        return self.waiting_bytes > max(HISTORY_TIMES_MAX * self.bytes, HISTORY_BYTES_MIN)


def _rows(file: LiveFile) -> int:
    """The number of rows of a file; 0 if another program left it without statistics."""
    try:
        return file.rows
    except InvalidUsage:
        return 0


def table_stats(
    uri: str, *, now_ms: int, kept_ms: int, storage_options: Mapping[str, str] | None = None
) -> TableStats | None:
    """The statistics of a table; None if there is no table."""
    store = Store(uri, storage_options or {})
    found = read_listing(store)
    head, active = found.history.head, list(found.history.head.files.values())
    if head.version == VERSION_NONE:
        return None
    old = decide_vacuum(found, now_ms=now_ms, kept_ms=kept_ms)
    obsolete = {one.path for one in old}
    waiting = decide_vacuum(found, now_ms=now_ms, kept_ms=0)
    waiting = [one for one in waiting if one.path not in obsolete]
    small = [file.bytes for file in active if file.bytes < SMALL_BYTES]
    kept = retained_vector_bytes(found.history, after_ms=now_ms - kept_ms)
    worn = [file.bytes for file in active if is_due_for_rewrite(file, kept[file.path])]
    return TableStats(
        files=len(active),
        bytes=sum(file.bytes for file in active),
        rows=sum(_rows(file) for file in active),
        hidden=sum(file.hidden for file in active),
        small=len(small),
        small_bytes=sum(small),
        worn=len(worn),
        worn_bytes=sum(worn),
        old=len(old),
        old_bytes=sum(one.bytes for one in old),
        waiting=len(waiting),
        waiting_bytes=sum(one.bytes for one in waiting),
        configuration=head.configuration,
    )
