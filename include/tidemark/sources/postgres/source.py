"""A PostgreSQL database as a source: captured before it is bound, acknowledged after it is durable.

A slot can't be read again once it has been advanced, so its changes are captured first: `offer` writes them
to files below the warehouse, durable and put if absent, and the steps it returns name those files. From there
on it is a source of files: ingest and replay read what was captured, and never the database.

The frontier has two partitions: `files`, where records stand, and `wal`, the end of the last commit that is
bound. A crash between capture and binding leaves files that no binding names; the next capture starts at the
bound position and finds or writes the same ones (Invariant 1).

`acknowledge` advances the slot, and nothing else does (Invariant 10). It is called after the checkpoint is
durable, with the frontier of a bound transaction, which is a commit's end. Where the slot then has nothing
for this pipeline, traffic of other tables alone, it is advanced past that too: WAL is not kept for it
(scenario F13). Before it is advanced, the position is noted beside the captured files: a slot that is further
than that note has lost changes.

Known limitations: tables are first read one by one, so until the log is read past the last of these readings
they are not at one point in time. Captured files are kept; the pipeline's history is replayed from them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final

import psycopg

from tidemark.config.model import PipelineConfig
from tidemark.config.shard import ShardConfig
from tidemark.config.source import PostgresSource
from tidemark.core.binding import Binding, BindingRecord, Step
from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError
from tidemark.core.frontier import Frontier
from tidemark.core.replay import Replayable
from tidemark.ports.control import Ledger
from tidemark.ports.source import Standing
from tidemark.sources.change import find_change, listed
from tidemark.sources.content import read_content
from tidemark.sources.listing import Found
from tidemark.sources.lsn import lsn_text, parsed_lsn
from tidemark.sources.manifest import PARTITION, Manifest
from tidemark.sources.postgres import slot as slots
from tidemark.sources.postgres.capture import CHANGES_PER_PEEK, Counted, captured, first_needed
from tidemark.sources.postgres.changes import WAL, ChangeFiles
from tidemark.sources.postgres.connection import connect, told
from tidemark.sources.postgres.snapshot import (
    find_snapshot,
    noted_tables,
    renumbered,
    take_snapshot,
)
from tidemark.sources.postgres.tables import (
    Published,
    identity_flaws,
    published_tables,
    raise_first,
    shape_flaws,
    taken_shards,
)

ACKNOWLEDGED: Final = "acknowledged"


class SlotSource:
    """The `Source` port over a replication slot. Connects only to offer and to acknowledge."""

    def __init__(self, config: PipelineConfig, *, bindings: Ledger[BindingRecord]) -> None:
        if not isinstance(config.source, PostgresSource):
            raise InvalidUsage(f"pipeline {config.name!r} reads a {config.source.type} source")
        self._config = config
        self._source = config.source
        self._bindings = bindings
        self.files = ChangeFiles(config.source_location)

    def offer(self, last: Binding | None) -> Sequence[Step]:
        """First readings of tables that have none, then the changes above the last binding."""
        known = dict(Manifest.from_json(last.manifest).snapshots) if last is not None else {}
        is_new = self._has_new_tables(known, last)
        with told(), closing(self.connect()) as db:
            marked = slots.mark(db) if is_new else 0
            with db.transaction():
                slots.lock(db, self._source.slot)
                found = slots.usable_slot(db, self._source.slot)
                if last is not None:
                    slots.check_continues(found, bound=last.upper[WAL], acknowledged=self.acknowledged)
                published, shards = self._tables(db)
                lower = last.upper if last is not None else _start(found.confirmed)
                missing = {name: (published[name], shards[name]) for name in shards if name not in known}
                steps = self._first_readings(missing, known, lower, lsn_min=max(found.confirmed, lower[WAL]))
                lower = steps[-1].upper if steps else lower
                steps += captured(db, self._config, self._source, self.files, lower, known)
                if not steps:
                    # Of a table that has changed its columns, what came before is bound first.
                    raise_first(shape_flaws(published, shards))
        if is_new and not steps:
            # All new tables are empty, and the slot has nothing up to the mark: that they were read is kept.
            upper = Frontier.of({PARTITION: lower[PARTITION], WAL: marked})
            steps = [Step(upper, Manifest("json", (), known).to_json())]
        return steps

    def inspect(self, binding: Binding) -> str:
        """Which captured files are not what they were; empty when all are."""
        folder = os.fspath(self.files.folder)

        def hash_of(file: Found) -> str:
            return read_content(f"{folder}/{file.name}", file_format="json", count_records=False).hash

        files = Manifest.from_json(binding.manifest).files
        changes = (find_change(folder, file, hash_of) for file in files)
        return listed([change for change in changes if change is not None])

    def replayable(self, binding: Binding) -> Replayable:
        """Captured changes stay until maintenance removes what lies below the retention."""
        return Replayable(self.inspect(binding))

    def acknowledge(self, frontier: Frontier) -> None:
        """Advance the slot to the frontier, and on over what this pipeline doesn't need. Never goes back."""
        with told(), closing(self.connect()) as db:
            self._advance(db, frontier[WAL])
            reached, is_needed = self._unneeded(db)
            if not reached and not is_needed:
                marked = slots.mark(db)
                reached, is_needed = self._unneeded(db)
                reached = marked if not reached and not is_needed else reached
            self._advance(db, reached)

    def standing(self) -> Standing:
        """Where the slot stands, and how much log the server keeps for it."""
        try:
            with told(), closing(self.connect()) as db:
                found = slots.usable_slot(db, self._source.slot)
        except TidemarkError as error:
            return Standing("", trouble=str(error))
        kept = f"{found.retained_bytes:,} bytes of log kept by the server"
        return Standing(lsn_text(found.confirmed), cost=kept)

    def shown(self, frontier: Frontier) -> str:
        return lsn_text(frontier[WAL])

    def connect(self) -> psycopg.Connection:
        return connect(self._source.postgres_conn_id)

    @property
    def acknowledged(self) -> int:
        """How far the slot may have been advanced; 0 when it never was."""
        path = self.files.folder / ACKNOWLEDGED
        return parsed_lsn(path.read_text()) if path.exists() else 0

    def _advance(self, db: psycopg.Connection, lsn: int) -> None:
        with db.transaction():
            slots.lock(db, self._source.slot)
            found = slots.usable_slot(db, self._source.slot)
            if lsn <= found.confirmed:
                return
            if lsn > self.acknowledged:
                self.files.replace(self.files.folder / ACKNOWLEDGED, lsn_text(lsn).encode())
            slots.advance(db, self._source.slot, lsn)

    def _unneeded(self, db: psycopg.Connection) -> tuple[int, bool]:
        """Up to which commit the slot has nothing that this pipeline takes, 0 for none, and whether it has
        something after that. A table that the last binding knows counts, and one that was read since,
        whatever our settings say: a process with older ones must not let go of what a newer one takes."""
        changes_max = 1
        while True:
            with db.transaction():
                slots.lock(db, self._source.slot)
                tables = taken_shards(self._config).keys() | self._bound_tables()
                messages = Counted(
                    slots.peek(db, self._source.slot, self._source.publication, changes_max=changes_max)
                )
                reached, is_needed = first_needed(messages, tables)
            if is_needed or messages.count < changes_max or changes_max >= CHANGES_PER_PEEK:
                return reached, is_needed
            changes_max = CHANGES_PER_PEEK

    def _tables(self, db: psycopg.Connection) -> tuple[dict[str, Published], dict[str, ShardConfig]]:
        """The published tables and the shards that follow them, once their rows can be told apart."""
        published = published_tables(db, self._source.publication)
        shards = taken_shards(self._config)
        raise_first(identity_flaws(published, shards, self._source.publication))
        return published, shards

    def _bound_tables(self) -> set[str]:
        upper = self._bindings.head().upper
        last = [one for one in self._bindings.read(upper - 1, upper) if isinstance(one, Binding)]
        bound = {table for one in last for table in Manifest.from_json(one.manifest).snapshots}
        return bound | noted_tables(self.files, lsn_min=max((one.upper[WAL] for one in last), default=0))

    def _has_new_tables(self, known: dict[str, int], last: Binding | None) -> bool:
        """Whether a table was never read into its shard; forgets those that the pipeline has given up, and
        those that go to another shard now.

        Either takes a higher generation: else a process with older settings would pass over the changes of a
        table that was added, and nobody would know."""
        shards = taken_shards(self._config)
        before = shards_of(last) if last is not None else {}
        left = sorted(known.keys() - shards.keys())
        moved = sorted(table for table in known.keys() & shards.keys() if before.get(table) != shards[table].name)
        tables = self._config.tables
        if tables is not None and any(tables.asks_source(table) for table in left):
            fact = f"another run has taken in tables meanwhile: {', '.join(left)}"
            raise Determinate(fact, hint="run again: the pipeline's record of its tables has them")
        bound = generation_of(last) if last is not None else 0
        if self._config.generation < bound or ((left or moved) and self._config.generation == bound):
            what = f"table {[*left, *moved][0]} is captured" if left or moved else "changes are bound"
            raise InvalidUsage(
                f"{what} by generation {bound} of the pipeline, and this is generation"
                f" {self._config.generation} {'with another shard for it' if moved else 'without it'}",
                hint="use the newest pipeline file; to take a table out of it, or to another shard, raise its"
                " generation",
            )
        for table in (*left, *moved):
            del known[table]
        return not known.keys() >= shards.keys()

    def _first_readings(
        self,
        missing: Mapping[str, tuple[Published, ShardConfig]],
        known: dict[str, int],
        lower: Frontier,
        *,
        lsn_min: int,
    ) -> list[Step]:
        """Steps with the rows of the tables that were never read; notes in `known` where each was read."""
        steps: list[Step] = []
        seq = lower[PARTITION]
        for name, (published, shard) in sorted(missing.items()):
            snapshot = find_snapshot(self.files, name, shard, lsn_min=lsn_min)
            if snapshot is None:
                slot = f"tidemark_{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}_{os.getpid()}"
                with closing(connect(self._source.postgres_conn_id, replication=True)) as db:
                    rows_max = self._config.transaction.max_records
                    snapshot = take_snapshot(db, self.files, published, shard, slot=slot, rows_max=rows_max)
            known[name] = snapshot.lsn
            files = renumbered(snapshot, seq)
            for group in self._grouped(snapshot.rows):
                bound = tuple(files[at] for at in group)
                seq += len(bound)
                upper = Frontier.of({PARTITION: seq, WAL: lower[WAL]})
                steps.append(Step(upper, Manifest("json", bound, dict(known)).to_json()))
        return steps

    def _grouped(self, rows: Sequence[int]) -> list[list[int]]:
        """Whole files, by index, in groups of at most `max_records` rows."""
        records_max = self._config.transaction.max_records
        groups: list[list[int]] = []
        total = 0
        for at, count in enumerate(rows):
            if not groups or (records_max is not None and total + count > records_max):
                groups.append([])
                total = 0
            groups[-1].append(at)
            total += count
        return groups


def generation_of(binding: Binding) -> int:
    """Which generation of the pipeline made a binding."""
    return int(json.loads(binding.configuration.text).get("generation", 0))


def shards_of(binding: Binding) -> dict[str, str]:
    """The shard that each table went to, by a binding's own configuration."""
    shards = json.loads(binding.configuration.text)["shards"]
    return {shard["route"]["table"]: shard["name"] for shard in shards if shard.get("route")}


def _start(confirmed: int) -> Frontier:
    """Before the first binding: no file, and the log from where the slot was made."""
    return Frontier.of({PARTITION: 0, WAL: confirmed})
