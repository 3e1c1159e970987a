"""The rules that a parsed record must keep, and what becomes of one that doesn't.

Every record goes to exactly one *slot*: a change of the shard, a bad record, or one that carries no change.

- A *bad* record has a reason, and goes where `on_error` says: quarantine, a refusal of the transaction, or
  the shard itself with NULL values and the reason in the error column, if its key could be read. One that is
  too late is set aside in quarantine in any case: it is late, not broken.
- A *refusal* stops the transaction before anything is written, because the declared policy has to hold for
  all of it at once: an undeclared column, a missing one, a truncate, a changed key (scenarios E4, D7).

A column that a record leaves out is not the same as NULL: with `on_schema_change: fail` it is a dropped
column, and refused; with `add_columns`, where records of several shapes are expected, a nullable one is NULL.
A deletion needs its key only. A key is bad when all its parts are NULL; one NULL part is a value like any
other, but every part must be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, LongType, StringType, StructType

from tidemark.config import Predicate, ShardConfig
from tidemark.core.ids import Txn
from tidemark.spark import documents as doc
from tidemark.spark.fold import (
    DELETE,
    OFFSET,
    OP,
    ORDINAL,
    POSITION,
    TXN,
    UPSERT,
    is_too_late,
    lateness_number,
    sequence_number,
)
from tidemark.spark.read import HASH, RAW

SHARD: Final = "_shard"
KEY: Final = "_key"
REASON: Final = "_reason"
SLOT: Final = "_slot"
SEQUENCE: Final = "_sequence"

CHANGES: Final = 0
BAD: Final = 1
NOTHING: Final = 2

REFUSAL_MARK: Final = "tidemark-refusal"
_TEXT: Final = StringType()
_VALUE_CHARACTERS_MAX: Final = 80


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides over the records of one shard in one transaction."""

    shard: ShardConfig
    form: doc.Form
    txn: Txn
    watermark: int | None = None

    @property
    def keeps_all(self) -> bool:
        """The append envelope: no key, no order, no deletion."""
        return self.form.envelope == "append"


def decode(frame: DataFrame, rules: Rules) -> DataFrame:
    """The records with their slot and reason, and the log's columns where they are changes.

    The frame has an open envelope and `_shard`, NULL where no shard takes the record. Added are the declared
    columns, `_txn`, `_op`, `_slot`, `_reason`, `_key` and `_sequence` (a number, or NULL); position, `_raw`
    and `_hash` stay.
    """
    parsed = doc.parse(frame, rules.form, rules.shard)
    judged = parsed.withColumn("_delete", _is_deletion(rules)).withColumns(
        {"_fatal": _fatal(rules), "_flaw": _flaw(rules), "_late": _too_late(rules)}
    )
    return _shaped(judged, rules)


def _value(name: str) -> Column:
    return F.col(f"{doc.VALUES}.{name}")


def _is_deletion(rules: Rules) -> Column:
    condition = rules.shard.apply_as_deletes
    if rules.form.envelope == "debezium" or condition is None:
        return F.col(doc.GONE)
    return F.coalesce(_holds(condition), F.lit(False))


def _holds(condition: Predicate) -> Column:
    column = _value(condition.column)
    return column.isNull() if condition.is_null else column.isin(list(condition.values))


def _fatal(rules: Rules) -> Column:
    """Why the transaction must stop; NULL for nearly every record."""
    shard = rules.shard
    known = doc.known_schema(shard).names
    names = F.col(doc.NAMES)
    added = F.array_except(names, _texts(known))
    extra = _first("column '", added, "' is not declared")
    required = [] if rules.keeps_all else [*shard.keys]
    optional = [column.name for column in shard.columns if column.nullable and column.name not in shard.keys]
    missing = _first("column '", F.array_except(_texts(optional), names), "' is missing")
    checks: list[Column] = [extra]
    if rules.form.envelope == "debezium" or rules.form.format != "json":
        checks.append(_first("key column '", F.array_except(_texts(required), names), "' is missing"))
    if shard.on_schema_change == "fail" and optional:
        # A record without its key is a bad one, whatever else it lacks.
        has_keys = F.array_size(F.array_except(_texts(required), names)) == 0 if required else F.lit(True)
        checks.append(F.when(~F.col("_delete") & has_keys, missing))
    # Most records name the declared columns in one order; a comparison is cheaper than two set differences.
    in_order = F.coalesce(names == _texts([column.name for column in shard.columns]), F.lit(False))
    schema_change = F.when(in_order | names.isNull(), F.lit(None).cast(_TEXT)).otherwise(F.coalesce(*checks))
    applies = ~F.col(doc.SKIP) & F.col(SHARD).isNotNull()
    return F.when(applies, F.coalesce(F.col(doc.REFUSAL), schema_change))


def _first(before: str, names: Column, after: str) -> Column:
    """A message with the first of the names; NULL when there is none."""
    return F.when(F.array_size(names) > 0, F.concat(F.lit(before), F.element_at(names, 1), F.lit(after)))


def _texts(names: Sequence[str]) -> Column:
    return F.array(*[F.lit(name) for name in names]).cast("array<string>")


def _flaw(rules: Rules) -> Column:
    """Why a record is bad; NULL when it isn't."""
    shard = rules.shard
    unreadable = F.when(F.col(doc.NAMES).isNull(), F.lit(_UNREADABLE[rules.form.envelope]))
    checks = [F.when(F.col(SHARD).isNull(), F.lit("no shard takes it")), unreadable]
    checks.append(F.when(F.col(doc.BROKEN), _broken_columns(rules)))
    if shard.keys and not rules.keeps_all:
        absent_keys = F.array_except(_texts(shard.keys), F.col(doc.NAMES))
        checks.append(_first("key column '", absent_keys, "' is missing"))
        all_null = F.lit(True)
        for key in shard.keys:
            all_null = all_null & _value(key).isNull()
        checks.append(F.when(all_null, F.lit(f"the key ({', '.join(shard.keys)}) is NULL")))
    for column in shard.columns:
        if not column.nullable:
            absent = _value(column.name).isNull()
            needed = absent if column.name in shard.keys else absent & ~F.col("_delete")
            checks.append(F.when(needed, F.lit(f"column '{column.name}' is NOT NULL, and has no value")))
    return F.coalesce(*checks)


_UNREADABLE: Final = {
    "upsert": "it is not a JSON object",
    "append": "it is not a JSON object",
    "debezium": "it has no readable 'after' or 'before'",
}


def _broken_columns(rules: Rules) -> Column:
    """Which values don't fit. Reads the record once more, which only broken ones pay for."""
    said: list[Column] = []
    text = doc.csv_text(rules.form) if rules.form.format == "csv" else None
    for column in rules.shard.columns:
        if rules.form.format == "json":
            found = F.get_json_object(doc.DOCUMENT, f"$.{column.name}")
        elif text is not None and column.name in rules.form.header:
            found = text.getField(column.name)
        else:
            continue
        shown = F.substring(found, 1, _VALUE_CHARACTERS_MAX)
        fact = F.concat(F.lit(f"column '{column.name}' is {column.type.ddl}, found "), shown)
        said.append(F.when(_value(column.name).isNull() & found.isNotNull(), fact))
    # A struct with one broken field is not NULL itself.
    nested = [column.name for column in rules.shard.columns if column.type.name in ("ARRAY", "MAP", "STRUCT")]
    inside = f"a value inside of {' or '.join(nested)} does not fit its type"
    return F.coalesce(*said, F.lit(inside if nested else "the record is malformed"))


def _too_late(rules: Rules) -> Column:
    shard = rules.shard
    kind = _sequence_type(rules)
    if kind is None or shard.sequence_by is None or shard.lateness is None or rules.watermark is None:
        return F.lit(None).cast(_TEXT)
    number = sequence_number(_value(shard.sequence_by), kind)
    late = is_too_late(number, watermark=rules.watermark, lateness=lateness_number(shard.lateness, kind))
    fact = F.concat(
        F.lit("too late: sequence "),
        number.cast(_TEXT),
        F.lit(f" is more than {shard.lateness} below the watermark {rules.watermark}"),
    )
    return F.when(late, fact)


def _sequence_type(rules: Rules) -> DataType | None:
    name = rules.shard.sequence_by
    return None if name is None else doc.known_schema(rules.shard)[name].dataType


def _shaped(judged: DataFrame, rules: Rules) -> DataFrame:
    """The final columns: values where the record is a change, NULL elsewhere."""
    shard = rules.shard
    kept = _kept_inline(rules)
    late = F.col("_late").isNotNull()
    good = F.col("_flaw").isNull() & ~F.col(doc.SKIP) & ~late
    slot = (
        F.when(F.col("_fatal").isNotNull(), _refuse(F.col("_fatal")))
        .when(F.col(doc.SKIP), F.lit(NOTHING))
        .when(late, F.lit(BAD))
        .when(F.col("_flaw").isNull() | kept, F.lit(CHANGES))
        .when(F.lit(shard.on_error == "fail"), _refuse(F.col("_flaw")))
        .otherwise(F.lit(BAD))
        .cast("tinyint")
    )
    always = {*shard.keys, shard.sequence_by} if not rules.keeps_all else set()
    values = [
        F.when(good | kept if column.name in always else good & ~F.col("_delete"), _value(column.name)).alias(
            column.name
        )
        for column in shard.columns
    ]
    if shard.error_column is not None:
        values.append(F.when(kept, F.col("_flaw")).alias(shard.error_column))
    kind = _sequence_type(rules)
    number = F.lit(None).cast(LongType())
    if kind is not None and shard.lateness is not None and shard.sequence_by is not None:
        number = F.when(good, sequence_number(_value(shard.sequence_by), kind))
    return judged.select(
        *values,
        F.lit(int(rules.txn)).cast(LongType()).alias(TXN),
        F.when(F.col("_delete") & ~kept, F.lit(DELETE)).otherwise(F.lit(UPSERT)).alias(OP),
        *POSITION,
        slot.alias(SLOT),
        F.when(F.col(doc.SKIP), F.lit(None)).otherwise(F.coalesce("_flaw", "_late")).alias(REASON),
        _key_text(rules).alias(KEY),
        number.alias(SEQUENCE),
        SHARD,
        RAW,
        HASH,
    )


def _kept_inline(rules: Rules) -> Column:
    """Whether a broken record stays in its shard: only when asked for, and when its key was readable."""
    if rules.shard.on_error != "inline":
        return F.lit(False)
    readable = F.col(doc.BROKEN) & F.col(SHARD).isNotNull() & ~F.col(doc.SKIP) & F.col(doc.NAMES).isNotNull()
    for key in rules.shard.keys:
        readable = readable & _value(key).isNotNull()
    return F.coalesce(readable, F.lit(False))


def _key_text(rules: Rules) -> Column:
    keys = rules.shard.keys
    if not keys:
        return F.lit(None).cast(_TEXT)
    text = F.to_json(F.struct(*[_value(key).alias(key) for key in keys]), {"ignoreNullFields": "false"})
    return F.when(F.coalesce(*[_value(key).cast(_TEXT) for key in keys]).isNotNull(), text)


def _refuse(fact: Column) -> Column:
    """Stop the job with the fact and the position, in a form that the driver finds in the error's text."""
    place = [F.lit(f"[[{REFUSAL_MARK}"), F.col(OFFSET).cast(_TEXT), F.col(ORDINAL).cast(_TEXT)]
    message = F.concat(F.concat_ws(" ", *place, fact), F.lit("]]"))
    return F.raise_error(message).cast("int")


def hashed_columns(shard: ShardConfig) -> StructType:
    """What a shard's output hash covers: the declared columns and the operation."""
    return StructType(doc.declared_schema(shard).fields).add(OP, StringType())
