"""From raw records to typed values, for each format and envelope; no value silently becomes NULL.

`parse` returns the same columns for every format, and `decode` applies the rules to them:

=============  ==================================================================================
`_v`           a struct of the shard's known columns in their declared types
`_names`       the columns that the record has; NULL if it is not readable as a record at all
`_broken`      true if a value does not fit its column's type (it is then NULL in `_v`), or if a
               JSON object has one name twice
`_gone`        true if the envelope marks the row as deleted
`_skip`        true for a record without a change: a tombstone, an empty record
`_refusal`     why the whole transaction must stop, if the envelope alone gives a reason
=============  ==================================================================================

A different spelling of a value is accepted: a number in a STRING column keeps its text, a decimal may be
quoted. A value of another type (text in an INT, 3.7 in an INT, 2147483648 in an INT) is broken.

JSON: an object with one name twice is bad, because its value is ambiguous. Known limitation: only the
record's own names are checked, not those inside its values, its envelope or its key.

CSV: Spark's parser accepts every line. If a quote is not closed on its line, because the field continues on
the next line or a quote in it is not escaped, the parser silently takes the field as it is, quote included.
So the parser never gets such a line: the whole line is a bad record, and its key is unknown.

Debezium: Kafka Connect's JSON converter writes `{"schema": …, "payload": …}`, for values and keys alike, or
the payload alone. Each record may have either form. The column types in the schema are kept (see `values`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BooleanType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.config import CsvOptions, ShardConfig
from tidemark.config.schema import Schema
from tidemark.delta.schema import declared_json
from tidemark.spark.columns import POSITION, case, literal, quoted, texts
from tidemark.spark.read import DATA, HASH, KEY_DOCUMENT, NO_KEY, NO_VALUE, RAW, RECORD, header_text
from tidemark.spark.values import CORRUPT, TYPES, TYPES_TYPE, ValueEncoding, ddl_of, partial, reader_options

_WITH_COLONS: Final = (MapType, StructType, TimestampNTZType, TimestampType)


# JSON objects: the names that they have.


def names_in(document: str, known: StructType, *, values: str) -> str:
    """SQL for the names in a JSON object. The object is parsed again only if that can find another name.

    It can't if every known column has a value and the text has no more colons than known columns, because
    an object has at most as many names as colons. Types whose values contain colons are always parsed
    again.


    """
    # Spark reads the first JSON value of a text and ignores the rest of it.
    closed = f"endswith({document}, '}}') OR endswith(rtrim({document}), '}}')"
    read_again = f"json_object_keys({document})"
    if not any(isinstance(field.dataType, _WITH_COLONS) for field in known.fields):
        filled = " AND ".join(f"isnotnull({values}.{quoted(field.name)})" for field in known.fields)
        pieces = f"array_size(split({document}, ':', {len(known.fields) + 2}))"
        exact = f"isnull({values}.{CORRUPT}) AND {filled} AND {pieces} = {len(known.fields) + 1}"
        read_again = f"CASE WHEN {exact} THEN {texts(known.names)} ELSE {read_again} END"
    return case(closed, read_again)


def repeats(names: str, known: StructType) -> str:
    """Whether a name occurs twice. Objects with the known names in the usual order skip the check."""
    twice = f"array_size(array_distinct({names})) < array_size({names})"
    return f"coalesce({names} != {texts(known.names)} AND {twice}, false)"


def repeated_name(document: str) -> str:
    """The first name that an object has twice; NULL if there is none. Parses the object again."""
    names = f"json_object_keys({document})"
    return f"get(filter({names}, (name, at) -> array_position({names}, name) <= at), 0)"


# CSV: cutting a line into fields.


def fields_of(schema: str, csv: CsvOptions) -> str:
    """SQL for the fields of a record as a struct; NULL if a quote is not closed."""
    options = {
        "sep": csv.delimiter,
        "quote": csv.quote,
        "escape": csv.escape or csv.quote,
        "nullValue": csv.null_value,
        "maxCharsPerColumn": "-1",
        "maxColumns": "20480",
    }
    return f"from_csv({case(f'NOT {unclosed(csv)}', RAW)}, {literal(schema)}, {reader_options(options)})"


def unclosed(csv: CsvOptions) -> str:
    """Whether a field begins with a quote and does not end with one. Most lines have no quote at all.

    The expression removes well-quoted fields; after that, no field may begin with a quote. Quotes inside a
    field that does not begin with one are text. The quantifiers are possessive, so a line is read once.
    """
    delimiter, quote, escape = (re.escape(one) for one in (csv.delimiter, csv.quote, csv.escape or csv.quote))
    text = f"[^{quote}{escape}]*+"
    inner = quote + quote if escape == quote else f"{escape}."
    well_quoted = f"(?s)(\\A|{delimiter}){quote}{text}(?:{inner}{text})*+{quote}(?={delimiter}|\\z)"
    rest = f"regexp_replace({RAW}, {literal(well_quoted)}, '$1')"
    begun = f"(\\A|{delimiter}){quote}"
    return f"(contains({RAW}, {literal(csv.quote)}) AND {rest} rlike {literal(begun)})"


# Debezium's envelope: a change with its `before` and `after`, with or without its schema.

ORIGIN_TYPE: Final = "struct<db:string,schema:string,table:string>"
_CHANGE: Final = f"before:string,after:string,op:string,source:{ORIGIN_TYPE}"
_SCHEMA: Final = f"schema:struct<fields:array<struct<field:string,fields:{TYPES_TYPE}>>>"
_TOMBSTONE: Final = literal('{"schema":null,"payload":null}')
IS_EMPTY: Final = f"coalesce(trim({RAW}) IN ('null', {_TOMBSTONE}), false)"
_TABLE: Final = "concat('of ', nullif(concat_ws('.', _inner.source.schema, _inner.source.table), ''))"
TRUNCATES: Final = case("_inner.op = 't'", f"concat_ws(' ', 'a truncate', {_TABLE}, 'can\\'t be applied')")


def opened_envelope(frame: DataFrame, kept: Sequence[str], *, typed: bool) -> DataFrame:
    """The kept columns of a record, its change as `_inner`, with or without a payload around it, and the
    column types of its schema if `typed`."""
    schema = f",{_SCHEMA}" if typed else ""
    outer = f"from_json({RAW}, 'struct<payload:struct<{_CHANGE}>,{_CHANGE}{schema}>') AS _all"
    inner = "coalesce(_all.payload, struct(_all.before, _all.after, _all.op, _all.source)) AS _inner"
    types = f"get(filter(_all.schema.fields, f -> f.field = 'after'), 0).fields AS {TYPES}"
    return frame.selectExpr("*", outer).selectExpr(*kept, inner, *([types] if typed else []))


def envelope_document(*, keyed: bool) -> str:
    """The row of an opened change; for a deletion without a `before`, the record's key."""
    by_key = case("_inner.op = 'd'", KEY_DOCUMENT) if keyed else "cast(null as string)"
    return f"coalesce(_inner.after, _inner.before, {by_key})"


def broken_envelope(corrupt: str, gone: str, needed: Sequence[str]) -> str:
    """Whether a record is broken. A deletion needs only its key and its sequence."""
    readable = " AND ".join(f"isnotnull({value})" for value in needed)
    return f"({corrupt} AND NOT ({gone} AND {readable}))"


def envelope_key() -> str:
    """The key as a JSON object, without its schema."""
    opened_envelope = f"from_json({KEY_DOCUMENT}, 'struct<schema:struct<type:string>,payload:string>')"
    alone = f"isnull({opened_envelope}.schema.type)"
    return f"CASE WHEN {alone} THEN {KEY_DOCUMENT} ELSE {opened_envelope}.payload END AS {KEY_DOCUMENT}"


# Records of every format.

SHARD: Final = "_shard"
VALUES: Final = "_v"
NAMES: Final = "_names"
BROKEN: Final = "_broken"
GONE: Final = "_gone"
SKIP: Final = "_skip"
REFUSAL: Final = "_refusal"
DOCUMENT: Final = "_doc"
BEFORE: Final = "_before"
ORIGIN: Final = "_origin"

_KEY_VALUES: Final = "_k"


@dataclass(frozen=True, slots=True)
class RecordForm:
    """How the records of one transaction are written. `header` names the columns of CSV and Parquet files.
    A `keyed` record has a key and `headers` beside its value. `unreadable` is SQL for the reason why a
    record can't be read."""

    format: str
    envelope: str
    csv: CsvOptions = field(default_factory=CsvOptions)
    header: tuple[str, ...] = ()
    keyed: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    unreadable: str = ""
    key_unreadable: str = "its key is not a JSON object"
    writing: ValueEncoding = field(default_factory=ValueEncoding)


@lru_cache(maxsize=4_096)
def _fields_of(columns: Schema) -> tuple[StructField, ...]:
    """The columns as Spark fields; needs no Spark session."""
    return tuple(StructType.fromJson(declared_json(columns)).fields)


def declared_schema(shard: ShardConfig) -> StructType:
    """The columns of a shard's state: the declared ones and, with inline errors, the error column."""
    fields = _fields_of(shard.columns)
    if shard.error_column is None:
        return StructType(list(fields))
    return StructType([*fields, StructField(shard.error_column, StringType())])


def key_schema(shard: ShardConfig) -> StructType:
    """The key columns of a shard's rows."""
    declared = declared_schema(shard)
    return StructType([StructField(name, declared[name].dataType) for name in shard.keys])


def known_schema(shard: ShardConfig) -> StructType:
    """The columns that a record may have: the declared ones, and those that only a condition or a route
    uses."""
    fields = list(_fields_of(shard.columns))
    names = {field.name for field in fields}
    condition = shard.apply_as_deletes
    if condition is not None and condition.column not in names:
        kinds = {"BOOLEAN": BooleanType(), "BIGINT": LongType()}
        fields.append(StructField(condition.column, kinds.get(condition.type_name, StringType())))
        names.add(condition.column)
    if shard.route is not None and shard.route.column is not None and shard.route.column not in names:
        fields.append(StructField(shard.route.column, StringType()))
    return StructType([StructField(field.name, field.dataType) for field in fields])


def record_columns(form: RecordForm) -> list[str]:
    """The columns of a record as it was read, with its position."""
    beside = [KEY_DOCUMENT, NO_KEY, NO_VALUE, RECORD] if form.keyed else []
    return [DATA if form.format == "parquet" else RAW, HASH, *POSITION, *beside]


def open_envelope(frame: DataFrame, form: RecordForm, *more: str) -> DataFrame:
    """The frame with `_doc` (the JSON text of the row) and the envelope's columns.

    `more` are expressions over the read columns to add in the same step.
    """
    if form.envelope != "debezium":
        document = RAW if form.format == "json" else "cast(null as string)"
        gone = skip = "false"
        if form.keyed:
            skip = f"({NO_VALUE} AND {NO_KEY})" if form.envelope == "append" else "false"
            gone = "false" if form.envelope == "append" else NO_VALUE
            document = f"if({gone}, {KEY_DOCUMENT}, {RAW})"
        return frame.selectExpr(
            "*",
            f"{document} AS {DOCUMENT}",
            f"cast(null as string) AS {BEFORE}",
            f"cast(null as {ORIGIN_TYPE}) AS {ORIGIN}",
            f"{gone} AS {GONE}",
            f"{skip} AS {SKIP}",
            f"cast(null as string) AS {REFUSAL}",
            *more,
        )
    typed = form.writing.debezium is not None
    columns = record_columns(form)
    kept = [envelope_key() if column == KEY_DOCUMENT else column for column in columns]
    skip = IS_EMPTY
    return opened_envelope(frame, kept, typed=typed).selectExpr(
        *columns,
        f"{envelope_document(keyed=form.keyed)} AS {DOCUMENT}",
        f"_inner.before AS {BEFORE}",
        f"_inner.source AS {ORIGIN}",
        f"isnull(_inner.after) AS {GONE}",
        f"{f'({NO_VALUE} OR {skip})' if form.keyed else skip} AS {SKIP}",
        f"{TRUNCATES} AS {REFUSAL}",
        *([TYPES, partial(keyed=form.keyed)] if typed else []),
        *more,
    )


def parse(frame: DataFrame, form: RecordForm, shard: ShardConfig) -> DataFrame:
    """The frame with the columns that the module docstring describes."""
    known = known_schema(shard)
    match form.format:
        case "json":
            own = StructType([field for field in known.fields if field.name not in form.headers])
            parsed = _parse_json(frame, form, shard, own)
            return parsed if len(own) == len(known) else _with_headers(parsed, form, known)
        case "csv":
            return _parse_csv(frame, form, known)
        case _:
            raw = f"to_json({DATA}, map('ignoreNullFields', 'false')) AS {RAW}"
            values = f"{_values_of(DATA, form.header, known)} AS {VALUES}"
            return frame.selectExpr("*", raw, values, _names_of(form), f"false AS {BROKEN}")


def _parse_json(frame: DataFrame, form: RecordForm, shard: ShardConfig, known: StructType) -> DataFrame:
    parsed = _read(frame, DOCUMENT, known.fields, VALUES, form.writing)
    kept = [*record_columns(form), SHARD, DOCUMENT, GONE, VALUES]
    broken = f"isnotnull({VALUES}.{CORRUPT})"
    if form.envelope == "debezium":
        ordered = [name for name in (*shard.keys, shard.sequence_by) if name in known.names]
        broken = broken_envelope(broken, GONE, [f"{VALUES}.{quoted(name)}" for name in ordered])
    found = [NAMES, f"({broken} OR {repeats(NAMES, known)}) AS {BROKEN}"]
    parsed = parsed.selectExpr("*", f"{names_in(DOCUMENT, known, values=VALUES)} AS {NAMES}")
    if form.keyed and shard.keys and form.envelope == "upsert":
        parsed, found = _completed(parsed, shard, known, form.writing), [NAMES, BROKEN]
    if form.envelope == "debezium":
        refusal = f"coalesce({REFUSAL}, {_key_change(shard, known, form.writing)}) AS {REFUSAL}"
        return parsed.selectExpr(*kept, *found, SKIP, refusal)
    named = parsed.selectExpr(*kept, *found, SKIP, REFUSAL)
    if form.envelope != "append":
        return named
    empty = f"{SKIP} OR coalesce(array_size({NAMES}) = 0, false) AS {SKIP}"
    return named.selectExpr(*kept, NAMES, BROKEN, empty, REFUSAL)


def _read(
    frame: DataFrame, document: str, fields: Sequence[StructField], name: str, writing: ValueEncoding
) -> DataFrame:
    """The frame with a document's fields, in their declared types, as a struct of this name."""
    read = frame.selectExpr("*", f"{writing.read_json(document, fields)} AS {name}")
    judged = writing.judged(name, fields, text=lambda field: _json_text(document, field))
    return read if judged == name else read.withColumn(name, F.expr(judged))


def _json_text(document: str, field: str) -> str:
    """The text of a field in a document, with every digit of a number."""
    return f"try_variant_get(try_parse_json({document}), {literal('$.' + field)}, 'string')"


def _with_headers(parsed: DataFrame, form: RecordForm, known: StructType) -> DataFrame:
    """The values with the columns that come from headers; these override equal names in the value."""
    names = [field.name for field in known.fields if field.name in form.headers]
    found = ", ".join(f"{header_text(form.headers[name])} AS {quoted(name)}" for name in names)
    rest = [name for name in parsed.columns if name not in (VALUES, NAMES)]
    # A record that is not readable has no names at all.
    named = f"{case(f'isnotnull({NAMES})', f'array_union({NAMES}, {texts(names)})')} AS {NAMES}"
    return parsed.selectExpr(*rest, f"struct({VALUES}.*, {found}) AS {VALUES}", named)


def _completed(parsed: DataFrame, shard: ShardConfig, known: StructType, writing: ValueEncoding) -> DataFrame:
    """The values, named and checked, with key columns from the record's key where the value lacks them or
    is unreadable. The key is parsed only if needed."""
    keys = [field for field in known.fields if field.name in shard.keys]
    lacking = " OR ".join(f"isnull({VALUES}.{quoted(key.name)})" for key in keys)
    needed = f"NOT {GONE} AND isnotnull({KEY_DOCUMENT}) AND (isnull({NAMES}) OR {lacking})"
    fields = [f"{VALUES}.{quoted(field.name)}" for field in known.fields if field not in keys]
    for name in (quoted(key.name) for key in keys):
        # A truncated value may have yielded a key; it is not trusted.
        own = f"{case(f'isnotnull({NAMES})', f'{VALUES}.{name}')}"
        fields.append(f"coalesce({own}, {_KEY_VALUES}.{name}, {VALUES}.{name}) AS {name}")
    ours = texts(list(shard.keys))
    # A key may have more fields than the table has key columns; the others are ignored.
    of_key = f"array_intersect(json_object_keys({KEY_DOCUMENT}), {ours})"
    named = (
        f"CASE WHEN {GONE} THEN array_intersect({NAMES}, {ours})"
        f" WHEN isnotnull({_KEY_VALUES}) THEN coalesce(array_union({NAMES}, {of_key}), {NAMES})"
        f" ELSE {NAMES} END AS {NAMES}"
    )
    corrupt = f"isnotnull({VALUES}.{CORRUPT}) OR isnotnull({_KEY_VALUES}.{CORRUPT})"
    broken = f"({corrupt} OR {repeats(NAMES, known)}) AS {BROKEN}"
    rest = [name for name in parsed.columns if name not in (VALUES, NAMES)]
    with_key = _read(parsed, case(needed, KEY_DOCUMENT), keys, _KEY_VALUES, writing)
    return with_key.selectExpr(*rest, f"struct({', '.join(fields)}) AS {VALUES}", named, broken)


def _key_change(shard: ShardConfig, known: StructType, writing: ValueEncoding) -> str:
    """Why a record that changes its row's key is refused: Debezium sends a deletion and an insertion
    instead."""
    keys = [field for field in known.fields if field.name in shard.keys]
    before = writing.judged(writing.read_json(BEFORE, keys), keys)
    changed = " OR ".join(
        f"(isnotnull(get_json_object({BEFORE}, {literal('$.' + field.name)}))"
        f" AND NOT ({before}.{quoted(field.name)} <=> {VALUES}.{quoted(field.name)}))"
        for field in keys
    )
    fact = literal(f"one record changes the key ({', '.join(shard.keys)}) of a row")
    return case(f"isnotnull({BEFORE}) AND NOT {GONE} AND ({changed})", fact)


def _parse_csv(frame: DataFrame, form: RecordForm, known: StructType) -> DataFrame:
    types = {field.name: field.dataType for field in known.fields}
    fields = [StructField(name, types.get(name, StringType())) for name in form.header]
    schema = ddl_of([*form.writing.read_fields(fields), StructField(CORRUPT, StringType())])
    parsed = frame.selectExpr("*", f"{fields_of(schema, form.csv)} AS _csv")
    if any(form.writing.judges(field.dataType) for field in fields):
        expression = form.writing.judged("_csv", fields, text=lambda name: f"{csv_text(form)}.{quoted(name)}")
        parsed = parsed.withColumn("_csv", F.expr(expression))
    values = f"{_values_of('_csv', form.header, known)} AS {VALUES}"
    return parsed.selectExpr("*", values, _names_of(form), f"isnotnull(_csv.{CORRUPT}) AS {BROKEN}")


def csv_text(form: RecordForm) -> str:
    """The fields of a CSV record as text, for the reason that names the broken one."""
    schema = ddl_of([StructField(name, StringType()) for name in form.header])
    return fields_of(schema, form.csv)


def _names_of(form: RecordForm) -> str:
    return f"{texts(form.header)} AS {NAMES}"


def _values_of(struct: str, there: Sequence[str], known: StructType) -> str:
    """The known columns from a struct that may lack some of them."""
    values = [
        f"cast({f'{struct}.{quoted(field.name)}' if field.name in there else 'null'}"
        f" as {field.dataType.simpleString()}) AS {quoted(field.name)}"
        for field in known.fields
    ]
    return f"struct({', '.join(values)})"
