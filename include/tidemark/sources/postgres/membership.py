"""Which tables a pipeline takes now, against those that it took when it last bound something."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import replace

from tidemark.config.model import PipelineConfig
from tidemark.core.binding import Binding
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.sources.manifest import Manifest, TableRead
from tidemark.sources.postgres.tables import Published, taken_shards


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


def same_tables(
    known: Mapping[str, TableRead], published: Mapping[str, Published], *, but: Container[str]
) -> dict[str, TableRead]:
    """What is known of tables, once each that has a name is known to be the one that was read under it, `but`
    for those that are read anew. Where it is not on record, that is the one of now."""
    for table, read in known.items():
        if table not in but and read.oid not in (0, published[table].relation.oid):
            raise another_table(table)
    return {
        table: replace(read, oid=read.oid or published[table].relation.oid) for table, read in known.items()
    }


def another_table(table: str) -> InvalidUsage:
    """Rows of two tables that had one name at different times are never mixed."""
    return InvalidUsage(
        f"table {table} is not the one that was read: it was dropped and made anew, or renamed",
        hint=f"`tidemark source reread PIPELINE {table}` replaces what its shard has with the rows of now",
    )


def _shards_of(binding: Binding) -> dict[str, str]:
    """The shard that each table went to, by a binding's own configuration."""
    shards = json.loads(binding.configuration.text)["shards"]
    return {shard["route"]["table"]: shard["name"] for shard in shards if shard.get("route")}
