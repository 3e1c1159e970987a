"""Maintenance of a state's tables without Spark: merge small files, purge hidden rows, delete old files.

A compaction copies the rows of some files to one file, and commits it in their place with `dataChange` false.
A concurrent publish does not defeat it: rows that were hidden in the meantime are hidden in the copy too
(`delta.compaction`), and the commit is retried on the newest head. The copy is made again only if hidden rows
became visible again, the copy was deleted, or the table has no vectors and a publish rewrote a file.

The copy's name holds the last version that it may be committed with (`delta.vacuum`). If that version has
passed, the copy is renamed for a later one, further ahead each time, because renaming in an object store is a
slow copy.

Tombstones expire, once no later record can lose to them: their sequence is more than the lateness below the
lowest watermark that a record after the last publish is judged by (`pipeline.maintain.lowest_watermark`).
Whole files expire, once all tombstones in them have; nothing is rewritten.

The table's retention property is kept at the pipeline file's value. So a VACUUM by another program removes
nothing that a version within `state_history_days` needs. A VACUUM with RETAIN 0 does; then reading such a
version fails with the name of the missing file.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import groupby, pairwise
from typing import Any, Final

from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage
from tidemark.core.ids import ShardId
from tidemark.core.ledger import Conflict
from tidemark.core.publish import VERSION_NONE, BeingPublished, Published, StateStatus
from tidemark.delta.commit import file_name, file_version
from tidemark.delta.compaction import (
    Copied,
    Source,
    carried,
    columns_beside,
    copy_rows,
    read_source,
    table_schema,
)
from tidemark.delta.deletion_vectors import Rows
from tidemark.delta.head import LiveFile, TableHead, read_history
from tidemark.delta.protocol import VECTORS, check_features, is_on
from tidemark.delta.state import EXPIRED, Change, NewFile, StateTable
from tidemark.delta.state_status import app_id, read_state_status, same_rows_version
from tidemark.delta.store import housekeeping
from tidemark.delta.vacuum import (
    SMALL_BYTES,
    hidden_share,
    is_due_for_rewrite,
    retained_vector_bytes,
    retention_properties,
    vacuum,
)
from tidemark.ports.planes import Freed

FILE_BYTES: Final = 2 * SMALL_BYTES
TIDY_BYTES: Final = (128 << 10, 1 << 20, 16 << 20)
TIDY_FILES: Final = 16
TIDY_HIDDEN: Final = 1 / 3
BEGINNINGS_MAX: Final = 5
COMMITS_MAX: Final = 100
_AHEAD_GROWTH: Final = 8
_AHEAD_MAX: Final = 4096
_DAY_MS: Final = 86_400_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class MaintainedState:
    """A shard's tables for maintenance; `uri` is the shard's folder. `lateness` is in the unit of the
    watermark."""

    uri: str
    history_days: int = 7
    sequence_by: str | None = None
    lateness: int | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        return f"{self.uri}/state"

    @property
    def tombstones(self) -> str:
        return f"{self.uri}/tombstones"


class DeltaStateKeeper:
    """The `StateKeeper` port."""

    def __init__(self, pipeline: str, states: Mapping[ShardId, MaintainedState]) -> None:
        self._pipeline, self._states = pipeline, dict(states)

    def state_status(self, shard: ShardId, since: Published | None) -> StateStatus:
        kept = self._of(shard)
        app = app_id(self._pipeline, shard)
        return read_state_status(kept.state, app=app, since=since, storage_options=kept.storage_options)

    def merge(self, shard: ShardId, *, tombstones: int) -> None:
        """Merge small files of the state and the tombstones."""
        for table in self._tables(shard, tombstones):
            # Larger files are not merged, so that a row is not rewritten again and again.
            _compact(table, _below(SMALL_BYTES), operation="OPTIMIZE", files_min=2)

    def purge(self, shard: ShardId) -> None:
        """Rewrite the state's files that have many hidden rows."""
        for table in self._tables(shard, VERSION_NONE):
            kept = retained_vector_bytes(read_history(table.store), after_ms=self._after_ms(shard))
            _compact(table, partial(_is_due_for_rewrite, kept), operation="REORG", files_min=1)

    def vacuum(self, shard: ShardId, *, tombstones: int) -> None:
        """Delete files that no version within the retention needs."""
        kept_ms = self._of(shard).history_days * _DAY_MS
        for table in self._tables(shard, tombstones):
            vacuum(table.store, now_ms=_now_ms(), kept_ms=kept_ms)

    def too_late(self, shard: ShardId, *, watermark: int) -> Freed:
        """The files of tombstones that have expired at a watermark."""
        return self._expired(shard, self._dead(shard).head(), watermark)[1]

    def expire(self, shard: ShardId, *, last: Published, watermark: int) -> Freed:
        """Remove those files from the tombstones."""
        table = self._dead(shard)
        for _ in range(COMMITS_MAX):
            head = table.head()
            gone, found = self._expired(shard, head, watermark)
            if not gone:
                return found
            change = Change(
                "DELETE",
                head.rows - sum(file.live for file in gone),
                removed=[file.path for file in gone],
                txns={EXPIRED: int(last.txn)},
                of_rows=False,
                expires=True,
            )
            if not isinstance(table.commit(head, change), Conflict):
                with housekeeping(table.store.uri):
                    table.tidy_log()
                return found
        raise _overtaken(table)

    def _dead(self, shard: ShardId) -> StateTable:
        kept = self._of(shard)
        return StateTable(kept.tombstones, storage_options=kept.storage_options)

    def _expired(self, shard: ShardId, head: TableHead, watermark: int) -> tuple[list[LiveFile], Freed]:
        kept = self._of(shard)
        if kept.sequence_by is None or kept.lateness is None:
            return [], Freed(0, 0)
        found = too_late(head, kept.sequence_by, line=watermark - kept.lateness)
        return found, Freed(len(found), sum(file.bytes for file in found))

    def _after_ms(self, shard: ShardId) -> int:
        """The start of the retention period: files removed before it are not kept."""
        return _now_ms() - self._of(shard).history_days * _DAY_MS

    def _of(self, shard: ShardId) -> MaintainedState:
        if shard not in self._states:
            known = ", ".join(sorted(self._states))
            raise InvalidUsage(f"pipeline {self._pipeline!r} has no state {shard!r}", hint=f"it has {known}")
        return self._states[shard]

    def _tables(self, shard: ShardId, tombstones: int) -> list[StateTable]:
        """The state, and its tombstones if they have the given rows: an interrupted publish may have replaced
        the tombstones that the state still needs."""
        kept = self._of(shard)
        options = kept.storage_options
        state, dead = (StateTable(uri, storage_options=options) for uri in (kept.state, kept.tombstones))
        found = [state] if state.head().version != VERSION_NONE else []
        if tombstones != VERSION_NONE:
            same = same_rows_version(kept.tombstones, tombstones, options)
            if same == dead.head().version:
                found.append(dead)
        for table in found:
            _keep_history(table, retention_properties(kept.history_days))
        return found


def too_late(head: TableHead, sequence: str, *, line: int) -> list[LiveFile]:
    """The files with only sequences below the line, by their statistics. A file without statistics stays."""
    return [file for file in head.files.values() if _is_too_late(file.stats, sequence, line)]


def _is_too_late(stats: Mapping[str, Any], sequence: str, line: int) -> bool:
    highest = _number(stats.get("maxValues", {}).get(sequence))
    return highest is not None and highest < line and not stats.get("nullCount", {}).get(sequence)


def _number(bound: object) -> int | None:
    """A bound in statistics in the unit of `fold.sequence_number_sql`: itself, days or microseconds."""
    if isinstance(bound, int):
        return bound
    if not isinstance(bound, str):
        return None
    try:
        if "T" not in bound:
            return (date.fromisoformat(bound) - _EPOCH.date()).days
        at = datetime.fromisoformat(bound)
    except ValueError:
        return None
    return (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _keep_history(table: StateTable, wanted: Mapping[str, str]) -> None:
    """Set the table's retention to that of the pipeline file, if it differs."""
    for _ in range(COMMITS_MAX):
        head = table.head()
        if wanted.items() <= head.configuration.items():
            return
        metadata = {**head.metadata, "configuration": {**head.configuration, **wanted}}
        change = Change("SET TBLPROPERTIES", head.rows, metadata=metadata, of_rows=False)
        if not isinstance(table.commit(head, change), Conflict):
            return
    raise _overtaken(table)


def tidy(table: StateTable) -> None:
    """Tidy a table after a publish: merge its smallest files if they are many, or else rewrite files of which
    a third is hidden; write a checkpoint if one is due.

    A row is copied once for each size class that its file grows through, and two rows at most for each that
    was hidden, so the work is proportional to the rows published. No more is copied at once than one file
    gets; files that are larger are left to maintenance."""
    files = table.head().files.values()
    for least, limit in pairwise((0, *TIDY_BYTES)):
        # Smaller files don't count: otherwise a file would be copied again for each few of them.
        if sum(least <= file.bytes < limit for file in files) >= TIDY_FILES:
            _compact(table, _below(limit), operation="OPTIMIZE", files_min=2)
            break
    else:
        if any(map(_is_worn, files)):
            _compact(table, _is_worn, operation="REORG", files_min=1, groups_max=1)
    table.tidy_log()


def _is_worn(file: LiveFile) -> bool:
    # Smaller files are merged soon anyway.
    return TIDY_BYTES[0] <= file.bytes <= FILE_BYTES and hidden_share(file) > TIDY_HIDDEN


def _is_due_for_rewrite(kept: Mapping[str, int], file: LiveFile) -> bool:
    return is_due_for_rewrite(file, kept.get(file.path, 0))


def _below(limit: int) -> Callable[[LiveFile], bool]:
    return lambda file: file.bytes < limit


def _compact(
    table: StateTable,
    is_due: Callable[[LiveFile], bool],
    *,
    operation: str,
    files_min: int,
    groups_max: int | None = None,
) -> None:
    """Replace the files that are due by fewer files, group by group."""
    head = table.head()
    check_features(table.store.uri, head.protocol, head.metadata)
    schema = table_schema(head)
    sources = [read_source(table.store, file) for file in head.files.values() if is_due(file)]
    groups = _grouped(sources, lambda source: tuple(sorted(columns_beside(source, schema))))
    for group in groups[:groups_max]:
        if len(group) >= files_min:
            _replace(table, [source.file.path for source in group], is_due, operation, files_min)


def _grouped(sources: Iterable[Source], beside: Callable[[Source], tuple[str, ...]]) -> list[list[Source]]:
    """Group the files to merge, by total size, older ones first. Files with different extra columns are not
    mixed, because the copy would lose columns."""
    found: list[list[Source]] = []
    ordered = sorted(sources, key=lambda source: (beside(source), source.file.path))
    for _, alike in groupby(ordered, beside):
        found.append([])
        for source in alike:
            if found[-1] and _bytes([*found[-1], source]) > FILE_BYTES:
                found.append([])
            found[-1].append(source)
    return found


def _bytes(sources: Sequence[Source]) -> int:
    return sum(source.file.bytes for source in sources)


def _replace(
    table: StateTable,
    paths: Sequence[str],
    is_due: Callable[[LiveFile], bool],
    operation: str,
    files_min: int,
) -> None:
    for _ in range(BEGINNINGS_MAX):
        head = table.head()
        files = [head.files[path] for path in paths if path in head.files and is_due(head.files[path])]
        if len(files) < files_min:
            return
        hidden = table.hidden(head, [file.path for file in files])
        copied = [Copied(file.path, file.rows, hidden.get(file.path, Rows())) for file in files]
        sources = [read_source(table.store, file) for file in files]
        copy = copy_rows(
            table.store, sources, hidden, table_schema(head), version=head.version + 1, nonce=uuid.uuid4()
        )
        if _put_in(table, copied, copy, operation):
            return
    raise _overtaken(table)


def _put_in(table: StateTable, copied: Sequence[Copied], copy: NewFile | None, operation: str) -> bool:
    """Commit a copy in place of its files on the newest head; False if the copy must be made again."""
    try:
        for tried in range(COMMITS_MAX):
            head = table.head()
            paths = [file.path for file in copied if file.path in head.files]
            hidden = table.hidden(head, paths)
            try:
                gone = carried(copied, {path: hidden.get(path, Rows()) for path in paths})
            except Determinate:
                break
            if gone and not is_on(head.configuration, VECTORS):
                break
            if copy is not None:
                copy = _named_later(table, copy, head.version + 1, ahead=_AHEAD_GROWTH**tried)
                if copy is None:
                    return False
            has_rows = copy is not None and len(gone) < copy.rows
            if not has_rows and not paths:
                # All rows have moved to other files or were deleted.
                _forget(table, copy)
                return True
            added = [replace(copy, hidden=gone)] if copy is not None and has_rows else []
            change = Change(operation, head.rows, added=added, removed=paths, of_rows=False)
            outcome = table.commit(head, change)
            if not isinstance(outcome, Conflict):
                if not added:
                    _forget(table, copy)
                with housekeeping(table.store.uri):
                    table.tidy_log()
                return True
    except Indeterminate:
        # The entry may exist or may still appear: keep its file.
        raise
    except Exception:
        _forget(table, copy)
        raise
    _forget(table, copy)
    return False


def _named_later(table: StateTable, copy: NewFile, version: int, *, ahead: int) -> NewFile | None:
    """The copy under a name that allows a commit as `version`, renamed if necessary; None if a vacuum has
    deleted it as a leftover."""
    until = file_version(copy.path)
    if until is not None and until >= version:
        return copy
    path = file_name(version + min(ahead, _AHEAD_MAX), uuid.uuid4())
    try:
        table.store.move(copy.path, path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Determinate(
            f"{copy.path} of {table.store.uri} can't be renamed: {error}", hint="retry"
        ) from error
    return replace(copy, path=path)


def _forget(table: StateTable, copy: NewFile | None) -> None:
    if copy is not None:
        table.store.remove_quietly(copy.path)


def _overtaken(table: StateTable) -> BeingPublished:
    return BeingPublished(
        f"{table.store.uri} kept changing during maintenance",
        hint="the next maintenance does it",
    )
