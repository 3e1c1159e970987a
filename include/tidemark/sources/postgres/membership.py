"""Which tables a pipeline takes now, against those that it took when it last bound something."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import psycopg

from tidemark.config.model import PipelineConfig
from tidemark.config.shard import ShardConfig
from tidemark.config.source import PostgresSource
from tidemark.core.binding import Binding
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.sources.manifest import Manifest, TableRead
from tidemark.sources.postgres.catalog import (
    Facts,
    is_rewritten,
    put_facts,
    recorded_facts,
    reread,
    truncated_tables,
)
from tidemark.sources.postgres.changes import ChangeFiles
from tidemark.sources.postgres.snapshot import asked_again
from tidemark.sources.postgres.tables import Published, shape_flaws, taken_shards


def known_readings(config: PipelineConfig, last: Binding | None) -> dict[str, TableRead]:
    """Where each table was read into the shard that it goes to now. Those are left out that the pipeline has
    given up, and those that go to another shard.

    Either takes a higher generation: else a process with older settings would pass over the changes of a
    table that was added, and nobody would know."""
    if last is None:
        return {}
    known = dict(Manifest.from_json(last.manifest).snapshots)
    shards, before = taken_shards(config), _shards_of(last)
    left = sorted(known.keys() - shards.keys())
    both = known.keys() & shards.keys()
    moved = sorted(table for table in both if before.get(table) != shards[table].name)
    if config.tables is not None and any(config.tables.asks_source(table) for table in left):
        fact = f"another run has taken in tables meanwhile: {', '.join(left)}"
        raise Determinate(fact, hint="run again: the pipeline's record of its tables has them")
    bound = int(json.loads(last.configuration.text).get("generation", 0))
    if config.generation < bound or ((left or moved) and config.generation == bound):
        what = f"table {[*left, *moved][0]} is captured" if left or moved else "changes are bound"
        raise InvalidUsage(
            f"{what} by generation {bound} of the pipeline, and this is generation"
            f" {config.generation} {'with another shard for it' if moved else 'without it'}",
            hint="use the newest pipeline file; to take a table out of it, or to another shard, raise its"
            " generation",
        )
    return {table: read for table, read in known.items() if table not in left and table not in moved}


def wanted_tables(
    config: PipelineConfig, files: ChangeFiles, known: Mapping[str, TableRead]
) -> dict[str, int]:
    """The tables to read, and the position that a reading of each must reach at least."""
    asked = asked_again(files)
    return {
        name: asked.get(name, 0)
        for name in sorted(taken_shards(config))
        if name not in known or known[name].lsn < asked.get(name, 0)
    }


class SameTables:
    """Looks whether tables are still what was read: the same ones, with nothing done to them that their log
    does not carry."""

    def __init__(
        self,
        db: psycopg.Connection,
        source: PostgresSource,
        files: ChangeFiles,
        published: Mapping[str, Published],
        *,
        lower: int,
    ) -> None:
        self._db, self._source, self._files, self._published = db, source, files, published
        self._lower = lower

    def refusals(
        self, known: Mapping[str, TableRead], shards: Mapping[str, ShardConfig], *, anew: Container[str]
    ) -> Iterator[InvalidUsage]:
        """What has happened to tables, but for those that are read `anew`; and which of those can't be read.
        Whether a table's columns fit is told along with it: its next reading needs that."""
        for table, shard in shards.items():
            flaws = [] if table in anew else list(self.flaws({table: known[table]}))
            yield from flaws
            if flaws or table in anew:
                yield from shape_flaws(self._published, {table: shard})

    def flaws(self, known: Mapping[str, TableRead]) -> Iterator[InvalidUsage]:
        """What has happened to each table, with what to do. Where nothing is on record, nothing is told."""
        for table, read in known.items():
            if read.oid not in (0, self._published[table].relation.oid):
                yield another_table(table)
                continue
            try:
                before, now = recorded_facts(self._files, table, read), self._published[table].facts
            except InvalidUsage as error:
                yield error
                continue
            if before is None:
                continue
            if found := [*before.differences(now), *self._rewritten(table, before, now)]:
                yield InvalidUsage(f"table {table}: {', '.join(found)}", hint=reread(table))

    def _rewritten(self, table: str, before: Facts, now: Facts) -> Iterator[str]:
        """Whether all rows of the table, or of a partition, are new, and no truncate tells why."""
        for oid in before.other_files(now):
            if is_rewritten(self._db, oid, since=before.since.get(oid, 0)):
                if self._published[table].relation.oid not in self._truncated:
                    yield "its rows were rewritten, or were not logged for a while, and were not sent"
                return

    @cached_property
    def _truncated(self) -> set[int]:
        source = self._source
        return truncated_tables(self._db, source.slot, source.publication, lower=self._lower)

    def recorded(self, table: str, read: TableRead) -> TableRead:
        """A reading with what the catalog says now."""
        before, published = recorded_facts(self._files, table, read), self._published[table]
        facts = published.facts if before is None else before.carried_on(published.facts)
        name = read.catalog if facts == before else put_facts(self._files, facts)
        return replace(read, oid=read.oid or published.relation.oid, catalog=name)


def another_table(table: str) -> InvalidUsage:
    """Rows of two tables that had one name at different times are never mixed."""
    return InvalidUsage(
        f"table {table} is not the one that was read: it was dropped and made anew, or renamed",
        hint=reread(table),
    )


def _shards_of(binding: Binding) -> dict[str, str]:
    """The shard that each table went to, by a binding's own configuration."""
    shards = json.loads(binding.configuration.text)["shards"]
    return {shard["route"]["table"]: shard["name"] for shard in shards if shard.get("route")}
