"""Reclaim: delete the files that a log does not name any more, once nobody can need them.

What has to stay is decided by `core.upkeep.held_back`: by seals, marks, leases and the time since the commit
that took a file out of the log. The parts of attempts that lost their seal are left to `maintain.sweep`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.core.ids import ShardId
from tidemark.core.lease import Lease
from tidemark.core.upkeep import HeldBack, Leftover, compaction_of, held_back
from tidemark.pipeline.compact import begin
from tidemark.pipeline.history import log_head, require_history
from tidemark.pipeline.leasing import Leases
from tidemark.ports.control import Control, KeptLog


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The leftovers of one log: which may go, which stay and why; `lease` is the lowest live one."""

    free: tuple[Leftover, ...] = ()
    held: Mapping[HeldBack, tuple[Leftover, ...]] = field(default_factory=dict)
    lease: Lease | None = None


def plan_reclaim(control: Control, log: KeptLog, leases: Leases, *, now_ms: int, kept_ms: int) -> Reclaim:
    """Sort a log's leftovers, and change nothing."""
    # Read before the files are listed: what goes into the log from here on is above this upper. By a later
    # one, a part that was staged when it was listed and is in the log now would look taken out of it.
    head = log.head()
    found = log.leftovers()
    if not found:
        return Reclaim()
    sealed_upper = control.seals.head().upper
    parts = [one.first for one in found if not one.number]
    seals = control.seals.read(min(parts), min(max(parts) + 1, sealed_upper)) if parts else ()
    tokens = {seal.txn: str(seal.token) for seal in seals}
    # Read after the files are listed: who has looked up one of them while it was active has its lease by now.
    live = [lease for lease in leases.standing() if lease.is_live]
    lowest = min(live, key=lambda lease: lease.txn, default=None)
    held_by = f"lease {lowest.name} of {lowest.holder} at {lowest.txn}" if lowest is not None else ""
    free: list[Leftover] = []
    held: defaultdict[HeldBack, list[Leftover]] = defaultdict(list)
    for leftover in found:
        hold = held_back(
            leftover,
            begun=compaction_of(head),
            sealed_token=tokens.get(leftover.first),
            log_upper=head.upper,
            held_from=lowest.txn if lowest is not None else None,
            held_by=held_by,
            now_ms=now_ms,
            kept_ms=kept_ms,
        )
        if hold is None:
            free.append(leftover)
        else:
            held[hold].append(leftover)
    return Reclaim(tuple(free), {hold: tuple(files) for hold, files in held.items()}, lowest)


def reclaim(
    control: Control, log: KeptLog, shard: ShardId, leases: Leases, *, now_ms: int, kept_ms: int
) -> Reclaim:
    """Delete what may go; returns it, and what stays.

    Files of a compaction that died carry the number of the last one begun: to be sure that they never go
    in, another is begun, with nothing to merge. One that is still at work is shut out by that, and loses
    its work, never a row."""
    log_head(control, shard, require_history(control))
    head = log.head()
    if any(one.number and one.number >= compaction_of(head) for one in log.leftovers()):
        begin(log, shard)
    plan = plan_reclaim(control, log, leases, now_ms=now_ms, kept_ms=kept_ms)
    log.delete(plan.free)
    return plan
