"""The reasons why a record is bad, as SQL text over the columns of `documents`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import DataType

from tidemark.config import ShardConfig
from tidemark.config.row_rules import quarantine_rules
from tidemark.core.ids import Txn
from tidemark.core.text import sequence_text
from tidemark.spark import documents as doc
from tidemark.spark.documents import repeated_name, unclosed
from tidemark.spark.fold import lateness_number, sequence_number_sql
from tidemark.spark.read import KEY_DOCUMENT, NO_KEY, NO_VALUE, RAW
from tidemark.spark.sql import case, coalesced, literal, quoted, texts
from tidemark.spark.values import CORRUPT, toast_reason

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
