"""Routing of records to shards, and the rules that decide between change, bad record and refusal.

Every record gets exactly one *slot*: a change of the shard, a bad record, or a record without a change.

- A *bad* record has a reason. `on_error` decides where it goes: to quarantine, to a refusal of the
  transaction, or into the shard itself with NULL values and the reason in the error column (if its key is
  readable). A record that is too late always goes to quarantine. So does a record that is too far ahead of
  a `max_advance` that the user has set; if it is too far ahead of the default bound, it stops the
  transaction.
- A *refusal* stops the transaction before anything is written, because the declared policy must hold for
  the whole transaction: an undeclared column, a missing column, a truncate, a changed key (scenarios E4,
  D7).

A column that a record leaves out is not NULL. With `on_schema_change: fail` it is a dropped column, which
is refused; with `missing_as_null` it is NULL. A deletion needs only its key. A key is bad if all its parts
are NULL; a single NULL part is a value like any other, but every part must be present.

A record goes to the only shard, to the shard of its table, or to the shard of a column's value. Route
values are compared as text, so a route to 1 matches "1" too. Records of tables that the pipeline excludes
carry no change; records that match no shard are bad.

All expressions here are SQL text (see `sql`) over the columns that `documents` describes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import translate
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tidemark.config import PipelineConfig, ShardConfig
from tidemark.config.base import is_pattern
from tidemark.config.shard import glob_of
from tidemark.spark import documents as doc
from tidemark.spark.flaws import (
    NULL_TEXT,
    SHARD,
    TOO_FAR_AHEAD,
    Rules,
    absent_names,
    deletes,
    first_of,
    flaw_of,
    found_text,
    misplaced,
    value_of,
)
from tidemark.spark.fold import (
    DELETE,
    OFFSET,
    OP,
    ORDINAL,
    PARTITION,
    POSITION,
    UPSERT,
    log_hashed,
    sequence_number_sql,
)
from tidemark.spark.read import DATA, HASH, RAW, raw_text
from tidemark.spark.sql import case, coalesced, key_text, literal, quoted, texts

KEY: Final = "_key"
REASON: Final = "_reason"
SLOT: Final = "_slot"
SEQUENCE: Final = "_sequence"

CHANGES: Final = 0
BAD: Final = 1
NOTHING: Final = 2

REFUSAL_MARK: Final = "tidemark-refusal"


def decode(frame: DataFrame, rules: Rules, *, explain: bool) -> DataFrame:
    """The records with their slot, and the log's columns for those that are changes.

    The frame must have an open envelope and `_shard`, which is NULL if no shard matches. The result has the
    declared columns, `_op`, the position, `_hash`, `_slot` and `_sequence` (a number, for changes and for
    records that are too far ahead). With `explain` it also has `_shard`, `_key`, `_raw` and the full
    `_reason`; counting does not need them.
    """
    parsed = doc.parse(frame, rules.form, rules.shard)
    explain = explain or rules.shard.on_error != "quarantine"
    judged = parsed.selectExpr(
        "*",
        f"{deletes(rules)} AS _delete",
        f"{_fatal(rules)} AS _fatal",
        f"{_dropped(rules)} AS _dropped",
        f"{flaw_of(rules, explain=explain)} AS _flaw",
        f"{misplaced(rules)} AS _late",
    )
    return judged.selectExpr(*_values(rules), *_facts(rules), *(_reasons(rules) if explain else ()))


def _fatal(rules: Rules) -> str:
    """Why the transaction must stop; NULL for nearly every record."""
    shard, names = rules.shard, doc.NAMES
    known = list(doc.known_schema(shard).names)
    checks = [first_of("undeclared column", f"array_except({names}, {texts(known)})")]
    if rules.form.envelope == "debezium" or rules.form.format != "json":
        checks.append(
            first_of("missing key column", absent_names([] if rules.keeps_all else list(shard.keys)))
        )
    change = case(_unusual(rules), coalesced(checks))
    return case(f"NOT {doc.SKIP} AND {SHARD} IS NOT NULL", coalesced([doc.REFUSAL, change]))


def _dropped(rules: Rules) -> str:
    """A declared column that an otherwise good record lacks, if that must stop the transaction."""
    shard = rules.shard
    optional = [column.name for column in shard.columns if column.nullable and column.name not in shard.keys]
    if shard.on_schema_change != "fail" or not optional:
        return NULL_TEXT
    applies = f"NOT {doc.SKIP} AND {SHARD} IS NOT NULL AND NOT {deletes(rules)} AND {_unusual(rules)}"
    return case(applies, first_of("missing column", absent_names(optional)))


def _unusual(rules: Rules) -> str:
    """Whether a record's names differ from the usual ones. Most records have the declared columns in one
    order, and this comparison is cheaper than a set difference."""
    usual = {rules.shard.columns.names, tuple(doc.known_schema(rules.shard).names)}
    return " AND ".join(
        [f"{doc.NAMES} IS NOT NULL", *(f"{doc.NAMES} != {texts(names)}" for names in sorted(usual))]
    )


def _values(rules: Rules) -> list[str]:
    """The declared columns: values for changes, NULL for all other records."""
    shard, kept = rules.shard, _inline_errors(rules)
    good = f"isnull(_flaw) AND NOT {doc.SKIP} AND isnull(_late)"
    always = set() if rules.keeps_all else {*shard.keys, shard.sequence_by}
    values = [
        case(f"({good}) OR {kept}" if name in always else f"{good} AND NOT _delete", value_of(name))
        + f" AS {quoted(name)}"
        for name in shard.columns.names
    ]
    if shard.error_column is not None:
        values.append(f"{case(kept, '_flaw')} AS {quoted(shard.error_column)}")
    return values


def _facts(rules: Rules) -> list[str]:
    """The fold's other inputs: operation, position, slot, sequence and the input's hash."""
    shard, kept, kind = rules.shard, _inline_errors(rules), rules.sequence_type
    fails = (
        f" WHEN isnotnull(_flaw) AND NOT {kept} THEN {_refuse('_flaw')}" if shard.on_error == "fail" else ""
    )
    ahead = ""
    if rules.refuses_ahead and rules.highest is not None:
        ahead = f" WHEN isnull(_flaw) AND startswith(_late, '{TOO_FAR_AHEAD}') THEN {_refuse('_late')}"
    slot = (
        f"CASE WHEN isnotnull(_fatal) THEN {_refuse('_fatal')}"
        f" WHEN isnotnull(_dropped) AND isnull(_flaw) THEN {_refuse('_dropped')}"
        f" WHEN {doc.SKIP} THEN {NOTHING}{ahead}"
        f" WHEN isnotnull(_late) THEN {BAD} WHEN isnull(_flaw) OR {kept} THEN {CHANGES}{fails} ELSE {BAD} END"
    )
    number = "cast(null as bigint)"
    if kind is not None and shard.lateness is not None and shard.sequence_by is not None:
        number = sequence_number_sql(value_of(shard.sequence_by), kind)
        ahead_too = "" if rules.highest is None else f" OR {number} > {rules.highest}"
        number = case(f"isnull(_flaw) AND (isnull(_late){ahead_too})", number)
    return [
        f"CASE WHEN _delete AND NOT {kept} THEN '{DELETE}' ELSE '{UPSERT}' END AS {OP}",
        *POSITION,
        f"cast({slot} as tinyint) AS {SLOT}",
        f"{number} AS {SEQUENCE}",
        HASH,
    ]


def _reasons(rules: Rules) -> list[str]:
    """The columns of a bad record in quarantine."""
    return [
        SHARD,
        f"{_key(rules)} AS {KEY}",
        f"{raw_text(keyed=rules.form.keyed)} AS {RAW}",
        f"{case(f'NOT {doc.SKIP}', 'coalesce(_flaw, _late)')} AS {REASON}",
    ]


def _key(rules: Rules) -> str:
    """The key as text if all of it is readable; an unreadable part is not the same as a NULL part."""
    keys = list(rules.shard.keys)
    if not keys:
        return NULL_TEXT
    some = " OR ".join(f"isnotnull({value_of(key)})" for key in keys)
    found = {key: found_text(rules, key) for key in keys}
    lost = [f"(isnull({value_of(key)}) AND isnotnull({text}))" for key, text in found.items() if text]
    absent = "0" if rules.keeps_all else f"array_size({absent_names(keys)})"
    # If the value is unreadable, the record's own key may still be readable.
    without = " OR ".join(f"isnull({value_of(key)})" for key in keys) if rules.form.keyed else "true"
    unread = f"coalesce({' OR '.join([f'{absent} > 0', *lost])}, {without})"
    return case(f"({some}) AND NOT {unread}", key_text({key: value_of(key) for key in keys}))


def _inline_errors(rules: Rules) -> str:
    """Whether a broken record stays in its shard: only with `on_error: inline`, and if its key and sequence
    are readable."""
    if rules.shard.on_error != "inline":
        return "false"
    needed = [*rules.shard.keys, *filter(None, [rules.shard.sequence_by])]
    keys = "".join(f" AND isnotnull({value_of(name)})" for name in needed)
    here = f"isnotnull({SHARD}) AND NOT {doc.SKIP} AND isnotnull({doc.NAMES})"
    return f"({doc.BROKEN} AND {here}{keys})"


def _refuse(fact: str) -> str:
    """Stop the job with the fact and the position, in a form that the driver can find in the error text."""
    place = f"concat_ws(' ', '[[{REFUSAL_MARK}', {PARTITION}, {OFFSET}, {ORDINAL}, {fact})"
    return f"cast(raise_error(concat({place}, ']]')) as int)"


def hashed_columns(shard: ShardConfig) -> StructType:
    """The columns that a shard's output hash covers: the declared columns and the operation."""
    return log_hashed(doc.declared_schema(shard))


def shards_of(config: PipelineConfig) -> tuple[ShardConfig, ...]:
    """All shards: those listed, and those of the tables that are named without a pattern."""
    found = {shard.name: shard for shard in config.shards}
    for table in config.tables.include if config.tables is not None else ():
        shard = config.shard_for_table(table) if not is_pattern(table) else None
        if shard is not None:
            found.setdefault(shard.name, shard)
    return tuple(found.values())


# Routing.


def route(read: DataFrame, form: doc.RecordForm, config: PipelineConfig) -> DataFrame:
    """The records with an open envelope and `_shard`, which is NULL if no shard matches."""
    shards = shards_of(config)
    if len(shards) == 1 and shards[0].route is None:
        return doc.open_envelope(read, form, f"{literal(shards[0].name)} AS {SHARD}")
    frame = doc.open_envelope(read, form)
    if form.envelope == "debezium":
        return _by_table(frame, config, shards)
    column = next((shard.route.column for shard in shards if shard.route and shard.route.column), "")
    names = {_text(shard.route.equals): shard.name for shard in shards if shard.route is not None}
    return frame.withColumn(SHARD, F.try_element_at(_constant(names), _route_value(form, column)))


def _route_value(form: doc.RecordForm, column: str) -> Column:
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
        # fnmatch's regular expression ends in \z or \Z; rlike needs both anchors.
        expression = "^" + translate(glob_of(pattern)).removesuffix(r"\Z").removesuffix(r"\z") + "$"
        for name in spellings:
            ignored = ignored | F.coalesce(name.rlike(expression), F.lit(False))
    return routed.withColumn(doc.SKIP, F.col(doc.SKIP) | ignored)
