"""Which shard a record goes to: the only one, the one of its table, or the one of a column's value.

A value is compared as text, so a route to 1 takes "1" too. Records of tables that the pipeline excludes carry
no change; records that no shard takes are bad ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import translate

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tidemark.config import PipelineConfig, ShardConfig
from tidemark.config.base import is_pattern
from tidemark.config.tables import glob_of
from tidemark.spark import documents as doc
from tidemark.spark.flaws import SHARD
from tidemark.spark.read import DATA
from tidemark.spark.sql import literal, quoted


def shards_of(config: PipelineConfig) -> tuple[ShardConfig, ...]:
    """All shards: those listed, and those of the tables that are named."""
    found = {shard.name: shard for shard in config.shards}
    for table in config.tables.include if config.tables is not None else ():
        shard = config.shard_for_table(table) if not is_pattern(table) else None
        if shard is not None:
            found.setdefault(shard.name, shard)
    return tuple(found.values())


def route(read: DataFrame, form: doc.Form, config: PipelineConfig) -> DataFrame:
    """The records with their envelope open, and `_shard`; NULL where no shard takes the record."""
    shards = shards_of(config)
    if len(shards) == 1 and shards[0].route is None:
        return doc.open_envelope(read, form, f"{literal(shards[0].name)} AS {SHARD}")
    frame = doc.open_envelope(read, form)
    if form.envelope == "debezium":
        return _by_table(frame, config, shards)
    column = next((shard.route.column for shard in shards if shard.route and shard.route.column), "")
    names = {_text(shard.route.equals): shard.name for shard in shards if shard.route is not None}
    return frame.withColumn(SHARD, F.try_element_at(_constant(names), _route_value(form, column)))


def _route_value(form: doc.Form, column: str) -> Column:
    if form.format == "json":
        return F.get_json_object(doc.DOCUMENT, f"$.{column}")
    if column not in form.header:
        return F.lit(None).cast("string")
    row = doc.csv_text(form) if form.format == "csv" else DATA
    return F.expr(f"cast({row}.{quoted(column)} as string)")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _constant(names: dict[str, str]) -> Column:
    return F.from_json(F.lit(json.dumps(names, ensure_ascii=False)), "map<string,string>")


def _by_table(frame: DataFrame, config: PipelineConfig, shards: Sequence[ShardConfig]) -> DataFrame:
    names = {shard.route.table: shard.name for shard in shards if shard.route and shard.route.table}
    table, schema, db = (F.col(f"{doc.ORIGIN}.{part}") for part in ("table", "schema", "db"))
    spellings = [
        F.concat(db, F.lit("."), schema, F.lit("."), table),
        F.concat(schema, F.lit("."), table),
        F.concat(db, F.lit("."), table),
        table,
    ]
    known = _constant(names)
    routed = frame.withColumn(SHARD, F.coalesce(*[F.try_element_at(known, name) for name in spellings]))
    ignored = F.lit(False)
    for pattern in config.tables.exclude if config.tables is not None else ():
        # fnmatch's regular expression ends in \z or \Z; rlike needs both ends said.
        expression = "^" + translate(glob_of(pattern)).removesuffix(r"\Z").removesuffix(r"\z") + "$"
        for name in spellings:
            ignored = ignored | F.coalesce(name.rlike(expression), F.lit(False))
    return routed.withColumn(doc.SKIP, F.col(doc.SKIP) | ignored)
