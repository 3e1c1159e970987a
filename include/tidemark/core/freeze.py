"""Why a reader stands still: what is missing, at which transaction, and who could have removed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import ShardId, Txn
from tidemark.core.journal import Event, JournalEntry
from tidemark.core.lease import Lease


@dataclass(frozen=True, slots=True)
class Freeze:
    """Everything before `txn` was delivered, and nothing from it on will be before this is mended.

    `last` is the last transaction that is lost with it: a file that was merged has several. `path` is empty
    when the listing itself can't be read, and `is_named` says whether the log still names the file. `since`
    is the first transaction that maintenance has kept; `holders` are the live leases at the time.
    `in_snapshot` says that a snapshot needs it, wherever the consumer stands: its rows can't be told
    without, so it can't be passed over."""

    consumer: str
    shard: ShardId
    txn: Txn
    last: Txn
    why: str
    since: Txn
    path: str = ""
    bytes: int = 0
    holders: tuple[str, ...] = ()
    is_named: bool = True
    in_snapshot: bool = False

    @property
    def removed_by(self) -> str:
        """What is known of who removed it. Maintenance takes a file out of the log before it deletes it."""
        if self.txn < self.since:
            return f"maintenance was free to remove what lies below txn {self.since}"
        if self.path and self.is_named:
            return "the log still names it, so it was not maintenance, which deletes only what no log names"
        return "who did that is not known"

    def __str__(self) -> str:
        what = f"part {self.path} ({self.bytes} bytes)" if self.path else "what its log lists"
        together = f" with all transactions up to {self.last}" if self.last > self.txn else ""
        held = f"held by {', '.join(self.holders)}" if self.holders else "held by no lease"
        return (
            f"consumer {self.consumer!r} is frozen at txn {self.txn} of shard {self.shard!r}: "
            f"{what}{together} can't be read: {self.why}; {self.removed_by}; {held}"
        )


class Frozen(InvariantViolation):
    """A reader's frontier can't move. It stays so until the part is repaired or its `txn` is skipped."""

    def __init__(self, freeze: Freeze, *, pipeline: str) -> None:
        at = f"{pipeline} --from {freeze.txn} --to {freeze.txn}"
        to = f" --to {freeze.last}" if freeze.last > freeze.txn else ""
        skip = f"{pipeline} {freeze.shard} {freeze.consumer} {freeze.txn}{to}"
        hint = "restore the table's files from a backup, then read again"
        if freeze.path:
            hint = f"bring it back with `tidemark replay {at} --mode repair` and read again"
        if freeze.path and not freeze.in_snapshot:
            hint += (
                ", or give up for this consumer what is lost with "
                f'`tidemark consumers skip {skip} --reason "..."`'
            )
        super().__init__(str(freeze), hint=hint)
        self.freeze = freeze


def open_freeze(
    entries: Sequence[JournalEntry], *, consumer: str, shard: ShardId
) -> Mapping[str, str] | None:
    """What the journal of one transaction says of why a consumer stands there; None once it was mended.

    A freeze is mended for everybody by a repair, and for one consumer by passing over."""
    standing: Mapping[str, str] | None = None
    for entry in entries:
        mine = {"consumer": consumer, "shard": str(shard)}.items() <= entry.detail.items()
        if mine and entry.event is Event.FROZEN:
            standing = entry.detail
        elif entry.event is Event.REPAIRED or (mine and entry.event is Event.PASSED_OVER):
            standing = None
    return standing


def holders_of(leases: Sequence[Lease]) -> tuple[str, ...]:
    """The live leases, as a report names them."""
    return tuple(f"{lease.name} of {lease.holder} at txn {lease.txn}" for lease in leases if lease.is_live)
