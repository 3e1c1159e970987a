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

All expressions here are SQL text (see `sql`), over the columns that `documents` describes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StringType, StructType

from tidemark.config import ShardConfig
from tidemark.config.rowwise import quarantine_rules
from tidemark.core.ids import Txn
from tidemark.spark import documents as doc
from tidemark.spark.fold import (
    DELETE,
    OFFSET,
    OP,
    ORDINAL,
    POSITION,
    UPSERT,
    lateness_number,
    sequence_number_sql,
)
from tidemark.spark.read import HASH, RAW
from tidemark.spark.sql import case, coalesced, key_text, literal, quoted, texts

SHARD: Final = doc.SHARD
KEY: Final = "_key"
REASON: Final = "_reason"
SLOT: Final = "_slot"
SEQUENCE: Final = "_sequence"

CHANGES: Final = 0
BAD: Final = 1
NOTHING: Final = 2

REFUSAL_MARK: Final = "tidemark-refusal"
_NULL_TEXT: Final = "cast(null as string)"
_VALUE_CHARACTERS_MAX: Final = 80
_UNREADABLE: Final = {
    "upsert": "it is not a JSON object",
    "append": "it is not a JSON object",
    "debezium": "it has no readable 'after' or 'before'",
}


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

    @property
    def sequence_type(self) -> DataType | None:
        name = self.shard.sequence_by
        return None if name is None else doc.known_schema(self.shard)[name].dataType


def decode(frame: DataFrame, rules: Rules, *, explain: bool) -> DataFrame:
    """The records with their slot, and the log's columns where they are changes.

    The frame has an open envelope and `_shard`, NULL where no shard takes the record. Added are the declared
    columns, `_op`, `_slot` and `_sequence` (a number, or NULL); position and `_hash` stay. With
    `explain`, `_shard`, `_key`, `_raw` and the full `_reason` come along; who only counts does without.
    """
    parsed = doc.parse(frame, rules.form, rules.shard)
    explain = explain or rules.shard.on_error != "quarantine"
    judged = parsed.selectExpr(
        "*",
        f"{_deletion(rules)} AS _delete",
        f"{_fatal(rules)} AS _fatal",
        f"{_dropped(rules)} AS _dropped",
        f"{_flaw(rules, explain=explain)} AS _flaw",
        f"{_too_late(rules)} AS _late",
    )
    return judged.selectExpr(*_values(rules), *_facts(rules), *(_reasons(rules) if explain else ()))


def _value(name: str) -> str:
    return f"{doc.VALUES}.{quoted(name)}"


def _deletion(rules: Rules) -> str:
    condition = rules.shard.apply_as_deletes
    if rules.form.envelope == "debezium" or condition is None:
        return doc.GONE
    column = _value(condition.column)
    if condition.is_null:
        return f"isnull({column})"
    return f"coalesce({column} IN ({', '.join(map(literal, condition.values))}), false)"


def _absent(names: list[str]) -> str:
    return f"array_except({texts(names)}, {doc.NAMES})"


def _first(before: str, names: str) -> str:
    """A message with the first of the names; NULL when there is none."""
    return case(f"array_size({names}) > 0", f"concat({literal(before)}, ' \\'', {names}[0], '\\'')")


def _fatal(rules: Rules) -> str:
    """Why the transaction must stop; NULL for nearly every record."""
    shard, names = rules.shard, doc.NAMES
    known = list(doc.known_schema(shard).names)
    checks = [_first("undeclared column", f"array_except({names}, {texts(known)})")]
    if rules.form.envelope == "debezium" or rules.form.format != "json":
        checks.append(_first("missing key column", _absent([] if rules.keeps_all else list(shard.keys))))
    change = case(_unusual(rules), coalesced(checks))
    return case(f"NOT {doc.SKIP} AND {SHARD} IS NOT NULL", coalesced([doc.REFUSAL, change]))


def _dropped(rules: Rules) -> str:
    """A declared column that an otherwise good record lacks, where that must stop the transaction."""
    shard = rules.shard
    optional = [column.name for column in shard.columns if column.nullable and column.name not in shard.keys]
    if shard.on_schema_change != "fail" or not optional:
        return _NULL_TEXT
    applies = f"NOT {doc.SKIP} AND {SHARD} IS NOT NULL AND NOT {_deletion(rules)} AND {_unusual(rules)}"
    return case(applies, _first("missing column", _absent(optional)))


def _unusual(rules: Rules) -> str:
    """Most records name the declared columns in one order; a comparison is cheaper than set differences."""
    usual = {rules.shard.columns.names, tuple(doc.known_schema(rules.shard).names)}
    return " AND ".join(
        [f"{doc.NAMES} IS NOT NULL", *(f"{doc.NAMES} != {texts(names)}" for names in sorted(usual))]
    )


def _flaw(rules: Rules, *, explain: bool) -> str:
    """Why a record is bad; NULL when it isn't."""
    shard = rules.shard
    broken = _broken_columns(rules) if explain else "'broken'"
    checks = [
        case(f"{SHARD} IS NULL", "'no shard takes it'"),
        case(f"{doc.NAMES} IS NULL", literal(_UNREADABLE[rules.form.envelope])),
        case(doc.BROKEN, broken),
    ]
    if shard.keys and not rules.keeps_all:
        keys = list(shard.keys)
        # The array is looked at only where a part is NULL: absent and NULL look the same up to here.
        some_null = " OR ".join(f"isnull({_value(key)})" for key in keys)
        all_null = " AND ".join(f"isnull({_value(key)})" for key in keys)
        checks.append(case(some_null, _first("missing key column", _absent(keys))))
        checks.append(case(all_null, literal(f"the key ({', '.join(keys)}) is NULL")))
    for column in shard.columns:
        if not column.nullable:
            always = column.name in shard.keys
            needed = f"isnull({_value(column.name)})" + ("" if always else f" AND NOT {_deletion(rules)}")
            checks.append(case(needed, literal(f"column '{column.name}' is NOT NULL, and has no value")))
    for rule in quarantine_rules(shard, f"{doc.VALUES}."):
        broken = f"NOT {_deletion(rules)} AND NOT {doc.SKIP} AND {rule.broken_when}"
        checks.append(case(broken, literal(f"breaks {rule.reason}")))
    return coalesced(checks)


def _broken_columns(rules: Rules) -> str:
    """Which values don't fit. Reads the record once more, which only broken ones pay for."""
    said: list[str] = []
    for column in rules.shard.columns:
        found = _found(rules, column.name)
        if found is None:
            continue
        fact = literal(f"column '{column.name}' is {column.type.ddl}, found ")
        value = f"substring({found}, 1, {_VALUE_CHARACTERS_MAX})"
        shown = f"concat({fact}, {literal('***') if column.name in rules.shard.masked else value})"
        said.append(case(f"isnull({_value(column.name)}) AND isnotnull({found})", shown))
    # A struct with one broken field is not NULL itself.
    nested = [column.name for column in rules.shard.columns if column.type.name in ("ARRAY", "MAP", "STRUCT")]
    inside = f"a value inside of {' or '.join(nested)} does not fit its type"
    return coalesced([*said, literal(inside if nested else "the record is malformed")])


def _found(rules: Rules, name: str) -> str | None:
    """What a record has for a column, as text; None for formats whose values have types of their own."""
    if rules.form.format == "json":
        return f"get_json_object({doc.DOCUMENT}, {literal('$.' + name)})"
    if rules.form.format == "csv" and name in rules.form.header:
        return f"{doc.csv_text(rules.form)}.{quoted(name)}"
    return None


def _too_late(rules: Rules) -> str:
    shard, kind = rules.shard, rules.sequence_type
    if kind is None or shard.sequence_by is None or shard.lateness is None or rules.watermark is None:
        return _NULL_TEXT
    number = sequence_number_sql(_value(shard.sequence_by), kind)
    line = rules.watermark - lateness_number(shard.lateness, kind)
    rest = literal(f" is more than {shard.lateness} below the watermark {rules.watermark}")
    late = f"isnull({number}) OR {number} < {line}"
    return case(late, f"concat('too late: sequence ', coalesce({number}, 'NULL'), {rest})")


def _values(rules: Rules) -> list[str]:
    """The declared columns: values where the record is a change, NULL elsewhere."""
    shard, kept = rules.shard, _kept_inline(rules)
    good = f"isnull(_flaw) AND NOT {doc.SKIP} AND isnull(_late)"
    always = set() if rules.keeps_all else {*shard.keys, shard.sequence_by}
    values = [
        case(f"({good}) OR {kept}" if name in always else f"{good} AND NOT _delete", _value(name))
        + f" AS {quoted(name)}"
        for name in shard.columns.names
    ]
    if shard.error_column is not None:
        values.append(f"{case(kept, '_flaw')} AS {quoted(shard.error_column)}")
    return values


def _facts(rules: Rules) -> list[str]:
    """What else goes into the fold: operation, position, slot, sequence and the input's hash."""
    shard, kept, kind = rules.shard, _kept_inline(rules), rules.sequence_type
    fails = (
        f" WHEN isnotnull(_flaw) AND NOT {kept} THEN {_refuse('_flaw')}" if shard.on_error == "fail" else ""
    )
    slot = (
        f"CASE WHEN isnotnull(_fatal) THEN {_refuse('_fatal')}"
        f" WHEN isnotnull(_dropped) AND isnull(_flaw) THEN {_refuse('_dropped')}"
        f" WHEN {doc.SKIP} THEN {NOTHING}"
        f" WHEN isnotnull(_late) THEN {BAD} WHEN isnull(_flaw) OR {kept} THEN {CHANGES}{fails} ELSE {BAD} END"
    )
    number = "cast(null as bigint)"
    if kind is not None and shard.lateness is not None and shard.sequence_by is not None:
        number = case("isnull(_flaw) AND isnull(_late)", sequence_number_sql(_value(shard.sequence_by), kind))
    return [
        f"CASE WHEN _delete AND NOT {kept} THEN '{DELETE}' ELSE '{UPSERT}' END AS {OP}",
        *POSITION,
        f"cast({slot} as tinyint) AS {SLOT}",
        f"{number} AS {SEQUENCE}",
        HASH,
    ]


def _reasons(rules: Rules) -> list[str]:
    """What quarantine keeps of a bad record."""
    return [
        SHARD,
        f"{_key(rules)} AS {KEY}",
        RAW,
        f"{case(f'NOT {doc.SKIP}', 'coalesce(_flaw, _late)')} AS {REASON}",
    ]


def _key(rules: Rules) -> str:
    """The key as text, if all of it could be read: a part that could not is not a part that is NULL."""
    keys = list(rules.shard.keys)
    if not keys:
        return _NULL_TEXT
    some = " OR ".join(f"isnotnull({_value(key)})" for key in keys)
    found = {key: _found(rules, key) for key in keys}
    lost = [f"(isnull({_value(key)}) AND isnotnull({text}))" for key, text in found.items() if text]
    absent = "0" if rules.keeps_all else f"array_size({_absent(keys)})"
    unread = f"coalesce({' OR '.join([f'{absent} > 0', *lost])}, true)"
    return case(f"({some}) AND NOT {unread}", key_text({key: _value(key) for key in keys}))


def _kept_inline(rules: Rules) -> str:
    """Whether a broken record stays in its shard: only when asked for, and when its key was readable."""
    if rules.shard.on_error != "inline":
        return "false"
    keys = "".join(f" AND isnotnull({_value(key)})" for key in rules.shard.keys)
    here = f"isnotnull({SHARD}) AND NOT {doc.SKIP} AND isnotnull({doc.NAMES})"
    return f"({doc.BROKEN} AND {here}{keys})"


def _refuse(fact: str) -> str:
    """Stop the job with the fact and the position, in a form that the driver finds in the error's text."""
    place = f"concat_ws(' ', '[[{REFUSAL_MARK}', {OFFSET}, {ORDINAL}, {fact})"
    return f"cast(raise_error(concat({place}, ']]')) as int)"


def hashed_columns(shard: ShardConfig) -> StructType:
    """What a shard's output hash covers: the declared columns and the operation."""
    return StructType(list(doc.declared_schema(shard).fields)).add(OP, StringType())
