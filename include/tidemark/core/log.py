"""A shard's log: which transaction to append, drop or hold, and which files its readers get.

The *upper* is the first `txn` that a shard's log does not have yet. A transaction is classified against it:
below the upper, it is dropped and counted, never stashed and never staged again (Invariant 3); at the upper,
it is appended; above it, the lower ones are finished first. Transactions that don't touch the shard are
passed, so an untouched shard costs nothing and never waits.

An append decides nothing. The seal has decided, and `decide_append` only brings the log up to it, one
transaction at a time, with the sealed parts. So a lost race means that another process has written the same
parts: there is nothing to undo or delete (Invariant 4). *Other* parts under the same number are an error,
never a skip (Invariant 8).

For a reader, the seals name the parts of a transaction, and the log names the current files. Both are
compared: a sealed transaction below the log's upper without a file was lost by the log, and is listed as
lost, so that its reader freezes there instead of skipping it (Invariant 11).

Maintenance may have merged the parts of several transactions into one file that keeps each row's `txn`. Such
a file is listed once, at the first requested transaction that it covers, and a batch never ends inside it.

A *condition* is a consumer's filter on a column. A file whose statistics rule out matching rows is not
opened; without statistics the file is read. A delete has only its key's values, so a condition on another
column keeps deletes, and the files that may have some.

`plan_read` splits a read into a snapshot and the transactions after it, so that together they give everything
once. `since` is the first `txn` whose rows can be read individually; below it only the result of a fold is
left. So a snapshot may be taken as of `since - 1` or later. An earlier one is rejected, because it would
contain rows of later transactions.

Each state is published at its own time, so the states of several shards are seldom at one transaction. A
state is also exact at later transactions that don't touch its shard; `agreed` finds where all of them agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Any, Final

from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import TXN_FIRST, TXN_NONE, ShardId, Txn, WriterToken, next_txn
from tidemark.core.ledger import LINK, UPPER, Head, Put
from tidemark.core.seal import Part, Seal
from tidemark.core.shape import Shape

REPLACED: Final = "replaced"
"""The mark of the transaction that a log begins anew with; it has no rows of earlier ones."""


def begins_at(head: Head) -> Txn:
    """The transaction that a log was begun anew with; 0 if it was not."""
    return Txn(head.marks.get(REPLACED, TXN_NONE))


class UpperRelation(Enum):
    """A transaction's relation to an upper."""

    BELOW = "drop"
    AT = "append"
    ABOVE = "hold"


def classify(txn: Txn, upper: Txn) -> UpperRelation:
    if txn < upper:
        return UpperRelation.BELOW
    return UpperRelation.AT if txn == upper else UpperRelation.ABOVE


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One transaction's parts in a shard's log."""

    txn: Txn
    token: WriterToken
    parts: tuple[Part, ...]
    link: int = field(default=0, compare=False)
    """The link of the seal; an entry that is read from a log has none."""
    before: Txn = field(default=TXN_NONE, compare=False)
    """The transaction that the log must have before this one."""
    replaced: Shape | None = field(default=None, compare=False)
    """The shape that the log gets where it begins anew with this entry: then its parts are the whole state,
    and no earlier part stays in the log."""
    generation: int = field(default=0, compare=False)
    """The generation that replaces the log; 0 where none does."""

    @property
    def number(self) -> int:
        return self.txn

    @property
    def key(self) -> str:
        return self.token


@dataclass(frozen=True, slots=True)
class Appended:
    """Our append has moved the log past this transaction."""

    txn: Txn


@dataclass(frozen=True, slots=True)
class UpperMismatch:
    """The log's upper is not the expected one; if `current` is above it, the append is dropped."""

    expected: Txn
    current: Txn


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Nothing more to append: the log has every sealed transaction below `upper`."""

    upper: Txn


@dataclass(frozen=True, slots=True)
class Paused:
    """The log waits at this transaction, because the gate held the shard there."""

    txn: Txn
    reason: str


AppendOutcome = Appended | UpperMismatch
NextAppend = LogEntry | CaughtUp | Paused


def entry_of(seal: Seal, shard: ShardId) -> LogEntry:
    added = seal.shards[shard]
    shape = seal.replaced.get(shard)
    generation = seal.generation if shape is not None else 0
    return LogEntry(seal.txn, seal.token, added.parts, seal.link, added.before, shape, generation)


def next_append(
    shard: ShardId, *, upper: Txn, seals: Sequence[Seal], release: Txn | None = None
) -> NextAppend:
    """The next append of the shard's log, given the seals from its upper on.

    Transactions that don't touch the shard are passed. A held one stops the log there until it is released by
    number, and later ones wait behind it: this is how a shard is paused. A log that is to be replaced needs
    nothing of what is before that."""
    sealed_upper = upper
    begins = max((seal.txn for seal in seals if shard in seal.replaced), default=upper)
    for seal in seals:
        if seal.txn < upper:
            continue
        if seal.txn != sealed_upper:
            raise InvariantViolation(f"seal {sealed_upper} is missing below seal {seal.txn}")
        sealed_upper = next_txn(seal.txn)
        if not seal.touches(shard) or seal.txn < begins:
            continue
        held = seal.shards[shard].held
        if held and release != seal.txn:
            return Paused(seal.txn, held)
        return entry_of(seal, shard)
    return CaughtUp(sealed_upper)


def decide_append(
    *, head: Head, expected: Txn, found: LogEntry | None, entry: LogEntry
) -> Put[LogEntry, AppendOutcome] | AppendOutcome:
    """Compare-and-append of one sealed transaction.

    `expected` is the upper that the entry was chosen for; nothing in [expected, entry.txn) touches the shard.
    `found` is the log's entry under the same number. After a version conflict with an unchanged upper, this
    is called again with the new head and puts again."""
    match classify(entry.txn, head.upper):
        case UpperRelation.BELOW:
            if found is not None and set(found.parts) != set(entry.parts):
                raise InvariantViolation(
                    f"transaction {entry.txn} is in the log with parts of {found.token},"
                    f" but its seal has parts of {entry.token}",
                    hint="something else than tidemark wrote to the log: restore it from a backup",
                )
            return UpperMismatch(expected=expected, current=head.upper)
        case _ if head.upper != expected:
            return UpperMismatch(expected=expected, current=head.upper)
        case _ if entry.before >= head.upper and entry.replaced is None:
            raise InvariantViolation(
                f"transaction {entry.txn} follows {entry.before} in its shard, and the log ends before that",
                hint="commits of the log are lost; `tidemark status` names them",
            )
        case _:
            marks = {UPPER: next_txn(entry.txn), LINK: entry.link}
            if entry.replaced is not None:
                marks[REPLACED] = int(entry.txn)
            return Put(marks=marks, records=(entry,), result=Appended(entry.txn))


OP_COLUMN: Final = "_op"
DELETE: Final = "D"
COMPARISONS: Final = ("=", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a shard's log, with the transactions that it may have rows of, its column bounds, and the
    columns without a NULL, as far as its statistics have them."""

    part: Part
    txn_first: Txn
    txn_last: Txn
    lowest: Mapping[str, Any] = field(default_factory=dict)
    highest: Mapping[str, Any] = field(default_factory=dict)
    filled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Condition:
    """A consumer's filter: `column comparison value`."""

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
                hint="compare with text, an integer or a date; for other comparisons, filter the batch's"
                " DataFrame",
            )

    def may_hold(self, file: LogFile, *, keys: Iterable[str]) -> bool:
        """Whether the file can have a matching row, by its statistics."""
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

    `last` is the last transaction that these files have rows of. `lost` is why they can't be read."""

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

    `seals` are those from `lower` to the log's upper."""
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
    """Whether the files of a transaction include all sealed parts, or files that have replaced them."""
    if not found or any(file.txn_first < file.txn_last for file in found):
        return True
    paths = {file.part.path for file in found}
    sealed = {part.path for part in seal.shards[shard].parts}
    return sealed <= paths or not sealed & paths


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a batch. A single transaction is never split, however large, and a batch that was handed
    out and not confirmed comes again as it was."""

    txns_max: int = 1_000
    rows_max: int = 5_000_000
    bytes_max: int = 512 * 1024 * 1024

    def __post_init__(self) -> None:
        if min(self.txns_max, self.rows_max, self.bytes_max) < 1:
            raise InvalidUsage(f"a limit of a batch is below 1: {self}", hint="use 1 or more")


def cut_batch(
    listed: Sequence[ListedTxn], *, upper: Txn, limits: Limits, fence: Txn | None
) -> tuple[tuple[ListedTxn, ...], Txn]:
    """The first transactions that fit into one batch, and the batch's upper: `upper` if all fit.

    `fence` is the upper of a batch that was handed out before and may have been processed: it is handed out
    again as it was, whatever the limits are now."""
    if fence is not None:
        end = min(upper, fence)
        return tuple(one for one in listed if one.txn < end), end
    chosen: list[ListedTxn] = []
    rows = size = 0
    uncut = Txn(0)
    for txns, one in enumerate(listed, start=1):
        if one.txn >= upper:
            break
        rows += sum(part.rows for part in one.parts)
        size += sum(part.bytes for part in one.parts)
        over = txns > limits.txns_max or rows > limits.rows_max or size > limits.bytes_max
        if over and chosen and one.txn >= uncut:
            return tuple(chosen), one.txn
        chosen.append(one)
        uncut = max(uncut, next_txn(one.last))
    return tuple(chosen), upper


class Truncated(InvalidUsage):
    """The requested transaction is below `since`, where maintenance may have removed rows."""

    def __init__(self, shard: ShardId, *, as_of: Txn, since: Txn) -> None:
        super().__init__(
            f"shard {shard!r} can't be read as of transaction {as_of}: single transactions are kept from"
            f" {since} on",
            hint=f"read as of {since - 1} or later; `retention` in the pipeline file says what is kept",
        )
        self.as_of = as_of
        self.since = since


class BeforeReplacement(InvalidUsage):
    """The requested transaction is below the one that replaced the shard: the log has no earlier rows."""

    def __init__(self, shard: ShardId, *, as_of: Txn, begins: Txn) -> None:
        super().__init__(
            f"shard {shard!r} can't be read as of transaction {as_of}: transaction {begins} replaced it by"
            " one with another key, type or order",
            hint=f"read as of {begins} or later; earlier versions of its tables are in Delta's time travel",
        )
        self.as_of = as_of
        self.begins = begins


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A snapshot up to and including `as_of`, then each later `txn` from `listen_from` on."""

    as_of: Txn

    @property
    def listen_from(self) -> Txn:
        """Where the listener's `ReadAccount` starts."""
        return next_txn(self.as_of)

    def covers(self, txn: Txn) -> bool:
        """Whether the snapshot includes it; otherwise the listener delivers it."""
        return txn <= self.as_of


@dataclass(frozen=True, slots=True)
class NotYet:
    """The log's upper is not above `as_of` yet: wait for it, then plan again."""

    as_of: Txn
    upper: Txn


def plan_read(*, as_of: Txn, since: Txn, upper: Txn) -> ReadPlan | NotYet:
    """Split a read at `as_of`, for a log whose individual transactions are readable in [since, upper)."""
    if since < TXN_FIRST or as_of < TXN_NONE:
        raise InvalidUsage(
            f"since {since} or as_of {as_of} is not a transaction", hint="as_of 0 is the empty shard"
        )
    if as_of < since - 1:
        raise InvalidUsage(
            f"as_of {as_of} can't be read any more: single transactions are kept from {since} on",
            hint=f"read as of {since - 1} or later",
        )
    return ReadPlan(as_of) if as_of < upper else NotYet(as_of, upper)


def agreed(*, as_of: Txn, published: Mapping[ShardId, Txn], seals: Sequence[Seal]) -> Txn:
    """The transaction up to which every state is exact, given each state's last publish at or below `as_of`
    and the seals in between; `as_of` itself if all are exact there.

    A lower result is a bound, not the answer: below it a state may have to be taken from an earlier
    publish."""
    lacking = (
        seal.txn
        for seal in seals
        for shard, txn in published.items()
        if txn < seal.txn <= as_of and seal.touches(shard)
    )
    return Txn(min(lacking, default=next_txn(as_of)) - 1)
