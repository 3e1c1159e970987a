"""Digests of DataFrames: the 64-bit row hash, the key hash, and the sums that make a
`core.checksum.Digest`.

Encoding 2. A row is a set of named values. Its hash is `xxhash64` over the encoding number and then, for
each column that is not NULL, in the order of names, a number derived from the name, and the value. So
neither a column that is NULL in every row nor the order of columns changes a hash: a table that gets a
column keeps its digests. `xxhash64` skips NULLs, so (NULL, 'a') would equal ('a', NULL); the names keep
them apart. A nested value is hashed by itself first:

- a struct: its null flag, then each of its fields;
- an array: its null flag, its size, then the hash of each element in order;
- a map: its null flag, its size, then the sorted hashes of its entries, since a map has no order.

Types are part of the hash (INT 1 is not BIGINT 1), so callers hash declared columns in declared types. 0.0
and -0.0 are one value, as in SQL, and so are all NaNs. Golden vectors in the tests pin the encoding; a
change of any hash must change `core.checksum.ENCODING` too.

A digest is never a scan of its own. Observe it in the *last* stage of a job: Spark counts each task of a
result stage once, however often it ran, but counts a shuffle's map task again if a lost executor makes it
run again (Invariant 7). A value that is known only before a shuffle, such as the hash of the raw input, is
carried through it as a column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.core.checksum import ENCODING, Digest
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.spark.columns import quoted

_ATOMS: Final = (
    BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType, LongType,
    ShortType, StringType, TimestampNTZType, TimestampType,
)  # fmt: skip
_BITS_64: Final = (1 << 64) - 1
_BITS_32: Final = (1 << 32) - 1

COUNT: Final = "count"
XOR: Final = "xor"
LOW: Final = "low"
HIGH: Final = "high"
DIGEST_PARTS: Final = (COUNT, XOR, LOW, HIGH)


def row_hash(schema: StructType) -> Column:
    """The hash of a row with these columns."""
    return F.expr(row_hash_sql(schema))


def row_hash_sql(schema: StructType, *, given: Mapping[str, str] | None = None) -> str:
    """`row_hash` as SQL text. `given` has expressions for columns that the rows don't have."""
    terms = [str(ENCODING)]
    for field in sorted(schema.fields, key=lambda field: field.name):
        value = (given or {}).get(field.name, quoted(field.name))
        inner = _terms(value, field.dataType, field.name)
        hashed = value if isinstance(field.dataType, _ATOMS) else f"xxhash64({', '.join(inner)})"
        # A NULL value must add nothing to the hash, so its name adds nothing either.
        terms.append(f"nvl2({value}, {_number_of(field.name)}L, NULL)")
        terms.append(value if hashed == value else f"nvl2({value}, {hashed}, NULL)")
    return f"xxhash64({', '.join(terms)})"


def key_hash_sql(keys: StructType) -> str:
    """The 16-byte hash of a key as SQL text: the first half of SHA-256 over its parts in the order of
    names, each with its type, null flag and length. The hash must be collision-resistant: with a collision,
    a publish would remove another key's row."""
    parts = []
    for field in sorted(keys.fields, key=lambda field: field.name):
        kind, value = field.dataType.simpleString(), quoted(field.name)
        text = _key_text(value, field.dataType)
        filled = f"concat('{kind} ', cast(octet_length({text}) as string), ':', {text})"
        parts.append(f"nvl2({value}, {filled}, '{kind} -')")
    return f"unhex(substring(sha2(concat({', '.join(parts)}), 256), 1, 32))"


def _key_text(value: str, kind: DataType) -> str:
    """A key part as text: equal only for equal values, independent of the session's settings."""
    if isinstance(kind, StringType):
        return value
    if isinstance(kind, BinaryType):
        return f"hex({value})"
    if isinstance(kind, DateType):
        return f"cast(unix_date({value}) as string)"
    if isinstance(kind, TimestampType):
        return f"cast(unix_micros({value}) as string)"
    if isinstance(kind, DecimalType):
        # A cast writes some decimals with an exponent, but only outside ANSI mode.
        return f"to_json(struct({value} AS v))"
    if isinstance(kind, BooleanType | ByteType | IntegerType | LongType | ShortType | TimestampNTZType):
        return f"cast({value} as string)"
    raise InvalidUsage(f"a key can't have type {kind.simpleString()}", hint="use DECIMAL or STRING")


def _number_of(name: str) -> int:
    """A 63-bit number derived from a column name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 1


def _terms(value: str, kind: DataType, name: str, depth: int = 0) -> list[str]:
    """The terms of one value in a nested hash: the null flag, then the value in a fixed form."""
    if isinstance(kind, StructType):
        terms = [f"isnull({value})"]
        for field in kind.fields:
            inner = f"{value}.{quoted(field.name)}"
            terms.extend(_terms(inner, field.dataType, f"{name}.{field.name}", depth))
        return terms
    if isinstance(kind, ArrayType):
        # array_size of NULL is NULL under every setting; size of NULL is not.
        hashes = f"transform({value}, {_element(kind.elementType, name, depth)})"
        return [f"isnull({value})", f"array_size({value})", hashes]
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        hashes = f"transform(map_entries({value}), {_element(entry, name, depth)})"
        return [f"isnull({value})", f"array_size({hashes})", f"array_sort({hashes})"]
    if isinstance(kind, _ATOMS):
        return [f"isnull({value})", value]
    raise InvalidUsage(
        f"column {name!r} has type {kind.simpleString()}, which has no fixed encoding to hash",
        hint="declare it as string or binary",
    )


def _element(kind: DataType, name: str, depth: int) -> str:
    variable = f"_e{depth}"
    return f"{variable} -> xxhash64({', '.join(_terms(variable, kind, name, depth + 1))})"


def partials(value: Column | str, *, prefix: str) -> list[Column]:
    """The aggregates of a hash from which `digest_of` makes a digest; `prefix` makes their names unique.

    The hash is a column or SQL text. A NULL hash, which `row_hash` never returns, leaves its row out.
    """
    if isinstance(value, str):
        return [
            F.expr(f"count({value}) AS {prefix}{COUNT}"),
            F.expr(f"bit_xor({value}) AS {prefix}{XOR}"),
            F.expr(f"sum({value} & {_BITS_32}L) AS {prefix}{LOW}"),
            F.expr(f"sum(shiftrightunsigned({value}, 32)) AS {prefix}{HIGH}"),
        ]
    low = value.bitwiseAND(F.lit(_BITS_32).cast(LongType()))
    return [
        F.count(value).alias(prefix + COUNT),
        F.bit_xor(value).alias(prefix + XOR),
        F.sum(low).alias(prefix + LOW),
        F.sum(F.shiftrightunsigned(value, 32)).alias(prefix + HIGH),
    ]


def digest_of(found: Mapping[str, Any], *, prefix: str) -> Digest:
    """The digest in a row of `partials`. Sums of no rows are NULL and count as 0."""
    if prefix + COUNT not in found:
        raise InvariantViolation(f"nothing was counted under {prefix!r}, found {sorted(found)}")
    parts = {part: int(found[prefix + part] or 0) for part in DIGEST_PARTS}
    return Digest(
        count=parts[COUNT],
        xor=parts[XOR] & _BITS_64,
        sum_low=parts[LOW] & _BITS_64,
        sum_high=parts[HIGH] & _BITS_64,
    )
