"""Whether the columns of a table, as they were when rows were written, fit the shard that it goes to."""

from __future__ import annotations

from collections.abc import Sequence, Set

from tidemark.config.shard import ShardConfig
from tidemark.core.errors import InvalidUsage
from tidemark.sources.pgoutput import Relation, RelationColumn, plain_name
from tidemark.sources.postgres.catalog import reread
from tidemark.sources.postgres.values import declared_for, lossless


def refused(table: str, fact: str, hint: str) -> InvalidUsage:
    return InvalidUsage(f"table {table}: {fact}", hint=hint)


def written_columns(relation: Relation, shard: ShardConfig, has: Set[str] | None) -> tuple[int, ...]:
    """Where the columns stand that are captured, once they are known to fit. `has` are those that the table
    has by now; None where nobody knows."""
    names = [column.name for column in relation.columns]
    plain = [column.plain for column in relation.columns]
    if twice := [name for at, name in enumerate(names) if plain[at] in plain[:at]]:
        fact = f"column {twice[0]!r} would be called {plain_name(twice[0])!r}, like another one"
        raise refused(relation.name, fact, "rename it, or leave it out of the publication's column list")
    dropped = _dropped(names, shard, has)
    written = tuple(at for at, name in enumerate(names) if name not in dropped)
    _check_columns(relation, [relation.columns[at] for at in written], shard, has)
    return written


def _dropped(names: Sequence[str], shard: ShardConfig, has: Set[str] | None) -> Set[str]:
    """The columns that were added and dropped again before anybody declared them. One that is gone may have
    been renamed instead: not if the table has no column that these rows had not."""
    if has is None or not has <= set(names):
        return frozenset()
    return {name for name in names if name not in has and shard.columns.get(plain_name(name)) is None}


def _check_columns(
    relation: Relation, columns: Sequence[RelationColumn], shard: ShardConfig, has: Set[str] | None
) -> None:
    for column in columns:
        declared = shard.columns.get(column.plain)
        wanted = declared_for(column.type_oid, column.type_modifier)
        if declared is None and has is not None and column.name not in has:
            fact = f"column {column.name!r} is not declared, and the table does not have it any more"
            raise refused(relation.name, fact, reread(relation.name))
        if declared is None:
            raise refused(
                relation.name,
                f"column {column.name!r} is not declared",
                f"declare {column.plain} {wanted} in shard {shard.name}, and if the rows that are there got a"
                " default, `tidemark source reread` the table; with schema: from_source, set"
                " on_schema_change: add_columns",
            )
        if not lossless(column.type_oid, column.type_modifier, declared.type):
            raise refused(
                relation.name,
                f"column {column.name!r} can't be read as {declared.type.ddl} without loss",
                f"declare it as {wanted}: {_where(shard)}",
            )
    names = {column.plain for column in columns}
    for declared in shard.columns:
        may_lack = shard.on_schema_change != "fail" and declared.nullable
        if declared.name not in names and not (may_lack and declared.name not in shard.keys):
            raise refused(
                relation.name,
                f"the declared column {declared.name!r} is not sent",
                "it was dropped, or is generated, or is not in the publication's column list: set"
                f" on_schema_change: missing_as_null for shard {shard.name}",
            )


def _where(shard: ShardConfig) -> str:
    """What can be done about columns that differ: a shard with rows keeps its own."""
    return (
        f"in shard {shard.name} if that has no rows yet, else in one of another name, with a higher"
        " generation of the pipeline, and the table is read into it anew"
    )
