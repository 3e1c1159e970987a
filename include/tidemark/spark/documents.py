"""From raw records to typed values, for each format and envelope, with nothing turned into NULL in silence.

Whatever a record looked like, `parse` gives the same few columns, and `decode` applies the rules to them:

=============  ==================================================================================
`_v`           a struct of the shard's known columns in their declared types
`_names`       the columns that the record has; NULL when it can't be read as a record at all
`_broken`      true when a value does not fit its column's type; that column is then NULL in `_v`
`_gone`        true when the envelope itself says that the row is deleted
`_skip`        true for what carries no change: a tombstone, an empty record
`_refusal`     why the whole transaction must stop, when the envelope alone gives a reason
=============  ==================================================================================

A value that is merely spelled otherwise is taken: a number in a STRING column keeps its text, a decimal may
be quoted. A value of another type (text in an INT, 3.7 in an INT, 2147483648 in an INT) is broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, DataType, LongType, StringType, StructField, StructType

from tidemark.config import CsvOptions, ShardConfig
from tidemark.core.errors import InvariantViolation
from tidemark.spark.fold import quoted
from tidemark.spark.read import DATA, RAW

VALUES: Final = "_v"
NAMES: Final = "_names"
BROKEN: Final = "_broken"
GONE: Final = "_gone"
SKIP: Final = "_skip"
REFUSAL: Final = "_refusal"
DOCUMENT: Final = "_doc"
BEFORE: Final = "_before"
ORIGIN: Final = "_origin"

_CORRUPT: Final = "_corrupt"
_TEXT: Final = StringType()
_ORIGIN: Final = "struct<db:string,schema:string,table:string>"
_CHANGE: Final = f"before:string,after:string,op:string,source:{_ORIGIN}"
_CSV_LIMITS: Final = {"maxCharsPerColumn": "-1", "maxColumns": "20480"}


@dataclass(frozen=True, slots=True)
class Form:
    """How the records of one transaction are written. `header` names the columns of CSV and Parquet files."""

    format: str
    envelope: str
    csv: CsvOptions
    header: tuple[str, ...] = ()


def _schema_of(shard: ShardConfig) -> StructType:
    schema = DataType.fromDDL(shard.columns.ddl)
    if not isinstance(schema, StructType):
        raise InvariantViolation(f"the schema of shard {shard.name!r} is not a list of columns")
    return schema


def declared_schema(shard: ShardConfig) -> StructType:
    """The columns of a shard's state: those declared and, with inline errors, the error column."""
    schema = _schema_of(shard)
    if shard.error_column is None:
        return schema
    return StructType([*schema.fields, StructField(shard.error_column, StringType())])


def known_schema(shard: ShardConfig) -> StructType:
    """What a record may have: the declared columns, and those that only a condition or a route looks at."""
    fields = list(_schema_of(shard).fields)
    names = {field.name for field in fields}
    condition = shard.apply_as_deletes
    if condition is not None and condition.column not in names:
        kinds = {"BOOLEAN": BooleanType(), "BIGINT": LongType()}
        fields.append(StructField(condition.column, kinds.get(condition.type_name, StringType())))
        names.add(condition.column)
    if shard.route is not None and shard.route.column is not None and shard.route.column not in names:
        fields.append(StructField(shard.route.column, StringType()))
    return StructType([StructField(field.name, field.dataType) for field in fields])


def open_envelope(frame: DataFrame, form: Form) -> DataFrame:
    """The frame with `_doc`, the JSON text of the row, and what the envelope says of it."""
    if form.envelope != "debezium":
        return frame.select(
            "*",
            (F.col(RAW) if form.format == "json" else F.lit(None).cast(_TEXT)).alias(DOCUMENT),
            F.lit(None).cast(_TEXT).alias(BEFORE),
            F.lit(None).cast(_ORIGIN).alias(ORIGIN),
            F.lit(False).alias(GONE),
            F.lit(False).alias(SKIP),
            F.lit(None).cast(_TEXT).alias(REFUSAL),
        )
    opened = frame.withColumn("_outer", F.from_json(RAW, f"struct<payload:struct<{_CHANGE}>,{_CHANGE}>"))
    inner = F.when(F.col("_outer.payload").isNotNull(), F.col("_outer.payload")).otherwise(
        F.struct(*[F.col(f"_outer.{name}").alias(name) for name in ("before", "after", "op", "source")])
    )
    opened = opened.withColumn("_inner", inner).drop("_outer")
    tombstone = F.trim(RAW).isin("null", '{"schema":null,"payload":null}')
    return opened.select(
        *frame.columns,
        F.coalesce("_inner.after", "_inner.before").alias(DOCUMENT),
        F.col("_inner.before").alias(BEFORE),
        F.col("_inner.source").alias(ORIGIN),
        F.coalesce(F.col("_inner.after").isNull(), F.lit(True)).alias(GONE),
        tombstone.alias(SKIP),
        F.when(F.col("_inner.op") == "t", F.lit("a truncate can't be applied")).alias(REFUSAL),
    )


def parse(frame: DataFrame, form: Form, shard: ShardConfig) -> DataFrame:
    """The frame with the columns that are described above."""
    known = known_schema(shard)
    match form.format:
        case "json":
            return _parse_json(frame, form, shard, known)
        case "csv":
            return _parse_csv(frame, form, known)
        case _:
            return _parse_rows(frame, form, known)


def _parse_json(frame: DataFrame, form: Form, shard: ShardConfig, known: StructType) -> DataFrame:
    # Spark reads the first JSON value of a text and ignores the rest of it.
    closed = F.col(DOCUMENT).endswith("}") | F.rtrim(DOCUMENT).endswith("}")
    names = F.when(closed, F.json_object_keys(DOCUMENT))
    parsed = frame.withColumns({VALUES: _strict_json(known), NAMES: names})
    refusal = F.col(REFUSAL)
    if form.envelope == "debezium":
        refusal = F.coalesce(refusal, _key_change(shard, known))
    skip = F.col(SKIP)
    if form.envelope == "append":
        skip = skip | F.coalesce(F.array_size(NAMES) == 0, F.lit(False))
    return parsed.withColumns(
        {BROKEN: F.col(f"{VALUES}.{_CORRUPT}").isNotNull(), SKIP: skip, REFUSAL: refusal}
    )


def _strict_json(known: StructType) -> Column:
    schema = StructType([*known.fields, StructField(_CORRUPT, StringType())])
    return F.from_json(F.col(DOCUMENT), schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})


def _key_change(shard: ShardConfig, known: StructType) -> Column:
    """A row that changes its key is a deletion and an insertion; Debezium sends both, and never this."""
    keys = [field for field in known.fields if field.name in shard.keys]
    before = F.from_json(BEFORE, StructType(keys))
    changed = [
        F.get_json_object(BEFORE, f"$.{field.name}").isNotNull()
        & ~before.getField(field.name).eqNullSafe(F.col(f"{VALUES}.{field.name}"))
        for field in keys
    ]
    any_changed = changed[0]
    for one in changed[1:]:
        any_changed = any_changed | one
    here = F.col(BEFORE).isNotNull() & ~F.col(GONE)
    shown = ", ".join(shard.keys)
    return F.when(here & any_changed, F.lit(f"one record changes the key ({shown}) of a row"))


def _parse_csv(frame: DataFrame, form: Form, known: StructType) -> DataFrame:
    types = {field.name: field.dataType for field in known.fields}
    fields = [StructField(name, types.get(name, StringType())) for name in form.header]
    schema = StructType([*fields, StructField(_CORRUPT, StringType())])
    parsed = frame.withColumn("_csv", F.from_csv(RAW, _ddl(schema), _csv_options(form.csv)))
    return parsed.withColumns(
        {
            VALUES: _values_of("_csv", form.header, known),
            NAMES: F.array(*[F.lit(name) for name in form.header]),
            BROKEN: F.col(f"_csv.{_CORRUPT}").isNotNull(),
        }
    ).drop("_csv")


def _values_of(struct: str, there: Sequence[str], known: StructType) -> Column:
    """The known columns out of a struct that may not have them all."""
    values = [
        (F.col(f"{struct}.{field.name}") if field.name in there else F.lit(None))
        .cast(field.dataType)
        .alias(field.name)
        for field in known.fields
    ]
    return F.struct(*values)


def csv_text(form: Form) -> Column:
    """The fields of a CSV record as text, for saying which one is broken."""
    schema = StructType([StructField(name, StringType()) for name in form.header])
    return F.from_csv(RAW, _ddl(schema), _csv_options(form.csv))


def _ddl(schema: StructType) -> str:
    return ", ".join(f"{quoted(field.name)} {field.dataType.simpleString()}" for field in schema.fields)


def _csv_options(csv: CsvOptions) -> dict[str, str]:
    return {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _CORRUPT,
        "sep": csv.delimiter,
        "quote": csv.quote,
        "nullValue": csv.null_value,
        **_CSV_LIMITS,
    }


def _parse_rows(frame: DataFrame, form: Form, known: StructType) -> DataFrame:
    return frame.withColumns(
        {
            VALUES: _values_of(DATA, form.header, known),
            NAMES: F.array(*[F.lit(name) for name in form.header]),
            BROKEN: F.lit(False),
            RAW: F.to_json(DATA, {"ignoreNullFields": "false"}),
        }
    )
