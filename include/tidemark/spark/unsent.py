"""Big values that an update left alone and the database did not send: what a connector writes in their place.

Postgres keeps big values beside their rows. Of an update it sends those that changed, and all of them only
where the table has `REPLICA IDENTITY FULL`. For one that it did not get, Debezium's connector writes

==========================================  ==========================================================
a text, JSON or bytes                       a text of its own
an array of texts                           that text as its one element
an array of uuids                           the uuid that Java makes of that text
an array of INTEGER, BIGINT, some of DATE   the numbers of the text's characters
an array of anything else                   NULL, as if the row had none
==========================================  ==========================================================

NULL is what the row has where the record has a `before` of an update, as every table with full identity does.
Without one nobody can tell, so such a record is bad, and the row keeps its value. A row that changes its key
is inserted anew, and has the same gaps: a header tells it from other insertions.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import ArrayType, DataType, DateType, IntegerType, LongType, StringType

from tidemark.spark.read import RECORD
from tidemark.spark.sql import literal

PARTIAL: Final = "_partial"
"""Whether the record is of a change that may leave out what it does not change."""
PLACEHOLDER: Final = "__debezium_unavailable_value"
ADVICE: Final = "ALTER TABLE … REPLICA IDENTITY FULL has it sent"
_UUID: Final = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
_CODES: Final = literal(",".join(str(code) for code in PLACEHOLDER.encode()))
_REASON: Final = "column '"


def partial(*, keyed: bool) -> str:
    """`_partial`, of an opened envelope."""
    moved = f"exists({RECORD}.headers, h -> h.key = '__debezium.oldkey')" if keyed else "false"
    return f"isnull(_inner.before) AND (_inner.op = 'u' OR coalesce({moved}, false)) AS {PARTIAL}"


def is_unsent(read: str, kind: DataType) -> str | None:
    """Whether an array is not known; None for types that are not judged here."""
    if not isinstance(kind, ArrayType):
        return None
    missing = f"(isnull({read}) AND {PARTIAL})"
    codes = f"coalesce(concat_ws(',', cast({read} as array<string>)) = {_CODES}, false)"
    match kind.elementType:
        case StringType():
            marks = f"array({literal(PLACEHOLDER)}, {literal(_UUID)})"
            return f"coalesce(arrays_overlap({read}, {marks}), false)"
        case IntegerType() | LongType():
            return codes
        case DateType():
            return f"({codes} OR {missing})"
    return missing


def reason(column: str) -> str:
    """Why a record with such an array is bad."""
    return f"{_REASON}{column}' is not in it: an update does not send it; {ADVICE}"


def told(corrupt: str) -> str:
    """The reason that was put into the column for what is corrupt; NULL for any other text there."""
    return f"CASE WHEN startswith({corrupt}, {literal(_REASON)}) THEN {corrupt} END"
