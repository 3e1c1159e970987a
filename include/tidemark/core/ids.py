"""The identities of the system, as types: transactions, shards and names, and frontiers of a source.

A function that takes a `Txn` can't be given an offset by mistake, and every name from outside is checked
here.

`txn` is the logical timestamp of a pipeline: dense integers 1, 2, 3 and so on. It identifies all work; a run
id, an attempt or a clock time never does. An *upper* is the first `Txn` that is not there yet, so an upper of
1 means that nothing has happened.

A *position* identifies one record: its partition, the offset of the source's unit (a Kafka record, a file, a
source transaction), and its ordinal in that unit, which is 0 if the offset identifies a single record. A
*frontier* is, per partition, the exclusive offset up to which a source has been read. Frontiers are partially
ordered: one may be ahead in one partition and behind in another.

A partition that a frontier does not list is at 0, so a new partition starts there. If a known partition is
missing or has gone back, that is a permanent error: the source is not the one that was bound (Invariant 1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NewType

from tidemark.core.errors import InvalidUsage

Txn = NewType("Txn", int)
ShardId = NewType("ShardId", str)
WriterToken = NewType("WriterToken", str)

TXN_FIRST: Final = Txn(1)
TXN_NONE: Final = Txn(0)
QUARANTINE: Final = ShardId("quarantine")
"""The shard for records that could not be applied."""

NAME_CHARACTERS_MAX: Final = 64
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


def next_txn(txn: Txn) -> Txn:
    return Txn(txn + 1)


def is_name(value: str) -> bool:
    """Whether this is a valid name of a pipeline, shard or consumer."""
    return len(value) <= NAME_CHARACTERS_MAX and _NAME.match(value) is not None


def checked_name(value: str, *, what: str) -> str:
    """Return a valid name, which is safe in a path, an identifier and a URL; `InvalidUsage` otherwise."""
    if not is_name(value):
        shown = value if len(value) <= NAME_CHARACTERS_MAX else value[:NAME_CHARACTERS_MAX] + "…"
        raise InvalidUsage(
            f"{what} {shown!r} is not a name",
            hint=f"use a lowercase letter, then letters, digits and _, {NAME_CHARACTERS_MAX} at most",
        )
    return value


class FrontierRegressed(InvalidUsage):
    """The source offers less than what is already bound."""

    def __init__(self, partition: str, *, bound: int, offered: int | None) -> None:
        found = "is gone" if offered is None else f"ends at {offered}"
        super().__init__(
            f"partition {partition!r} is bound up to {bound}, but in the source it {found}",
            hint="the source was truncated, recreated or replaced; read it with a new pipeline",
        )
        self.partition = partition
        self.bound = bound
        self.offered = offered


@dataclass(frozen=True, slots=True)
class Frontier:
    """Exclusive offsets per partition, sorted by partition; create it with `Frontier.of`."""

    offsets: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        names = [partition for partition, _ in self.offsets]
        if names != sorted(set(names)):
            raise InvalidUsage(f"frontier partitions are not sorted and distinct: {names}")
        for partition, offset in self.offsets:
            if offset < 0:
                raise InvalidUsage(f"frontier of partition {partition!r} is negative: {offset}")

    @classmethod
    def of(cls, offsets: Mapping[str, int]) -> Frontier:
        return cls(tuple(sorted(offsets.items())))

    def as_dict(self) -> dict[str, int]:
        return dict(self.offsets)

    def __getitem__(self, partition: str) -> int:
        for name, offset in self.offsets:
            if name == partition:
                return offset
        return 0

    def __le__(self, other: Frontier) -> bool:
        if self.offsets == other.offsets:
            return True
        reached = dict(other.offsets)
        return all(offset <= reached.get(partition, 0) for partition, offset in self.offsets)

    def __lt__(self, other: Frontier) -> bool:
        return self <= other and not other <= self


def checked_successor(bound: Frontier, offered: Frontier) -> Frontier:
    """Return `offered` if it continues `bound`; otherwise raise `FrontierRegressed`."""
    reached = dict(offered.offsets)
    for partition, offset in bound.offsets:
        found = reached.get(partition)
        if found is None or found < offset:
            raise FrontierRegressed(partition, bound=offset, offered=found)
    return offered
