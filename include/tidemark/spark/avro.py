"""Avro bytes as JSON text, so that from there on a record is like any other.

Avro does not say of itself what it is, and Spark gives a row of NULLs for bytes that it can't read, which may
as well be a row. So the schema is read as a part of a record around it, beside an *end*: some bytes that are
put after the given ones. What can't be read has no end; bytes that are too few or too many leave another one,
and are not read either. Nothing but the exact bytes of the schema passes.

Text keeps every value: decimals and times are written in full, bytes as base64, what has no value as null. A
union of several types is an object with `member0`, `member1` and so on, as Spark has it.

Known limitation: bytes that some other schema wrote, and that this one reads to the end by chance, are taken.
"""

from __future__ import annotations

import base64
import json
from typing import Final

from tidemark.config.avro import AvroSchemas, is_record
from tidemark.spark.sql import JSON_OPTIONS, literal

_END: Final = b"tidemark"
WIRE_BYTES: Final = 5
_OPTIONS: Final = "map('mode', 'PERMISSIVE')"


def avro_json(column: str, schemas: AvroSchemas, *, single: str = "") -> str:
    """SQL for the JSON object of a column's bytes; NULL where they are not of the schemas.

    A schema that is none of a record gives an object with this `single` name."""
    if schemas.plain:
        return _decoded(column, schemas.plain, single)
    rest = f"substring({column}, {WIRE_BYTES + 1})"
    if not schemas.by_id:
        return "cast(null as string)"
    cases = [f"WHEN {_wire(number)} THEN {_decoded(rest, text, single)}" for number, text in schemas.by_id]
    return f"CASE substring({column}, 1, {WIRE_BYTES}) {' '.join(cases)} END"


def not_avro(column: str, schemas: AvroSchemas) -> str:
    """SQL for why a column's bytes give no object."""
    if schemas.plain:
        return "'it is not Avro of the given schema'"
    begin = f"substring({column}, 1, {WIRE_BYTES})"
    number = f"conv(hex(substring({column}, 2, {WIRE_BYTES - 1})), 16, 10)"
    is_wire = f"octet_length({begin}) = {WIRE_BYTES} AND substring({column}, 1, 1) = X'00'"
    known = ", ".join(_wire(number_) for number_ in schemas.ids) or "X''"
    return (
        f"CASE WHEN NOT ({is_wire}) THEN 'it does not begin with the id of a schema'"
        f" WHEN {begin} NOT IN ({known})"
        f" THEN concat('its schema has id ', {number}, ', which is not known')"
        f" ELSE concat('it is not Avro of the schema with id ', {number}) END"
    )


def _wire(number: int) -> str:
    """What Confluent's wire format begins with: a zero, and the id in four bytes."""
    return f"X'00{number:08X}'"


def _decoded(column: str, schema: str, single: str) -> str:
    """The part's own text, out of that of the record around it: taken out as text, since an expression that
    stands in a condition and in its result would decode twice."""
    around = (
        '{"type":"record","name":"tidemark_around","fields":[{"name":"v","type":' + schema + "},"
        '{"name":"end","type":{"type":"fixed","name":"tidemark_end","size":' + str(len(_END)) + "}}]}"
    )
    found = f"from_avro(concat({column}, X'{_END.hex()}'), {literal(around)}, {_OPTIONS})"
    # A text may have characters that a dot takes for the end of a line.
    whole = literal(r'(?s)^\{"v":(.*),"end":"' + base64.b64encode(_END).decode() + r'"\}$')
    part = f"nullif(regexp_extract(to_json({found}, {JSON_OPTIONS}), {whole}, 1), '')"
    if is_record(schema):
        return part
    return f"concat({literal('{' + json.dumps(single) + ':')}, {part}, '}}')"
