"""Which parts make up each transaction of a shard, and how much of them makes one batch.

The seals say which parts a transaction has; the log says which files are there now. Both are asked: a
sealed transaction that the log has passed and yet shows no file for has been lost by the log, and is
listed as such, so that its reader freezes there instead of passing over it (Invariant 11).

Maintenance may have put the parts of several transactions into one file that keeps each row's `txn`. Such a
file is listed once, at the first of its transactions that is asked for, and a batch never ends inside it.

A *condition* is what a consumer asks of a column. A file whose statistics show that no row of it can meet
one is not opened; statistics that are absent say nothing, so the file is kept. A delete has no values but
its key's, so a condition on any other column keeps deletes, and with them the files that may have some.

Where a snapshot of a log ends and listening begins, so that together they give everything once.

`since` is the first `txn` whose rows can still be read one by one; what lies below it is left only
as the rows that a fold of it keeps. So a snapshot may be taken as of `since - 1` or later: any
earlier one can't be told apart any more, and asking for it is refused instead of answered with
rows from later transactions.

States are published each at its own time, so those of several shards are seldom at one transaction. A state
is also exact at the later transactions that don't touch its shard; `agreed` finds where all of them meet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import TXN_FIRST, TXN_NONE, ShardId, Txn, next_txn
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


class Truncated(InvalidUsage):
    """What is asked for lies below `since`, and maintenance was free to remove it."""

    def __init__(self, shard: ShardId, *, as_of: Txn, since: Txn) -> None:
        super().__init__(
            f"shard {shard!r} can't be read as of transaction {as_of}: single transactions are kept from"
            f" {since} on",
            hint=f"read as of {since - 1} or later; `retention` in the pipeline file says what is kept",
        )
        self.as_of = as_of
        self.since = since


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A snapshot of every `txn` up to and with `as_of`, then each later one from `listen_from` on."""

    as_of: Txn

    @property
    def listen_from(self) -> Txn:
        """Where to start the `ReadAccount` of the listener."""
        return next_txn(self.as_of)

    def covers(self, txn: Txn) -> bool:
        """Whether the snapshot has it; what it doesn't have, the listener gets."""
        return txn <= self.as_of


@dataclass(frozen=True, slots=True)
class NotYet:
    """The log hasn't passed `as_of`: wait until its upper is above it, then plan again."""

    as_of: Txn
    upper: Txn


def plan_read(*, as_of: Txn, since: Txn, upper: Txn) -> ReadPlan | NotYet:
    """Split a read at `as_of`, for a log whose single transactions are readable in [since, upper)."""
    if since < TXN_FIRST or as_of < TXN_NONE:
        raise InvalidUsage(
            f"since {since} or as_of {as_of} is not a transaction", hint="as_of 0 is before all"
        )
    if as_of < since - 1:
        raise InvalidUsage(
            f"as_of {as_of} can't be told apart any more: single transactions are kept from {since} on",
            hint=f"read as of {since - 1} or later",
        )
    return ReadPlan(as_of) if as_of < upper else NotYet(as_of, upper)


def agreed(*, as_of: Txn, published: Mapping[ShardId, Txn], seals: Sequence[Seal]) -> Txn:
    """The transaction up to which every state is exact, given where each was published last at or below
    `as_of`, and the seals in between; `as_of` itself when all of them are exact there.

    A lower one is a bound, not the answer: below it a state may have to be taken from an earlier publish."""
    lacking = (
        seal.txn
        for seal in seals
        for shard, txn in published.items()
        if txn < seal.txn <= as_of and seal.touches(shard)
    )
    return Txn(min(lacking, default=next_txn(as_of)) - 1)
