"""Damaged log entries: empty, truncated or changed, as a power cut leaves data that was not synced.

Reads and writes stop at such an entry (`delta.commit.entry_actions`), also where it is the newest: a table
that went on above it would lose its content silently. A recovery may set such newest entries aside. They
are moved, not deleted, into a folder of the log that no Delta reader looks into. The table then ends at its
last intact entry, and its losses are found as for any table that was set back.

A damaged entry with intact ones after it stays: their changes can't be interpreted without it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.ids import is_name
from tidemark.delta.commit import LOG, entry_actions, entry_path, newest_version
from tidemark.delta.head import open_head
from tidemark.delta.store import Store

CONTROL: Final = ("history", "checkpoints", "attempts", "journal", "leases", "cuts")
SHARD: Final = ("log", "publishes", "state", "tombstones")
SET_ASIDE: Final = "_lost"


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """A damaged newest entry of a table's log, and the reason."""

    table: str
    version: int
    why: str


def tables_below(root: str, storage_options: Mapping[str, str] | None = None) -> Iterator[str]:
    """The tables that a pipeline may have, by their paths below its root."""
    yield from (f"_control/{name}" for name in CONTROL)
    for shard in Store(root, storage_options or {}).folders():
        if is_name(shard):
            yield from (f"{shard}/{name}" for name in SHARD)


def damaged_entries(root: str, storage_options: Mapping[str, str] | None = None) -> list[DamagedEntry]:
    """The newest entries of a pipeline's tables that are damaged, each table's newest first."""
    found: list[DamagedEntry] = []
    for table in tables_below(root, storage_options):
        store = Store(f"{root}/{table}", storage_options or {})
        whole = open_head(store).version
        for version in range(newest_version(store, whole + 1), whole, -1):
            why = _why(store, version)
            if not why:
                break
            found.append(DamagedEntry(table, version, why))
    return found


def _why(store: Store, version: int) -> str:
    """Why an entry is damaged; empty where it is intact, or not there."""
    try:
        entry_actions(store.get(entry_path(version)), version, store.uri)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Determinate(f"the log of {store.uri} can't be read: {error}", hint="retry") from error
    except InvariantViolation as error:
        return str(error.__cause__ or error.fact)
    return ""


def set_aside(
    root: str, damaged: list[DamagedEntry], storage_options: Mapping[str, str] | None = None
) -> None:
    """Move damaged entries aside, each table's newest first. An entry that is gone or intact by now is no
    error."""
    for one in damaged:
        store = Store(f"{root}/{one.table}", storage_options or {})
        if not _why(store, one.version):
            continue
        target = f"{LOG}/{SET_ASIDE}/{one.version:020}-{uuid.uuid4().hex}.json"
        try:
            store.set_aside(entry_path(one.version), target)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Determinate(
                f"entry {one.version} of the log of {store.uri} can't be set aside: {error}",
                hint="check the store and its permissions, then retry",
            ) from error
