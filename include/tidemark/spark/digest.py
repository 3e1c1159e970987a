"""Digests of DataFrames: the 64-bit row hash, and the sums that make a `core.checksum.Digest` of it.

Encoding 1. A row's hash is `xxhash64` over the encoding number and then, for each column in the given
order, a null flag and the value. By itself `xxhash64` adds nothing for a NULL, so that (NULL, 'a') would be
('a', NULL); the flag keeps them apart, and NULL from ''. Nested values are hashed the same way:

- a struct: its null flag, then each of its fields;
- an array: its null flag, its size, then the hash of each element in order;
- a map: its null flag, its size, then the hashes of its entries, sorted, since a map has no order.

The types are part of it (INT 1 is not BIGINT 1), so callers hash declared columns in declared types.
0.0 and -0.0 are one value, as they are to SQL, and so are all NaNs. Golden vectors in the tests hold the
encoding in place; whatever changes a hash changes `core.checksum.ENCODING` too.

A digest is never a scan of its own. Observe it where rows pass by in the *last* stage of a job: Spark counts
each task of a result stage once, however often it ran, but counts a shuffle's map task again when a lost
executor makes it run again (Invariant 7). What is known only before a shuffle, such as the raw input, is
carried through it by `partials` as columns, and summed after it by `merged`.
"""

from __future__ import annotations

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
from tidemark.spark.fold import quoted

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


def row_hash(schema: StructType) -> Column:
    """The hash of a row that has these columns, in this order."""
    terms: list[Column] = [F.lit(ENCODING)]
    for field in schema.fields:
        terms.extend(_terms(F.col(quoted(field.name)), field.dataType, field.name))
    return F.xxhash64(*terms)


def _terms(value: Column, kind: DataType, name: str) -> list[Column]:
    """What goes into the hash for one value: the null flag first, then the value in fixed form."""
    if isinstance(kind, StructType):
        terms = [value.isNull()]
        for field in kind.fields:
            terms.extend(_terms(value.getField(field.name), field.dataType, f"{name}.{field.name}"))
        return terms
    if isinstance(kind, ArrayType):
        # array_size of NULL is NULL under every setting; size of NULL is not.
        return [value.isNull(), F.array_size(value), F.transform(value, _element(kind.elementType, name))]
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        hashes = F.transform(F.map_entries(value), _element(entry, name))
        return [value.isNull(), F.array_size(hashes), F.array_sort(hashes)]
    if isinstance(kind, _ATOMS):
        return [value.isNull(), value]
    raise InvalidUsage(
        f"column {name!r} has type {kind.simpleString()}, which has no fixed encoding to hash",
        hint="declare it as string or binary",
    )


def _element(kind: DataType, name: str) -> Any:
    return lambda element: F.xxhash64(*_terms(element, kind, name))


def partials(value: Column, *, prefix: str) -> list[Column]:
    """Aggregates of a hash column that make a digest of any group of rows; `prefix` names them apart.

    A NULL hash, which `row_hash` never is, leaves its row out."""
    low = value.bitwiseAND(F.lit(_BITS_32).cast(LongType()))
    return [
        F.count(value).alias(prefix + COUNT),
        F.bit_xor(value).alias(prefix + XOR),
        F.sum(low).alias(prefix + LOW),
        F.sum(F.shiftrightunsigned(value, 32)).alias(prefix + HIGH),
    ]


def merged(*, prefix: str, only: Column | None = None, alias: str | None = None) -> list[Column]:
    """Aggregates over columns that `partials` made: of all rows, or of those where `only` holds."""
    name = prefix if alias is None else alias

    def part(of: str) -> Column:
        return F.col(prefix + of) if only is None else F.when(only, F.col(prefix + of))

    return [
        F.sum(part(COUNT)).alias(name + COUNT),
        F.bit_xor(part(XOR)).alias(name + XOR),
        F.sum(part(LOW)).alias(name + LOW),
        F.sum(part(HIGH)).alias(name + HIGH),
    ]


def digest_of(found: Mapping[str, Any], *, prefix: str) -> Digest:
    """The digest in a row of `partials` or `merged`. Sums of no rows are NULL, and count as 0."""
    if prefix + COUNT not in found:
        raise InvariantViolation(f"nothing was counted under {prefix!r}, found {sorted(found)}")
    parts = {part: int(found[prefix + part] or 0) for part in (COUNT, XOR, LOW, HIGH)}
    return Digest(
        count=parts[COUNT],
        xor=parts[XOR] & _BITS_64,
        sum_low=parts[LOW] & _BITS_64,
        sum_high=parts[HIGH] & _BITS_64,
    )
