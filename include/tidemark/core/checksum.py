"""Digests: checksums of a set of rows that don't depend on the rows' order or grouping.

A digest is the record count, the XOR of the rows' 64-bit hashes, and the sums of the hashes' low and high
halves. Each part is commutative and associative, so order, chunking, parallelism and re-run stages make no
difference (Invariant 7). Together they detect a lost row, a duplicate and a swapped duplicate pair, which XOR
alone does not ({a,a,c} against {b,b,c}).

An *endpoint* is a place where rows are counted: the source that was read, and each shard that was written.
`encoding` identifies how rows were hashed. Digests of different encodings are not comparable, which is
different from being unequal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn

ENCODING: Final = 2
_BITS_64: Final = (1 << 64) - 1
_BITS_32: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Digest:
    """An order-free, mergeable checksum. All parts are unsigned; sums are taken modulo 2**64."""

    count: int = 0
    xor: int = 0
    sum_low: int = 0
    sum_high: int = 0
    encoding: int = ENCODING

    def __post_init__(self) -> None:
        if self.count < 0 or not (
            0 <= self.xor <= _BITS_64 and 0 <= self.sum_low <= _BITS_64 and 0 <= self.sum_high <= _BITS_64
        ):
            raise InvalidUsage(f"not a digest: {self.count}, {self.xor}, {self.sum_low}, {self.sum_high}")

    @classmethod
    def of(cls, hashes: Iterable[int], *, encoding: int = ENCODING) -> Digest:
        """The digest of rows with these 64-bit hashes, signed or unsigned."""
        count = xor = low = high = 0
        for signed in hashes:
            value = signed & _BITS_64
            count += 1
            xor ^= value
            low += value & _BITS_32
            high += value >> 32
        return cls(count, xor, low & _BITS_64, high & _BITS_64, encoding)

    def merge(self, other: Digest) -> Digest:
        """The digest of both sets together."""
        if self.encoding != other.encoding:
            raise InvalidUsage(f"digests of encodings {self.encoding} and {other.encoding} can't be merged")
        return Digest(
            self.count + other.count,
            self.xor ^ other.xor,
            (self.sum_low + other.sum_low) & _BITS_64,
            (self.sum_high + other.sum_high) & _BITS_64,
            self.encoding,
        )

    def __str__(self) -> str:
        return f"{self.xor:016x}.{self.sum_high:x}.{self.sum_low:x}/{self.encoding}"


SOURCE: Final = "source"
Digests = Mapping[str, Digest]


def shard_endpoint(shard: ShardId) -> str:
    return f"shard:{shard}"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An endpoint of a transaction whose recorded and found digests differ (Invariant 8)."""

    txn: Txn
    endpoint: str
    recorded: Digest | None
    found: Digest | None

    def __str__(self) -> str:
        at = f"transaction {self.txn}, endpoint {self.endpoint}"
        if self.recorded is None and self.found is not None:
            return f"{at}: found {self.found.count} rows, but nothing is recorded for this endpoint"
        if self.found is None and self.recorded is not None:
            return f"{at}: {self.recorded.count} rows are recorded, but nothing was found for this endpoint"
        if self.recorded is None or self.found is None:
            return f"{at}: neither recorded nor found"
        return (
            f"{at}: recorded {self.recorded.count} rows with digest {self.recorded},"
            f" found {self.found.count} rows with digest {self.found}"
        )


def compare(txn: Txn, *, recorded: Digests, found: Digests) -> tuple[Mismatch, ...]:
    """The endpoints that differ, by name; empty if all are equal."""
    endpoints = sorted(set(recorded) | set(found))
    return tuple(
        Mismatch(txn, endpoint, recorded.get(endpoint), found.get(endpoint))
        for endpoint in endpoints
        if recorded.get(endpoint) != found.get(endpoint)
    )
