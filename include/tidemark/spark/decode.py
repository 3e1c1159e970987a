"""Routing of records to shards, and what becomes of each: a change, a bad record with its reason, a refusal.

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

All expressions here are SQL text (see `columns`) over the columns that `documents` describes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StructType

from tidemark.config import PipelineConfig, ShardConfig
from tidemark.config.base import is_pattern
from tidemark.config.row_rules import quarantine_rules
from tidemark.config.shard import glob_of
from tidemark.core.ids import Txn
from tidemark.core.text import sequence_text
from tidemark.spark import documents as doc
from tidemark.spark.columns import (
    DELETE,
    OFFSET,
    OP,
    ORDINAL,
    PARTITION,
    POSITION,
    UPSERT,
    case,
    coalesced,
    key_text,
    lateness_number,
    literal,
    log_hashed,
    quoted,
    sequence_number_sql,
    texts,
)
from tidemark.spark.documents import repeated_name, unclosed
from tidemark.spark.read import DATA, HASH, KEY_DOCUMENT, NO_KEY, NO_VALUE, RAW, raw_text
from tidemark.spark.values import CORRUPT, toast_reason

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


SHARD: Final = doc.SHARD
NULL_TEXT: Final = "cast(null as string)"
FOUND: Final = ", found "
"""Separates the fact from the record's value in a reason."""
TOO_FAR_AHEAD: Final = "too far ahead: "
_VALUE_CHARACTERS_MAX: Final = 80
_EDGES: Final = r"(?s)\A(?:\s.*|.*\s)\z"
_UNREADABLE: Final = {
    "upsert": "it is not a JSON object",
    "append": "it is not a JSON object",
    "debezium": "it has no readable 'after' or 'before'",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for the records of one shard in one transaction."""

    shard: ShardConfig
    form: doc.RecordForm
    txn: Txn
    watermark: int | None = None
    stages: bool = True
    """False if the records are not staged but compared: their transaction may be sealed already."""

    @property
    def keeps_all(self) -> bool:
        """Whether the envelope is append: no key, no order, no deletion."""
        return self.form.envelope == "append"

    @property
    def sequence_type(self) -> DataType | None:
        name = self.shard.sequence_by
        return None if name is None else doc.known_schema(self.shard)[name].dataType

    @property
    def refuses_ahead(self) -> bool:
        """Whether a record that is too far ahead stops the transaction. The default bound does; a bound
        that the user set sends the record to quarantine."""
        return self.stages and self.shard.max_advance is None

    @property
    def highest(self) -> int | None:
        """The highest sequence that is not too far ahead, as a number; None if there is no bound."""
        kind, bounded = self.sequence_type, self.stages or self.shard.max_advance is not None
        if kind is None or self.shard.lateness is None or self.watermark is None or not bounded:
            return None
        return self.watermark + lateness_number(self.shard.advance_max, kind)


def value_of(name: str) -> str:
    return f"{doc.VALUES}.{quoted(name)}"


def deletes(rules: Rules) -> str:
    condition = rules.shard.apply_as_deletes
    if rules.form.envelope == "debezium" or condition is None:
        return doc.GONE
    column = value_of(condition.column)
    if condition.is_null:
        return f"({doc.GONE} OR isnull({column}))"
    return f"({doc.GONE} OR coalesce({column} IN ({', '.join(map(literal, condition.values))}), false))"


def absent_names(names: list[str]) -> str:
    return f"array_except({texts(names)}, {doc.NAMES})"


def first_of(before: str, names: str) -> str:
    """A message with the first of the names; NULL if there are none."""
    return case(f"array_size({names}) > 0", f"concat({literal(before)}, ' \\'', {names}[0], '\\'')")


def flaw_of(rules: Rules, *, explain: bool) -> str:
    """Why a record is bad; NULL if it is good. Without `explain`, short marks replace the full reasons."""
    shard = rules.shard
    broken = _broken_columns(rules) if explain else "'broken'"
    unreadable = _unreadable(rules) if explain else "'unreadable'"
    checks = [
        case(f"{doc.NAMES} IS NULL", unreadable),
        case(f"{SHARD} IS NULL", "'no shard takes it'"),
        case(doc.BROKEN, broken),
    ]
    if rules.form.format == "csv":
        checks.insert(0, case(unclosed(rules.form.csv), "'a quote is not closed on its line'"))
    if shard.keys and not rules.keeps_all:
        keys = list(shard.keys)
        # The array is computed only if a part is NULL: up to here, absent and NULL look the same.
        some_null = " OR ".join(f"isnull({value_of(key)})" for key in keys)
        all_null = " AND ".join(f"isnull({value_of(key)})" for key in keys)
        missing = first_of("missing key column", absent_names(keys))
        if rules.form.keyed:
            # The column may be in key bytes that give no document.
            unread = f"NOT {NO_KEY} AND isnull({KEY_DOCUMENT}) AND isnotnull({missing})"
            missing = f"CASE WHEN {unread} THEN {literal(rules.form.key_unreadable)} ELSE {missing} END"
        checks.append(case(some_null, missing))
        checks.append(case(all_null, literal(f"the key ({', '.join(keys)}) is NULL")))
    if shard.sequence_by is not None:
        # Without a sequence, the order among the records of its key is unknown, for deletions too.
        placeless = f"sequence_by column '{shard.sequence_by}' is NULL"
        checks.append(case(f"isnull({value_of(shard.sequence_by)})", literal(placeless)))
    for column in shard.columns:
        if not column.nullable:
            always = column.name in shard.keys
            needed = f"isnull({value_of(column.name)})" + ("" if always else f" AND NOT {deletes(rules)}")
            checks.append(case(needed, literal(f"column '{column.name}' is NOT NULL, but has no value")))
    for rule in quarantine_rules(shard, f"{doc.VALUES}."):
        broken = f"NOT {deletes(rules)} AND NOT {doc.SKIP} AND {rule.broken_when}"
        checks.append(case(broken, literal(f"breaks {rule.reason}")))
    return coalesced(checks)


def _unreadable(rules: Rules) -> str:
    """Why a record is unreadable."""
    reason = literal(_UNREADABLE[rules.form.envelope])
    if rules.form.unreadable:
        reason = f"CASE WHEN isnull({RAW}) THEN {rules.form.unreadable} ELSE {reason} END"
    if not rules.form.keyed or rules.form.envelope == "debezium":
        return reason
    valueless = "it has no value" if rules.keeps_all else f"it has no value, and {rules.form.key_unreadable}"
    return f"CASE WHEN {NO_VALUE} THEN {literal(valueless)} ELSE {reason} END"


def _broken_columns(rules: Rules) -> str:
    """Which values don't fit. Parses the record again, a cost that only broken records have."""
    reasons: list[str] = []
    if rules.form.format == "json":
        twice = repeated_name(doc.DOCUMENT)
        reasons.append(case(f"isnotnull({twice})", f"concat('it has the name \\'', {twice}, '\\' twice')"))
    if rules.form.writing.debezium is not None:
        reasons.append(toast_reason(f"{doc.VALUES}.{CORRUPT}"))
    if rules.form.keyed and rules.shard.keys:
        lacking = " OR ".join(f"isnull({found_text(rules, key)})" for key in rules.shard.keys)
        no_key = f"isnull(json_object_keys({KEY_DOCUMENT}))"
        reasons.append(case(f"({lacking}) AND {no_key}", literal(rules.form.key_unreadable)))
    types = doc.known_schema(rules.shard)
    for column in rules.shard.columns:
        found = found_text(rules, column.name)
        if found is None:
            continue
        fact = literal(f"column '{column.name}' is {column.type.ddl}{FOUND}")
        value = _visible(rules, column.name, found)
        shown = literal("***") if column.name in rules.shard.masked else value
        shown = f"concat({fact}, {shown}, {rules.form.writing.advice(value, types[column.name].dataType)})"
        reasons.append(case(f"isnull({value_of(column.name)}) AND isnotnull({found})", shown))
    # A struct with one broken field is not NULL itself.
    nested = [column.name for column in rules.shard.columns if column.type.name in ("ARRAY", "MAP", "STRUCT")]
    inside = f"a value inside of {' or '.join(nested)} does not fit its type"
    counted = f"it does not have {len(rules.form.header)} fields"
    other = counted if rules.form.format == "csv" else "the record is malformed"
    return coalesced([*reasons, literal(inside if nested else other)])


def _visible(rules: Rules, name: str, found: str) -> str:
    """The beginning of a value, as a reason shows it. JSON text is in quotes, to distinguish it from a
    number. CSV text is in quotes if it begins or ends with white space, to make that visible. A value that
    is cut has no closing quote."""
    in_quotes = f"concat('\\'', {found}, '\\'')"
    if rules.form.format == "json":
        quotes = f"startswith({_json_value(rules, name, as_written=True)}, '\"')"
    else:
        quotes = f"{found} rlike {literal(_EDGES)}"
    return f"substring(if({quotes}, {in_quotes}, {found}), 1, {_VALUE_CHARACTERS_MAX})"


def found_text(rules: Rules, name: str) -> str | None:
    """The text that a record has for a column; None for formats with typed values."""
    if rules.form.format == "json":
        return _json_value(rules, name)
    if rules.form.format == "csv" and name in rules.form.header:
        return f"{doc.csv_text(rules.form)}.{quoted(name)}"
    return None


def _json_value(rules: Rules, name: str, *, as_written: bool = False) -> str:
    """A value of the record, or of its key, as text. `as_written` keeps the quotes of JSON text, which
    Spark removes unless the path goes through an array."""
    documents = [doc.DOCUMENT]
    if rules.form.keyed and name in rules.shard.keys:
        documents.append(KEY_DOCUMENT)
    path = literal(f"$[*].{name}" if as_written else f"$.{name}")
    looked_in = [f"concat('[', {one}, ']')" if as_written else one for one in documents]
    return coalesced([f"get_json_object({one}, {path})" for one in looked_in])


def misplaced(rules: Rules) -> str:
    """Why a good record's sequence is too late or too far ahead; NULL if it is neither."""
    return coalesced([_too_late(rules), _too_far_ahead(rules)])


def _too_far_ahead(rules: Rules) -> str:
    shard, kind, highest = rules.shard, rules.sequence_type, rules.highest
    if kind is None or shard.sequence_by is None or highest is None or rules.watermark is None:
        return NULL_TEXT
    value = value_of(shard.sequence_by)
    unit = "" if shard.lateness_unit not in ("seconds", "days") else f" {shard.lateness_unit}"
    watermark = sequence_text(rules.watermark, unit=shard.lateness_unit)
    fact = f"'{shard.sequence_by}' is more than {shard.advance_max}{unit} above the watermark {watermark}"
    shown = literal("***") if shard.sequence_by in shard.masked else f"cast({value} as string)"
    message = f"concat({literal(f'{TOO_FAR_AHEAD}{fact}{FOUND}')}, {shown})"
    return case(f"{sequence_number_sql(value, kind)} > {highest}", message)


def _too_late(rules: Rules) -> str:
    shard, kind = rules.shard, rules.sequence_type
    if kind is None or shard.sequence_by is None or shard.lateness is None or rules.watermark is None:
        return NULL_TEXT
    number = sequence_number_sql(value_of(shard.sequence_by), kind)
    line = rules.watermark - lateness_number(shard.lateness, kind)
    rest = literal(f" is more than {shard.lateness} below the watermark {rules.watermark}")
    late = f"isnull({number}) OR {number} < {line}"
    return case(late, f"concat('too late: sequence ', coalesce({number}, 'NULL'), {rest})")
