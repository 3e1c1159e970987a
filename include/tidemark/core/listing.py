"""Which parts make up each transaction of a shard, and how much of them makes one batch.

The seals say which parts a transaction has; the log says which files are there now. Both are asked: a
sealed transaction that the log has passed and yet shows no file for has been lost by the log, and is
listed as such, so that its reader freezes there instead of passing over it (Invariant 11).

Maintenance may have put the parts of several transactions into one file that keeps each row's `txn`. Such a
file is listed once, at the first of its transactions that is asked for, and a batch never ends inside it.

A *condition* is what a consumer asks of a column. A file whose statistics show that no row of it can meet
one is not opened; statistics that are absent say nothing, so the file is kept. A delete has no values but
its key's, so a condition on any other column keeps deletes, and with them the files that may have some.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn, next_txn
from tidemark.core.seal import Part, Seal

OP_COLUMN: Final = "_op"
DELETE: Final = "D"
COMPARISONS: Final = ("=", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a shard's log, with the transactions that it may have rows of, and its bounds."""

    part: Part
    txn_first: Txn
    txn_last: Txn
    lowest: Mapping[str, Any] = field(default_factory=dict)
    highest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Condition:
    """What the rows of a consumer have in common: `column comparison value`."""

    column: str
    comparison: str
    value: str | int | date

    def __post_init__(self) -> None:
        if self.comparison not in COMPARISONS:
            raise InvalidUsage(
                f"{self.comparison!r} is not a comparison", hint=f"use one of {', '.join(COMPARISONS)}"
            )
        if isinstance(self.value, bool) or not isinstance(self.value, str | int | date):
            raise InvalidUsage(
                f"column {self.column!r} can't be compared with {self.value!r}",
                hint="compare with text, an integer or a date; filter the batch's DataFrame for all else",
            )

    def may_hold(self, file: LogFile, *, keys: Iterable[str]) -> bool:
        """Whether the file can have a row that meets this, as far as its statistics say."""
        op = file.lowest.get(OP_COLUMN)
        if self.column not in keys and (op is None or op <= DELETE):
            return True
        low, high = file.lowest.get(self.column), file.highest.get(self.column)
        if type(low) is not type(self.value) or type(high) is not type(self.value):
            return True
        match self.comparison:
            case "=":
                return bool(low <= self.value <= high)
            case "<":
                return bool(low < self.value)
            case "<=":
                return bool(low <= self.value)
            case ">":
                return bool(high > self.value)
            case _:
                return bool(high >= self.value)


@dataclass(frozen=True, slots=True)
class ListedTxn:
    """A transaction that touches the shard, with the files to read for it.

    `last` is the last transaction that these files have rows of. `lost` says why they can't be read."""

    txn: Txn
    parts: tuple[Part, ...]
    last: Txn
    lost: str = ""


def list_txns(
    shard: ShardId,
    *,
    seals: Sequence[Seal],
    files: Iterable[LogFile],
    lower: Txn,
    conditions: Sequence[Condition] = (),
    keys: Sequence[str] = (),
) -> tuple[ListedTxn, ...]:
    """The sealed transactions from `lower` on that touch the shard, in order, with their files.

    `seals` are those from `lower` on that the shard's log has passed."""
    waiting = deque(
        sorted((file for file in files if file.txn_last >= lower), key=lambda file: file.txn_first)
    )
    listed: list[ListedTxn] = []
    covered_last = Txn(lower - 1)
    for seal in seals:
        if seal.txn < lower or not seal.touches(shard):
            continue
        found: list[LogFile] = []
        while waiting and waiting[0].txn_first <= seal.txn:
            found.append(waiting.popleft())
        covered_last = max([covered_last, *(file.txn_last for file in found)])
        if covered_last < seal.txn or not _has_all(found, seal, shard):
            lost = "the log has passed its txn, and does not list it any more"
            listed.append(ListedTxn(seal.txn, seal.shards[shard].parts, seal.txn, lost))
            continue
        kept = [file for file in found if all(one.may_hold(file, keys=keys) for one in conditions)]
        last = max([seal.txn, *(file.txn_last for file in kept)])
        listed.append(ListedTxn(seal.txn, tuple(file.part for file in kept), last))
    return tuple(listed)


def _has_all(found: Sequence[LogFile], seal: Seal, shard: ShardId) -> bool:
    """Whether the files at a transaction are all that it was sealed with, or have taken their place."""
    if not found or any(file.txn_first < file.txn_last for file in found):
        return True
    paths = {file.part.path for file in found}
    sealed = {part.path for part in seal.shards[shard].parts}
    return sealed <= paths or not sealed & paths


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one batch may be. One transaction is never cut, however large it is."""

    txns_max: int = 1_000
    rows_max: int = 5_000_000
    bytes_max: int = 512 * 1024 * 1024

    def __post_init__(self) -> None:
        if min(self.txns_max, self.rows_max, self.bytes_max) < 1:
            raise InvalidUsage(f"a batch can't be limited to nothing: {self}", hint="use 1 or more")


def cut_batch(
    listed: Sequence[ListedTxn], *, upper: Txn, limits: Limits, fence: Txn | None
) -> tuple[tuple[ListedTxn, ...], Txn]:
    """The first transactions that fit into one batch, and the batch's upper: `upper` when all fit.

    `fence` is the upper of a batch that was given before and may have been done: no batch passes it."""
    end = min(upper, fence) if fence is not None else upper
    chosen: list[ListedTxn] = []
    rows = size = 0
    uncut = Txn(0)
    for txns, one in enumerate(listed, start=1):
        if one.txn >= end:
            break
        rows += sum(part.rows for part in one.parts)
        size += sum(part.bytes for part in one.parts)
        over = txns > limits.txns_max or rows > limits.rows_max or size > limits.bytes_max
        if over and chosen and one.txn >= uncut:
            return tuple(chosen), one.txn
        chosen.append(one)
        uncut = max(uncut, next_txn(one.last))
    return tuple(chosen), end
