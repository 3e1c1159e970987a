"""Maintain: remove or merge what is no longer needed as it is, without disturbing readers and writers.

- *Input*: a source that retains input for replays deletes it below the retention.
- *Sweep*: delete the parts of losing attempts. The seals decide, not the clock. An attempt of a transaction
  that is sealed under another token can never be committed, so its parts may be deleted even while its
  writer still works: that writer will lose at its seal. An attempt of an open transaction is left alone,
  however old it is.
- *Truncate*: announce `since` on the ledger of leases, by one commit on the head that the floor was
  computed on, so that no new lease can hold what is about to be removed (Invariant 12). Then remove each
  log's files below it. `since` never passes what a state has yet to publish, what a lease or a consumer
  holds, or the retention of the pipeline file.
- *Reclaim*: delete the files that a log does not name any more. `core.maintenance.held_back` decides which
  must stay: by seals, marks, leases and the time since the commit that removed a file from the log. The
  parts of losing attempts are left to the sweep.
- *Compact*: merge neighbouring small files of a log, so that readers open few. Each row keeps its `_txn`.
  The merged files are read back and must give the sealed digest of every transaction before they replace
  the originals (Invariant 7); otherwise the originals stay, and the difference is reported. A compaction
  that comes second or dies leaves files that no log names; a reclaim deletes them.
- *Maintain a state*: merge, purge and vacuum its table. Concurrent publishes are no problem: their changes
  to the files that are being merged are applied to the merged file too. The state is checked against its
  record first; a state that differs is left alone, for people to look at. A VACUUM goes by the table's
  retention. A lease whose version of the state was superseded longer ago than that blocks it, because the
  VACUUM would delete that version's files. With a lateness, tombstones that no later record can lose to are
  removed, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.ids import ShardId, Txn, WriterToken, next_txn
from tidemark.core.lease import Floor, Lease
from tidemark.core.ledger import UPPER, CommitOutcome, Head, Put
from tidemark.core.log import LogFile
from tidemark.core.maintenance import (
    HeldBack,
    Leftover,
    Outrun,
    Replaced,
    Replacement,
    Run,
    choose_runs,
    compaction_of,
    decide_begin,
    decide_replace,
    decide_truncate,
    held_back,
    merged_folder,
)
from tidemark.core.publish import VERSION_NONE, Published, published_txn
from tidemark.core.seal import Decision, Part, is_fenced
from tidemark.pipeline.context import Pipeline, settle, unfinished, watermark_below
from tidemark.pipeline.history import (
    is_in_a_log,
    log_head,
    replaced_at,
    require_history,
    require_logs,
)
from tidemark.pipeline.leases import Leases
from tidemark.pipeline.publish import checked_record, last_published, published_as_of
from tidemark.ports.control import Control, Ledger, MaintainedLog
from tidemark.ports.planes import Freed, Merger, StateKeeper
from tidemark.ports.source import RetainsInput

SEALS_AT_ONCE: Final = 1_000

# Input of a source that retains it for replays.


class RetainedInput(NamedTuple):
    """Input files that may be deleted, or that are still held, and by what."""

    files: int
    bytes: int
    held_by: str = ""
    until: str = ""


def unneeded_input(pipeline: Pipeline, since: Txn) -> list[RetainedInput]:
    """The input that no transaction from `since` on reads: what may be deleted, and what the source still
    holds."""
    if not isinstance(pipeline.source, RetainsInput):
        return []
    found = pipeline.source.unneeded(since)
    free = RetainedInput(found.files, found.bytes)
    held = RetainedInput(found.waiting, found.waiting_bytes, found.held_by, "more of it is acknowledged")
    return [one for one in (free, held) if one.files]


def let_go_input(pipeline: Pipeline, since: Txn) -> list[RetainedInput]:
    """Delete the input that may be deleted; returns it."""
    if not isinstance(pipeline.source, RetainsInput):
        return []
    gone = pipeline.source.let_go(since)
    return [RetainedInput(gone.files, gone.bytes)] if gone.files else []


# Sweep and truncate.


def sweep(pipeline: Pipeline) -> tuple[tuple[Txn, WriterToken], ...]:
    """Delete the parts of every attempt that lost its seal; returns these attempts."""
    require_logs(pipeline.control)
    # Attempts are listed before the seals are read, so one that appears later is not looked at.
    attempts = pipeline.plane.attempts()
    seals = pipeline.control.seals
    upper = seals.head().upper
    sealed: dict[Txn, str] = {}
    swept: list[tuple[Txn, WriterToken]] = []
    for txn, token in sorted(attempts):
        if txn >= upper:
            continue
        if txn not in sealed:
            # Every sealed transaction has a folder until its log is compacted, so they are neighbours.
            found = seals.read(txn, min(txn + SEALS_AT_ONCE, upper))
            # Who skips a promotion may have staged its rows before: a skip has no winner.
            sealed = {seal.txn: seal.token if seal.decision is not Decision.SKIPPED else "" for seal in found}
        if txn not in sealed:
            raise InvariantViolation(f"transaction {txn} is sealed, but its seal is not there")
        if sealed[txn] == token:
            continue
        # After a recovery a log may have parts of an attempt whose seal was lost.
        if not is_in_a_log(pipeline.control, txn, token):
            pipeline.plane.discard(txn, token)
            swept.append((txn, token))
    return tuple(swept)


def publishers(pipeline: Pipeline, shards: Sequence[ShardId]) -> dict[str, Txn]:
    """The first transaction that each shard's state has yet to publish.

    A state that has all of its log needs the next transaction, which is at or above the first that is not
    done."""
    behind = unfinished(pipeline)
    done_upper = pipeline.control.checkpoints.head().upper
    needs: dict[str, Txn] = {}
    for shard in shards:
        published = published_txn(last_published(pipeline.control, shard))
        log_upper = pipeline.control.log(shard).head().upper
        has_all = log_upper <= next_txn(published)
        next_one = behind.lowers.get(shard, done_upper)
        needs[f"state of {shard}"] = min(done_upper, next_one) if has_all else next_txn(published)
    return needs


def plan_floor(pipeline: Pipeline, leases: Leases, shards: Sequence[ShardId], *, window: Txn) -> Floor:
    """The current floor, by all that limits it."""
    return leases.floor(consumers=publishers(pipeline, shards), window=window)


def announce(pipeline: Pipeline, leases: Leases, shards: Sequence[ShardId], *, window: Txn) -> Floor:
    """Raise `since` as far as the floor allows. From then on, nothing below it is guaranteed to exist."""
    return leases.announce(consumers=publishers(pipeline, shards), window=window)


def truncate(log: MaintainedLog, shard: ShardId, since: Txn) -> Sequence[LogFile]:
    """Remove from a log the files that have nothing from `since` on. Precondition: `since` was announced.
    Returns the files, also those that another process removed."""
    taken: dict[str, LogFile] = {}

    def decide(head: Head) -> Put[Replacement, tuple[LogFile, ...]] | tuple[LogFile, ...]:
        decision = decide_truncate(active=log.files(), since=since)
        below = decision.result if isinstance(decision, Put) else decision
        # A reply may be lost: files that were there on the first try count.
        taken.update({file.part.path: file for file in below})
        return decision

    settle(Replacing(log), decide, what=f"the truncation of {shard} below {since}")
    return tuple(taken.values())


# Reclaim.


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The leftovers of one log: those that may be deleted, and those that stay with the reasons. `lease` is
    the lowest live one."""

    free: tuple[Leftover, ...] = ()
    held: Mapping[HeldBack, tuple[Leftover, ...]] = field(default_factory=dict)
    lease: Lease | None = None


def plan_reclaim(
    control: Control, log: MaintainedLog, leases: Leases, *, now_ms: int, kept_ms: int
) -> Reclaim:
    """Sort a log's leftovers. Changes nothing."""
    # Read before the files are listed: what is appended from here on is above this upper. With a later upper,
    # a part that was staged when it was listed, and appended since, would look like a removed one.
    head = log.head()
    found = log.leftovers()
    if not found:
        return Reclaim()
    sealed_upper = control.seals.head().upper
    parts = [one.first for one in found if not one.number]
    seals = control.seals.read(min(parts), min(max(parts) + 1, sealed_upper)) if parts else ()
    tokens = {seal.txn: str(seal.token) for seal in seals}
    # Read after the files are listed: a reader that listed one of them while it was active has its lease now.
    live = [lease for lease in leases.latest() if lease.is_live]
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
    control: Control, log: MaintainedLog, shard: ShardId, leases: Leases, *, now_ms: int, kept_ms: int
) -> Reclaim:
    """Delete the leftovers that may be deleted; returns these, and those that stay.

    Files of a compaction that died have the number of the last one begun. Beginning another compaction, with
    nothing to merge, makes sure that they never enter the log. A compaction that is still at work is fenced
    by that, and loses its work, never a row."""
    log_head(control, shard, require_history(control))
    head = log.head()
    if any(one.number and one.number >= compaction_of(head) for one in log.leftovers()):
        begin(log, shard)
    plan = plan_reclaim(control, log, leases, now_ms=now_ms, kept_ms=kept_ms)
    log.delete(plan.free)
    return plan


# Compact.


@dataclass(frozen=True, slots=True)
class Replacing:
    """A log as `settle` changes it when files are replaced."""

    log: MaintainedLog

    def head(self) -> Head:
        return self.log.head()

    def commit(self, head: Head, put: Put[Replacement, Any]) -> CommitOutcome:
        return self.log.replace(head, put)


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction: the runs that were merged, and the reasons for those that were left
    alone."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    left: tuple[str, ...] = ()


def compact(
    control: Control, log: MaintainedLog, merger: Merger, shard: ShardId, *, token: WriterToken
) -> Compacted:
    """Merge the runs of one log that are due. Needs no lock: a second compaction fences the first."""
    log_head(control, shard, require_history(control))
    log.head()
    runs = choose_runs(log.files())
    if not runs:
        return Compacted()
    number = begin(log, shard)
    done: list[tuple[Run, tuple[Part, ...]]] = []
    left: list[str] = []
    for run in runs:
        # A compaction that is fenced stops before it writes more.
        if compaction_of(log.head()) != number:
            left.append("another compaction has begun")
            break
        try:
            merged = merge_run(control, merger, shard, run, number=number, token=token)
        except Determinate as error:
            left.append(f"transactions {run.first} to {run.last}: {error.fact}")
            continue
        except FileNotFoundError:
            # A later compaction removes what this one has written.
            if compaction_of(log.head()) == number:
                raise
            left.append("another compaction has begun")
            break
        match put(log, shard, Replacement(run.files, merged), number=number):
            case Replaced():
                done.append((run, merged))
            case Outrun():
                left.append(f"transactions {run.first} to {run.last}: another process changed these files")
    return Compacted(
        files_before=sum(len(run.files) for run, _ in done),
        files_after=sum(len(merged) for _, merged in done),
        bytes_before=sum(run.bytes for run, _ in done),
        bytes_after=sum(part.bytes for _, merged in done for part in merged),
        left=tuple(left),
    )


def begin(log: MaintainedLog, shard: ShardId) -> int:
    """Raise the log's compaction mark, which fences every earlier compaction; returns the number."""

    def decide(head: Head) -> Put[Replacement, int] | int:
        return decide_begin(head=head)

    return settle(Replacing(log), decide, what=f"the beginning of a compaction of {shard}")


def merge_run(
    control: Control, merger: Merger, shard: ShardId, run: Run, *, number: int, token: WriterToken
) -> tuple[Part, ...]:
    """The merged files, read back and found to have what was sealed; `Determinate` where they differ."""
    folder = merged_folder(run.first, run.last, number=number, token=token)
    merged = merger.merge(shard, [file.part for file in run.files], folder=folder)
    control.seals.head()
    sealed = {
        seal.txn: seal.shards[shard].digest
        for seal in control.seals.read(run.first, run.last + 1)
        if seal.touches(shard)
    }
    found = merger.digests_by_txn(shard, merged)
    wrong = sorted(txn for txn in sealed.keys() | found.keys() if sealed.get(txn) != found.get(Txn(txn)))
    if wrong:
        raise Determinate(
            f"transaction {wrong[0]} of {shard} differs from its seal: {found.get(Txn(wrong[0]))} was read, "
            f"{sealed.get(wrong[0])} is sealed",
            hint=f"replay transaction {wrong[0]}, and repair it",
        )
    return merged


def put(log: MaintainedLog, shard: ShardId, replacement: Replacement, *, number: int) -> Replaced | Outrun:
    """Replace files by the merged ones, unless another process changed them first."""

    def decide(head: Head) -> Put[Replacement, Replaced | Outrun] | Replaced | Outrun:
        return decide_replace(head=head, active=log.files(), number=number, replacement=replacement)

    return cast("Replaced | Outrun", settle(Replacing(log), decide, what=f"a change of the files of {shard}"))


# Maintain a state.


def snapshot_held(
    ledger: Ledger[Published],
    leases: Sequence[Lease],
    *,
    superseded_ms: Callable[[int], int | None],
    now_ms: int,
    kept_ms: int,
) -> Lease | None:
    """A live lease whose version of the state a VACUUM would break; None if there is none. `superseded_ms`
    returns when the publish of a number was put on record."""
    newest = ledger.mark(UPPER) - 1
    for lease in leases:
        if not lease.is_live or newest < 1:
            continue
        base = published_as_of(ledger, as_of=Txn(lease.txn - 1))
        # A lease below the first publish may read that publish's version.
        number = base.number if base is not None else 1
        if number == newest:
            continue
        at_ms = superseded_ms(number + 1)
        if at_ms is not None and now_ms - at_ms >= kept_ms:
            return lease
    return None


def maintain_state(
    control: Control,
    keeper: StateKeeper,
    shard: ShardId,
    *,
    merge: bool,
    purge: bool,
    vacuum: bool,
) -> None:
    """Merge, purge and vacuum as requested. `BeingPublished` when other processes publish the state all the
    time."""
    last = checked_record(control, keeper, shard)
    tombstones = last.commit.tombstones if last is not None else VERSION_NONE
    if merge:
        keeper.merge(shard, tombstones=tombstones)
    if purge:
        keeper.purge(shard)
    if vacuum:
        keeper.vacuum(shard, tombstones=tombstones)


def too_late_tombstones(control: Control, keeper: StateKeeper, shard: ShardId) -> Freed:
    """The files of tombstones that no record after the last publish can lose to."""
    last = last_published(control, shard)
    watermark = lowest_watermark(control, last)
    if watermark is None or last is None or last.txn < replaced_at(control, shard):
        return Freed(0, 0)
    return keeper.too_late(shard, watermark=watermark)


def expire_tombstones(control: Control, keeper: StateKeeper, shard: ShardId, *, generation: int) -> Freed:
    """Remove them, and return what was removed. Their table keeps the files for the retention.

    Nothing is removed if the keeper has the settings of another generation than the one in charge: its
    lateness may be shorter. A promotion that comes after this look relies on no tombstone that is too late by
    the settings before it."""
    last = checked_record(control, keeper, shard)
    watermark = lowest_watermark(control, last)
    head = control.seals.head()
    is_old = is_fenced(generation, newest=head.generation, sealed_upper=head.upper)
    # The tombstones are of the shape before until a replaced shard is published.
    is_old = is_old or (last is not None and last.txn < replaced_at(control, shard))
    if last is None or watermark is None or is_old:
        return Freed(0, 0)
    return keeper.expire(shard, last=last, watermark=watermark)


def lowest_watermark(control: Control, last: Published | None) -> int | None:
    """The lowest watermark by which a record after a publish is judged; None if there is none.

    It is that of a transaction that is sealed and not published yet, or of the next one: a person may have
    set it back in any of them. Later ones are not lower, unless it is set back again."""
    if last is None:
        return None
    lower, upper = next_txn(last.txn), control.seals.head().upper
    ends = [watermark_below(control, txn) for txn in {lower, upper}]
    between = [seal.base for seal in control.seals.read(lower, upper) if seal.base is not None]
    known = [one for one in ends if one is not None]
    return min([*known, *between]) if len(known) == len(ends) else None
