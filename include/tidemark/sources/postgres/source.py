"""A PostgreSQL database as a source: captured before it is bound, acknowledged after it is durable.

A slot can't be read again once it has been advanced, so its changes are captured first: `offer` writes them
to files below the warehouse, durable and put if absent, and returns steps that name those files. From there
on it is a source of files: ingest and replay read the captured files, and never the database.

The frontier has two partitions: `files`, to which records belong, and `wal`, the end of the last bound
commit. A crash between capture and binding leaves files that no binding names. The next capture starts at the
bound position, and finds or writes the same files (Invariant 1).

Only `acknowledge` advances the slot (Invariant 10). It is called after the checkpoint is durable, with the
frontier of a bound transaction, which is the end of a commit. If the slot then has only changes of other
tables, it is advanced past them too, so that the server doesn't retain WAL for them (scenario F13; see
`slot_advance`). The tables of the last binding count as needed. So when a table leaves the pipeline and
nothing else is to be bound, an empty transaction records that (scenarios F8, F9).

Replays read the captured files. Maintenance removes those below the retention (`unneeded`, `let_go`).

Known limitation: tables that are read at different times (after a crash, or because they were added later)
are consistent with each other only once the WAL is read past the last of their snapshots.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import psycopg

from tidemark.config.model import PipelineConfig
from tidemark.config.shard import ShardConfig
from tidemark.config.source import PostgresSource
from tidemark.core.binding import Binding, Step
from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError
from tidemark.core.ids import TXN_FIRST, Frontier, ShardId, Txn
from tidemark.core.replay import Replayable
from tidemark.ports.control import Ledger
from tidemark.ports.source import ShardKeysPort, SourceReport, Unneeded, Waiting
from tidemark.sources.files.bound_files import PARTITION, Manifest, TableRead
from tidemark.sources.files.content import footer_hash, read_content
from tidemark.sources.files.listing import Found, find_change, listed
from tidemark.sources.postgres import slot as slots
from tidemark.sources.postgres.capture import (
    SameTables,
    Start,
    captured,
    known_readings,
    wanted_tables,
    while_paused,
    with_its_settings,
)
from tidemark.sources.postgres.change_files import (
    WAL,
    ChangeFiles,
    let_go,
    let_go_unbound,
    unneeded,
)
from tidemark.sources.postgres.pgoutput import lsn_text
from tidemark.sources.postgres.records import place_of, sweep_of, swept_away
from tidemark.sources.postgres.slot import SlotInUse, connect, translated_errors
from tidemark.sources.postgres.slot_advance import SlotAdvance, SlotContents, acknowledged, last_bound
from tidemark.sources.postgres.snapshot import (
    Snapshot,
    Tables,
    ask_again,
    find_snapshot,
    read_tables,
    reading_prefix,
    steps_of,
)
from tidemark.sources.postgres.tables import (
    PublishedTable,
    identity_flaws,
    publish_flaw,
    published_tables,
    raise_all,
    shape_flaws,
    taken_shards,
)

LOOK_SECONDS_MAX: Final = 10
LOOK_CHANGES_MAX: Final = 10_000
_AT_LEAST: Final = "or more source transactions"


@dataclass(frozen=True, slots=True)
class Looks:
    """Read-only checks of a pipeline's database, for `status` and `source check`."""

    config: PipelineConfig
    source: PostgresSource
    files: ChangeFiles
    bindings: Ledger[Binding]

    def waiting(self, last: Binding | None) -> Waiting:
        """The first source transaction that is not bound; `trouble` if that can't be determined quickly."""
        if last is None:
            return _untold("nothing is bound yet: the first snapshot of its tables waits")
        try:
            known = known_readings(self.config, with_its_settings(self.bindings, last))
            wanted = wanted_tables(self.config, self.files, known)
            if wanted:
                return _untold(f"tables wait for a snapshot: {', '.join(wanted)}")
            with translated_errors(), closing(connect(self.source.postgres_conn_id)) as db:
                found = self._into_slot(db, bound=last.upper[WAL])
        except TidemarkError as error:
            return _untold(str(error))
        if found.first is not None:
            return Waiting(1, oldest_seconds=found.first.committed_seconds, unit=_AT_LEAST)
        if not found.is_all:
            return _untold(
                f"the first {LOOK_CHANGES_MAX:,} changes in the slot are bound already, or belong to"
                " other tables"
            )
        return Waiting(unit=_AT_LEAST)

    def _into_slot(self, db: psycopg.Connection, *, bound: int) -> SlotContents:
        slot = slots.usable_slot(db, self.source.slot)
        slots.check_continues(slot, bound=bound, acknowledged=acknowledged(self.files))
        db.execute(f"SET statement_timeout = '{LOOK_SECONDS_MAX}s'")
        looks = SlotAdvance(self.config, self.source, self.files, self.bindings)
        try:
            return looks.look(db, bound=bound, changes_most=LOOK_CHANGES_MAX)
        except psycopg.errors.QueryCanceled:
            fact = f"slot {slot.name!r} could not be looked into in {LOOK_SECONDS_MAX} s"
            hint = "a run uses it, or its first transaction is large; try again when the run is done"
            raise Determinate(fact, hint=hint) from None

    def changed_tables(self) -> tuple[int, list[InvalidUsage]]:
        """The number of tables compared with their catalog records, and an error for each difference."""
        last = last_bound(self.bindings)
        known = known_readings(self.config, with_its_settings(self.bindings, last))
        wanted = wanted_tables(self.config, self.files, known)
        if last is None or not known.keys() - wanted.keys():
            return 0, []
        with translated_errors(), closing(connect(self.source.postgres_conn_id)) as db, db.transaction():
            slots.lock(db, self.source.slot)
            published = published_tables(db, self.source.publication)
            same = SameTables(db, self.source, self.files, published, lower=last.upper[WAL])
            read = {name: one for name, one in known.items() if name in published and name not in wanted}
            return len(read), list(same.flaws(read))


def _untold(trouble: str) -> Waiting:
    return Waiting(trouble=trouble, unit=_AT_LEAST)


logger = logging.getLogger(__name__)

DAY_SECONDS: Final = 86_400


class SlotSource:
    """The `Source` port over a replication slot. Ingest and replay need no connection to the database."""

    def __init__(
        self, config: PipelineConfig, *, bindings: Ledger[Binding], shard_keys: ShardKeysPort
    ) -> None:
        if not isinstance(config.source, PostgresSource):
            raise InvalidUsage(f"pipeline {config.name!r} reads a {config.source.type} source")
        self._config = config
        self._source = config.source
        self._bindings, self._shard_keys = bindings, shard_keys
        self.files = ChangeFiles(config.source_location)

    def offer(self, last: Binding | None) -> Sequence[Step]:
        """Snapshots of the tables that need one, then the changes above the last binding. Returns nothing if
        a table is to be read into a shard whose bound transactions are not all in its log: this run completes
        them, and the next one reads the table."""
        known = known_readings(self._config, with_its_settings(self._bindings, last))
        wanted = wanted_tables(self._config, self.files, known)
        changed = bool(wanted) or (last is not None and known.keys() != _snapshots(last).keys())
        with translated_errors(), closing(self.connect()) as db:
            marked = slots.mark(db) if changed else 0
            with db.transaction():
                slots.lock(db, self._source.slot)
                found = slots.usable_slot(db, self._source.slot)
                if last is not None:
                    slots.check_continues(found, bound=last.upper[WAL], acknowledged=self.acknowledged)
                    # Tables that are read anew miss nothing.
                    self._require_bound(found, last, [name for name in known if name not in wanted])
                published, shards = self._tables(db)
                lower = last.upper if last is not None else _start(found.confirmed)
                same = SameTables(db, self._source, self.files, published, lower=lower[WAL])
                tables = {name: (published[name], shards[name]) for name in wanted}
                raise_all(same.refusals(known, shards, anew=wanted))
                known = {
                    name: same.recorded(name, read) for name, read in known.items() if name not in wanted
                }
                again = self._again(tables)
                for shard in sorted(again):
                    if self._shard_keys.is_paused(shard):
                        raise while_paused("a table can't be read again", shard)
                if not all(self._shard_keys.is_settled(shard) for shard in again):
                    logger.info(
                        "tables are read again once all bound transactions are complete: %s", sorted(again)
                    )
                    return []
                lsn_min = max(found.confirmed, lower[WAL])
                wanted = {name: max(lsn, lsn_min) for name, lsn in wanted.items()}
                readings = self._read(db, same, tables, wanted, again)
                known.update({one.table: one.read for one in readings})
                steps = steps_of(readings, known, lower, self._config.transaction)
                lower = steps[-1].upper if steps else lower
                start = Start(lower, known, published, follows=bool(steps))
                capture = captured(db, self._config, self._source, self.files, start, self._shard_keys)
                steps += capture.steps
                if not steps:
                    # If a table has changed its columns, the changes before that are bound first.
                    raise_all(shape_flaws(published, shards))
        if changed and not steps and not capture.waits:
            # The new tables are empty, or tables left the pipeline, and the slot has nothing up to the mark.
            # An empty transaction binds the new set of tables.
            upper = Frontier.of({PARTITION: lower[PARTITION], WAL: marked})
            steps = [Step(upper, Manifest("json", (), known).to_json())]
        return steps

    def nothing_after(self, last: Binding | None, *, lost: bool) -> Step:
        """No change. After a lost binding every table is read anew: the slot may have let go of what it
        had."""
        upper = last.upper if last is not None else _start(0)
        known = {} if lost or last is None else dict(_snapshots(last))
        return Step(upper, Manifest("json", (), known).to_json())

    def _require_bound(self, found: slots.SlotState, last: Binding, tables: Sequence[str]) -> None:
        """`SlotLost` where the slot has let go of changes of these tables that were captured, and that no
        binding has: the history was set back, and everything else with it."""
        bound = last.upper[WAL]
        unbound = let_go_unbound(self.files, bound=bound, confirmed=found.confirmed)
        if tables and unbound:
            raise slots.SlotLost(
                f"replication slot {found.name!r} is at {lsn_text(found.confirmed)}, but only"
                f" {lsn_text(bound)} is bound: captured changes ({unbound[0]} first) are in no binding, so"
                " the warehouse was restored from a copy",
                hint="`tidemark recover PIPELINE --restored --yes`, and for each of these tables `tidemark"
                f" source reread PIPELINE TABLE`: {', '.join(tables)}",
            )

    def ask_again(self, table: str) -> None:
        """Request that the next run reads a table again. Raises `InvalidUsage` for a table that the pipeline
        doesn't have."""
        if table not in taken_shards(self._config):
            known = ", ".join(sorted(taken_shards(self._config))) or "no table yet"
            raise InvalidUsage(f"the pipeline does not take table {table}", hint=f"it takes {known}")
        with translated_errors(), closing(self.connect()) as db:
            ask_again(self.files, table, lsn=slots.mark(db))

    def inspect(self, binding: Binding) -> str:
        """Which captured files have changed; empty if none has."""
        folder = os.fspath(self.files.folder)

        def hash_of(file: Found) -> str:
            path = f"{folder}/{file.name}"
            if file.name.endswith(".parquet"):
                return footer_hash(path)
            return read_content(path, file_format="json", count_records=False).hash

        files = Manifest.from_json(binding.manifest).files
        changes = (find_change(folder, file, hash_of) for file in files)
        return listed([change for change in changes if change is not None])

    def replayable(self, bindings: Sequence[Binding]) -> Sequence[Replayable]:
        """Which transactions still have all their files, and until when at least. Maintenance removes files
        below the retention. That is counted from the seal, so they stay at least that long after the
        capture."""
        return [Replayable(self.inspect(binding), self._kept_until(binding)) for binding in bindings]

    def _kept_until(self, binding: Binding) -> float | None:
        days = self._config.retention.log_days
        written = [file.mtime_ns for file in Manifest.from_json(binding.manifest).files]
        return max(written) / 1e9 + days * DAY_SECONDS if written and days is not None else None

    def unneeded(self, since: Txn) -> Unneeded:
        """The captured files below the retention: those that are acknowledged, and those that wait for it."""
        bound, acknowledged = self._bound_below(since), self.acknowledged
        return unneeded(self.files, bound=bound, acknowledged=acknowledged, catalogs=self._catalogs())

    def let_go(self, since: Txn) -> Unneeded:
        """Delete the unneeded files; idempotent."""
        below = min(self._bound_below(since), self.acknowledged)
        return let_go(self.files, below=below, catalogs=self._catalogs())

    def _catalogs(self) -> Set[str] | None:
        """The catalog records that the newest binding names; None if nothing is bound."""
        last = last_bound(self._bindings)
        if last is None:
            return None
        return {read.catalog for read in Manifest.from_json(last.manifest).snapshots.values()}

    def _bound_below(self, since: Txn) -> int:
        """The WAL position where transaction `since`, the first within the retention, begins."""
        self._bindings.head()
        found = self._bindings.read(since - 1, since) if since > TXN_FIRST else ()
        return max((one.upper[WAL] for one in found), default=0)

    def acknowledge(self, frontier: Frontier) -> None:
        """Advance the slot to the frontier, and past changes that the pipeline doesn't need; never
        backwards. A slot that is in use is only a warning."""
        try:
            with translated_errors(), closing(self.connect()) as db:
                SlotAdvance(self._config, self._source, self.files, self._bindings).up_to(db, frontier[WAL])
        except SlotInUse as error:
            # Everything is durable. The slot only retains more WAL than needed until the next run.
            logger.warning("%s; the next run acknowledges this too", error.fact)

    def status(self) -> SourceReport:
        """The slot's position, and how much WAL the server retains for it; or why it can't continue."""
        # Read the binding before the slot, and the acknowledged position after it, so that a concurrent run
        # does not cause a false alarm.
        bound = last_bound(self._bindings)
        position = ""
        try:
            with translated_errors(), closing(self.connect()) as db:
                found = slots.usable_slot(db, self._source.slot)
                position = lsn_text(found.confirmed)
                if bound is not None:
                    slots.check_continues(found, bound=bound.upper[WAL], acknowledged=self.acknowledged)
        except TidemarkError as error:
            return SourceReport(position, trouble=str(error))
        kept = found.retained_bytes
        return SourceReport(position, cost=f"{kept:,} bytes of log kept by the server", retained_bytes=kept)

    def waiting(self, last: Binding | None) -> Waiting:
        """The first source transaction in the slot that is not bound and changes a table of the pipeline,
        with the time of its commit. Does not move the slot; a concurrent run waits for this check."""
        return self._looks.waiting(last)

    def shown(self, frontier: Frontier) -> str:
        return lsn_text(frontier[WAL])

    def changed_tables(self) -> tuple[int, list[InvalidUsage]]:
        """The number of tables compared with their catalog records, and an error for each change that the WAL
        does not carry. Tables that the next run reads again are left out."""
        return self._looks.changed_tables()

    @property
    def _looks(self) -> Looks:
        return Looks(self._config, self._source, self.files, self._bindings)

    def connect(self) -> psycopg.Connection:
        return connect(self._source.postgres_conn_id)

    @property
    def acknowledged(self) -> int:
        """The position up to which the slot may have been advanced; 0 if it never was."""
        return acknowledged(self.files)

    def _tables(self, db: psycopg.Connection) -> tuple[dict[str, PublishedTable], dict[str, ShardConfig]]:
        """The tables of the publication, and the shards by table. Raises `InvalidUsage` if changes would be
        sent incompletely."""
        publication = self._source.publication
        published = published_tables(db, publication)
        shards = taken_shards(self._config)
        flaw = publish_flaw(db, publication)
        raise_all([*([flaw] if flaw else []), *identity_flaws(published, shards, publication)])
        return published, shards

    def _again(self, tables: Tables) -> Set[ShardId]:
        """The shards of these tables that may already have rows."""
        shards = [ShardId(shard.name) for _, shard in tables.values()]
        return set(shards) - self._shard_keys.untouched(shards) if shards else set()

    def _read(
        self,
        db: psycopg.Connection,
        same: SameTables,
        tables: Tables,
        lsn_min: Mapping[str, int],
        again: Set[ShardId],
    ) -> list[Snapshot]:
        """A recent enough snapshot of each table: one that a crash left, or a new one."""
        found = {
            name: find_snapshot(self.files, name, shard, lsn_min=lsn_min[name], oid=published.relation.oid)
            for name, (published, shard) in tables.items()
        }
        # A table that was changed since its snapshot is read again.
        found = {
            name: one and (None if list(same.flaws({name: one.read})) else one) for name, one in found.items()
        }
        to_read = {name: tables[name] for name, one in found.items() if one is None}
        rows_max = self._config.transaction.max_records
        new = read_tables(db, self._source, self.files, to_read, rows_max=rows_max)
        usable = {**{name: one for name, one in found.items() if one is not None}, **new}
        return [
            self._swept(usable[name], *tables[name]) if tables[name][1].name in again else usable[name]
            for name in tables
        ]

    def _swept(self, snapshot: Snapshot, published: PublishedTable, shard: ShardConfig) -> Snapshot:
        """The snapshot, preceded by a deletion of every key that the shard may have."""
        place = place_of(published.relation, lsn=snapshot.read.lsn, xid=0)
        prefix = f"{snapshot.read.lsn:016x}-{reading_prefix(published.name, shard)}-s"
        paths, sweep = self._shard_keys.files(ShardId(shard.name)), sweep_of(shard, place)
        try:
            files = [self.files.link(path, f"{prefix}{at:04d}", at, sweep) for at, path in enumerate(paths)]
        except FileNotFoundError as error:
            raise swept_away(shard.name, error) from None
        return replace(snapshot, sweep=tuple(files))


def _snapshots(binding: Binding) -> Mapping[str, TableRead]:
    return Manifest.from_json(binding.manifest).snapshots


def _start(confirmed: int) -> Frontier:
    """The frontier before the first binding: no files, and the slot's first position."""
    return Frontier.of({PARTITION: 0, WAL: confirmed})
