"""A table's shape, as far as its maintenance goes: small files, hidden rows, old files. Needs no JVM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidemark.core.publish import VERSION_NONE
from tidemark.delta.head import read_head
from tidemark.delta.store import Store

SMALL_BYTES: Final = 128 * 1024 * 1024
SMALL_FILES_DUE: Final = 10
HIDDEN_ROWS_DUE: Final = 0.1


@dataclass(frozen=True, slots=True)
class TableFacts:
    """`small` files could be merged; `hidden` of the `rows` are taken out by deletion vectors; `old` files
    are needed by no version within the retention, `waiting` ones not by the newest version."""

    files: int
    bytes: int
    rows: int
    hidden: int
    small: int
    small_bytes: int
    old: int
    old_bytes: int
    waiting: int
    waiting_bytes: int
    configuration: Mapping[str, str]

    @property
    def merge_due(self) -> bool:
        """Whether merging small files is worth it."""
        return self.small >= SMALL_FILES_DUE

    @property
    def purge_due(self) -> bool:
        """Whether it is worth it to write files anew without the rows that are hidden in them."""
        return self.hidden > HIDDEN_ROWS_DUE * max(self.rows, 1)


def facts_of(
    uri: str, *, now_ms: int, kept_ms: int, storage_options: Mapping[str, str] | None = None
) -> TableFacts | None:
    """The shape of a table; None where there is no table."""
    store = Store(uri, storage_options or {})
    # Listed before the log is read: what is committed meanwhile is then in the newest version.
    listed = store.listed()
    head = read_head(store)
    if head.version == VERSION_NONE:
        return None
    active = list(head.files.values())
    needed = {file.location for file in active}
    removed_ms = {file.location: file.at_ms for file in head.removed.values()}
    gone = {
        path: (size, removed_ms.get(path))
        for path, size in listed.items()
        if path.endswith(".parquet") and not path.startswith("_") and path not in needed
    }
    waiting = [size for size, at in gone.values() if at is not None and now_ms - at < kept_ms]
    small = [file.bytes for file in active if file.bytes < SMALL_BYTES]
    return TableFacts(
        files=len(active),
        bytes=sum(file.bytes for file in active),
        rows=sum(file.rows for file in active),
        hidden=sum(file.hidden for file in active),
        small=len(small),
        small_bytes=sum(small),
        old=len(gone) - len(waiting),
        old_bytes=sum(size for size, _ in gone.values()) - sum(waiting),
        waiting=len(waiting),
        waiting_bytes=sum(waiting),
        configuration=head.configuration,
    )
