"""Statistics of a table for maintenance: small files, hidden rows, old files. Needs no JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidemark.core.errors import InvalidUsage
from tidemark.core.publish import VERSION_NONE
from tidemark.delta.head import History, LiveFile
from tidemark.delta.store import Store
from tidemark.delta.vacuum import decide_vacuum, read_listing

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
