"""From raw records to typed values, for each format and envelope, with nothing turned into NULL in silence.

Whatever a record looked like, `parse` gives the same few columns, and `decode` applies the rules to them:

=============  ==================================================================================
`_v`           a struct of the shard's known columns in their declared types
`_names`       the columns that the record has; NULL when it can't be read as a record at all
`_broken`      true when a value does not fit its column's type, which is then NULL in `_v`, or when a
               JSON object has one name twice
`_gone`        true when the envelope itself says that the row is deleted
`_skip`        true for what carries no change: a tombstone, an empty record
`_refusal`     why the whole transaction must stop, when the envelope alone gives a reason
=============  ==================================================================================

A value that is merely spelled otherwise is taken: a number in a STRING column keeps its text, a decimal may
be quoted. A value of another type (text in an INT, 3.7 in an INT, 2147483648 in an INT) is broken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tidemark.config import CsvOptions, ShardConfig
from tidemark.config.schema import Schema
from tidemark.delta.schema import declared_json
from tidemark.spark import debezium
from tidemark.spark.fold import POSITION
from tidemark.spark.names import names_in, repeats
from tidemark.spark.quoting import fields_of
from tidemark.spark.read import DATA, HASH, KEY_DOCUMENT, NO_KEY, NO_VALUE, RAW, RECORD
from tidemark.spark.sql import case, literal, quoted, texts
from tidemark.spark.topics import header_text
from tidemark.spark.unsent import partial
from tidemark.spark.values import CORRUPT, TYPES, Writing, ddl_of

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
class Form:
    """How the records of one transaction are written. `header` names the columns of CSV and Parquet files; a
    `keyed` record has a key and `headers` beside its value. `unreadable` says in SQL why it can't be read."""

    format: str
    envelope: str
    csv: CsvOptions = field(default_factory=CsvOptions)
    header: tuple[str, ...] = ()
    keyed: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    unreadable: str = ""
    key_unreadable: str = "its key is not a JSON object"
    writing: Writing = field(default_factory=Writing)


@lru_cache(maxsize=4_096)
def _fields_of(columns: Schema) -> tuple[StructField, ...]:
    """As Spark has them; no Spark is needed for that."""
    return tuple(StructType.fromJson(declared_json(columns)).fields)


def declared_schema(shard: ShardConfig) -> StructType:
    """The columns of a shard's state: those declared and, with inline errors, the error column."""
    fields = _fields_of(shard.columns)
    if shard.error_column is None:
        return StructType(list(fields))
    return StructType([*fields, StructField(shard.error_column, StringType())])


def known_schema(shard: ShardConfig) -> StructType:
    """What a record may have: the declared columns, and those that only a condition or a route looks at."""
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


def record_columns(form: Form) -> list[str]:
    """What a record is and where it stood, as it was read."""
    beside = [KEY_DOCUMENT, NO_KEY, NO_VALUE, RECORD] if form.keyed else []
    return [DATA if form.format == "parquet" else RAW, HASH, *POSITION, *beside]


def open_envelope(frame: DataFrame, form: Form, *more: str) -> DataFrame:
    """The frame with `_doc`, the JSON text of the row, and what the envelope says of it.

    `more` are expressions over the read columns to add in the same step."""
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
            f"cast(null as {debezium.ORIGIN_TYPE}) AS {ORIGIN}",
            f"{gone} AS {GONE}",
            f"{skip} AS {SKIP}",
            f"cast(null as string) AS {REFUSAL}",
            *more,
        )
    typed = form.writing.debezium is not None
    columns = record_columns(form)
    kept = [debezium.key() if column == KEY_DOCUMENT else column for column in columns]
    skip = debezium.IS_EMPTY
    return debezium.opened(frame, kept, typed=typed).selectExpr(
        *columns,
        f"{debezium.document(keyed=form.keyed)} AS {DOCUMENT}",
        f"_inner.before AS {BEFORE}",
        f"_inner.source AS {ORIGIN}",
        f"isnull(_inner.after) AS {GONE}",
        f"{f'({NO_VALUE} OR {skip})' if form.keyed else skip} AS {SKIP}",
        f"{debezium.TRUNCATES} AS {REFUSAL}",
        *([TYPES, partial(keyed=form.keyed)] if typed else []),
        *more,
    )


def parse(frame: DataFrame, form: Form, shard: ShardConfig) -> DataFrame:
    """The frame with the columns that are described above."""
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


def _parse_json(frame: DataFrame, form: Form, shard: ShardConfig, known: StructType) -> DataFrame:
    parsed = _read(frame, DOCUMENT, known.fields, VALUES, form.writing)
    kept = [*record_columns(form), SHARD, DOCUMENT, GONE, VALUES]
    broken = f"isnotnull({VALUES}.{CORRUPT})"
    if form.envelope == "debezium":
        ordered = [name for name in (*shard.keys, shard.sequence_by) if name in known.names]
        broken = debezium.broken(broken, GONE, [f"{VALUES}.{quoted(name)}" for name in ordered])
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
    frame: DataFrame, document: str, fields: Sequence[StructField], name: str, writing: Writing
) -> DataFrame:
    """The frame with a document's fields, in their declared types, as a struct of this name."""
    read = frame.selectExpr("*", f"{writing.read_json(document, fields)} AS {name}")
    judged = writing.judged(name, fields, text=lambda field: _json_text(document, field))
    return read if judged == name else read.withColumn(name, F.expr(judged))


def _json_text(document: str, field: str) -> str:
    """How a document has a field, to the last digit of a number."""
    return f"try_variant_get(try_parse_json({document}), {literal('$.' + field)}, 'string')"


def _with_headers(parsed: DataFrame, form: Form, known: StructType) -> DataFrame:
    """The values with the columns that are headers, whatever the record's value has under their names."""
    names = [field.name for field in known.fields if field.name in form.headers]
    found = ", ".join(f"{header_text(form.headers[name])} AS {quoted(name)}" for name in names)
    rest = [name for name in parsed.columns if name not in (VALUES, NAMES)]
    # What can't be read as a record has no names at all.
    named = f"{case(f'isnotnull({NAMES})', f'array_union({NAMES}, {texts(names)})')} AS {NAMES}"
    return parsed.selectExpr(*rest, f"struct({VALUES}.*, {found}) AS {VALUES}", named)


def _completed(parsed: DataFrame, shard: ShardConfig, known: StructType, writing: Writing) -> DataFrame:
    """The values, named and judged, with the key columns of the record's own key where the value has none, or
    can't be read. The key is parsed only where it is needed."""
    keys = [field for field in known.fields if field.name in shard.keys]
    lacking = " OR ".join(f"isnull({VALUES}.{quoted(key.name)})" for key in keys)
    needed = f"NOT {GONE} AND isnotnull({KEY_DOCUMENT}) AND (isnull({NAMES}) OR {lacking})"
    fields = [f"{VALUES}.{quoted(field.name)}" for field in known.fields if field not in keys]
    for name in (quoted(key.name) for key in keys):
        # What was read of a value that breaks off is no key.
        own = f"{case(f'isnotnull({NAMES})', f'{VALUES}.{name}')}"
        fields.append(f"coalesce({own}, {_KEY_VALUES}.{name}, {VALUES}.{name}) AS {name}")
    ours = texts(list(shard.keys))
    # A key may have more fields than the table has key columns; only those count.
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


def _key_change(shard: ShardConfig, known: StructType, writing: Writing) -> str:
    """A row that changes its key is a deletion and an insertion; Debezium sends both, and never this."""
    keys = [field for field in known.fields if field.name in shard.keys]
    before = writing.judged(writing.read_json(BEFORE, keys), keys)
    changed = " OR ".join(
        f"(isnotnull(get_json_object({BEFORE}, {literal('$.' + field.name)}))"
        f" AND NOT ({before}.{quoted(field.name)} <=> {VALUES}.{quoted(field.name)}))"
        for field in keys
    )
    fact = literal(f"one record changes the key ({', '.join(shard.keys)}) of a row")
    return case(f"isnotnull({BEFORE}) AND NOT {GONE} AND ({changed})", fact)


def _parse_csv(frame: DataFrame, form: Form, known: StructType) -> DataFrame:
    types = {field.name: field.dataType for field in known.fields}
    fields = [StructField(name, types.get(name, StringType())) for name in form.header]
    schema = ddl_of([*form.writing.read_fields(fields), StructField(CORRUPT, StringType())])
    parsed = frame.selectExpr("*", f"{fields_of(schema, form.csv)} AS _csv")
    if any(form.writing.judges(field.dataType) for field in fields):
        told = form.writing.judged("_csv", fields, text=lambda name: f"{csv_text(form)}.{quoted(name)}")
        parsed = parsed.withColumn("_csv", F.expr(told))
    values = f"{_values_of('_csv', form.header, known)} AS {VALUES}"
    return parsed.selectExpr("*", values, _names_of(form), f"isnotnull(_csv.{CORRUPT}) AS {BROKEN}")


def csv_text(form: Form) -> str:
    """The fields of a CSV record as text, for saying which one is broken."""
    schema = ddl_of([StructField(name, StringType()) for name in form.header])
    return fields_of(schema, form.csv)


def _names_of(form: Form) -> str:
    return f"{texts(form.header)} AS {NAMES}"


def _values_of(struct: str, there: Sequence[str], known: StructType) -> str:
    """The known columns out of a struct that may not have them all."""
    values = [
        f"cast({f'{struct}.{quoted(field.name)}' if field.name in there else 'null'}"
        f" as {field.dataType.simpleString()}) AS {quoted(field.name)}"
        for field in known.fields
    ]
    return f"struct({', '.join(values)})"
