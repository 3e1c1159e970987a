"""The names that a JSON object has: which, and whether one of them stands there twice.

Of two values under one name nobody can say which counts, so such a record is bad. Known limitation: only a
record's own names are looked at, not those inside of its values, of its envelope or of its key.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import MapType, StructType, TimestampNTZType, TimestampType

from tidemark.spark.sql import case, quoted, texts
from tidemark.spark.values import CORRUPT

_WITH_COLONS: Final = (MapType, StructType, TimestampNTZType, TimestampType)


def names_in(document: str, known: StructType, *, values: str) -> str:
    """The names in a JSON object, which is read once more only where that can tell something new.

    It can't where every known column has a value, and so is there, and the text has no more colons than that:
    an object has at most as many names as colons. Values with colons of their own are read once more.
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
    """Whether a name is there twice. Most objects have the known names in one order, and are left alone."""
    twice = f"array_size(array_distinct({names})) < array_size({names})"
    return f"coalesce({names} != {texts(known.names)} AND {twice}, false)"


def repeated_name(document: str) -> str:
    """The first name that an object has twice; NULL where none is. Reads the object once more."""
    names = f"json_object_keys({document})"
    return f"get(filter({names}, (name, at) -> array_position({names}, name) <= at), 0)"
