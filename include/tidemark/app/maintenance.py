"""Maintenance of one pipeline: truncation, compaction, deletion of unneeded files, vacuum of the states.

`plan` reports the work and what holds it back, and changes nothing. `maintain` does the work in this order:
raise `since` and truncate the logs, merge small files, delete unneeded files, then maintain the states and
the control tables. Every step is idempotent. Conditional commits make it safe against readers, writers and
other maintenance. The next run finishes a step that was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from tidemark.app.deployment import Deployment
from tidemark.app.generation import Generations
from tidemark.core.ids import QUARANTINE, TXN_FIRST, ShardId, Txn, WriterToken
from tidemark.core.lease import Floor, Lease, since_of
from tidemark.core.maintenance import Leftover, choose_runs
from tidemark.core.publish import BeingPublished
from tidemark.delta.log import DeltaLog
from tidemark.delta.vacuum import TableStats, table_stats
from tidemark.pipeline import replay
from tidemark.pipeline.checkpoint import renew_cut, stalls
from tidemark.pipeline.leases import Leases, expire_stale
from tidemark.pipeline.maintain import (
    Reclaim,
    announce,
    compact,
    expire_tombstones,
    let_go_input,
    maintain_state,
    plan_floor,
    plan_reclaim,
    reclaim,
    snapshot_held,
    sweep,
    too_late_tombstones,
    truncate,
    unneeded_input,
)
from tidemark.ports.planes import Freed
from tidemark.quality.engine import old_pages, remove_pages

DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Terms:
    """The time of a maintenance run and the pipeline file's retention.

    Transactions are kept from `window` on, quarantined records from `quarantine_window` on, files of older
    versions for `kept_ms`, and Data Docs from `docs_from_ms` on."""

    now_ms: int
    window: Txn
    quarantine_window: Txn
    kept_ms: int
    docs_from_ms: int = 0


@dataclass(frozen=True, slots=True)
class Chore:
    """One piece of work with its files and bytes; if it has to wait, what holds it back and until when."""

    what: str
    shard: str
    files: int
    bytes: int
    held_by: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """The work that maintenance has to do, or has done; `since` is the first transaction that is kept."""

    pipeline: str
    since: Txn
    chores: tuple[Chore, ...]
    warnings: tuple[str, ...] = ()


def terms_of(deployment: Deployment, *, now_ms: int | None = None) -> Terms:
    """The pipeline file's retention as of `now_ms`, by default the present time."""
    retention = deployment.config.retention
    at_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    now = datetime.fromtimestamp(at_ms / 1000, UTC)

    def first_kept(days: int | None) -> Txn:
        if days is None:
            return TXN_FIRST
        return Txn(deployment.control.seals.first_since(now - timedelta(days=days)))

    window = first_kept(retention.log_days)
    # All shards share one `since`, so quarantined records are kept at least as long as the logs.
    quarantined = min(window, first_kept(retention.quarantine_days))
    docs_from_ms = at_ms - retention.data_docs_days * DAY_MS if retention.data_docs_days is not None else 0
    return Terms(at_ms, window, quarantined, retention.state_history_days * DAY_MS, docs_from_ms)


def logs_of(deployment: Deployment) -> dict[ShardId, DeltaLog]:
    """The logs that have transactions, including the quarantine's."""
    shards = (*deployment.shards, QUARANTINE)
    logs = {shard: deployment.control.log(shard) for shard in shards}
    return {shard: log for shard, log in logs.items() if log.head().upper > TXN_FIRST}


def lower_of(shard: ShardId, floor: Txn, terms: Terms) -> Txn:
    """The first transaction that a shard's log keeps."""
    return min(floor, terms.quarantine_window) if shard == QUARANTINE else floor


def plan(deployment: Deployment, terms: Terms, *, asks_source: bool = True) -> MaintenanceReport:
    """Report the work and what holds it back. Changes nothing and starts no Spark. Without `asks_source` it
    leaves out the input: what may be removed of it, and what soon can't be read again."""
    leases = Leases(deployment.control.leases)
    floor = plan_floor(deployment.pipeline, leases, deployment.shards, window=terms.window)
    since = leases.since()
    chores: list[Chore] = []
    notes: list[str] = []
    for shard, log in logs_of(deployment).items():
        chores += _log_chores(shard, log, floor, max(since, floor.txn), terms)
        found = plan_reclaim(deployment.control, log, leases, now_ms=terms.now_ms, kept_ms=terms.kept_ms)
        chores += _reclaim_chores(shard, found)
    for shard in deployment.shards:
        facts = state_facts(deployment, shard, terms)
        if facts is not None:
            held = _snapshot_held(deployment, shard, leases, terms)
            chores += _state_chores(shard, facts, held, terms)
            notes += _history_warnings(shard, facts, terms)
        if deployment.config.shard(shard).lateness is not None:
            late = too_late_tombstones(deployment.control, deployment.keeper(), shard)
            chores += [Chore("remove late tombstones", shard, *late)] if late.files else []
    unneeded = unneeded_input(deployment.pipeline, max(since, floor.txn)) if asks_source else []
    chores += [Chore("remove captured changes", "", *one) for one in unneeded]
    left = [size for folder in Generations(deployment).leftovers() for size in folder.listed().values()]
    chores += [Chore("remove ended candidates", "", len(left), sum(left))] if left else []
    pages = old_pages(deployment.data_docs, before_ms=terms.docs_from_ms)
    chores += [Chore("remove old Data Docs", "", *_counted(pages))] if pages else []
    notes += warnings(deployment, since, terms) if asks_source else ()
    return MaintenanceReport(deployment.config.name, since, tuple(chores), tuple(notes))


def warnings(deployment: Deployment, since: Txn, terms: Terms) -> tuple[str, ...]:
    """Warnings about stalls (Invariant 14) and about transactions that are not, or soon not, replayable."""
    now_seconds = terms.now_ms / 1000
    found = replay.replayable(deployment.pipeline, since=since, at_ends=replay.ASKED_AT_ONCE_MAX)
    grace = deployment.config.alarms.limits.stalled_seconds
    stalled = stalls(deployment.pipeline, now_seconds=now_seconds, grace_seconds=grace)
    notes = [one.sentence(now_seconds) for one in stalled]
    return (*notes, *replay.warnings(found, since=since, now_seconds=now_seconds))


def _log_chores(shard: ShardId, log: DeltaLog, floor: Floor, since: Txn, terms: Terms) -> Iterable[Chore]:
    lower = lower_of(shard, since, terms)
    wanted = terms.quarantine_window if shard == QUARANTINE else terms.window
    files = log.files()
    below = [file for file in files if file.txn_last < lower]
    if below:
        yield Chore("truncate the log", shard, len(below), sum(file.part.bytes for file in below))
    waiting = [file for file in files if lower <= file.txn_last < wanted]
    if waiting:
        held = "; ".join(str(need) for need in floor.held_by)
        yield Chore(
            "truncate the log",
            shard,
            len(waiting),
            sum(file.part.bytes for file in waiting),
            held,
            until_released(floor.held_by[0].ttl_seconds)
            if floor.held_by[0].kind == "lease"
            else "it has gone on",
        )
    for run in choose_runs([file for file in files if file.txn_last >= lower]):
        yield Chore("merge small files", shard, len(run.files), run.bytes)


def _reclaim_chores(shard: ShardId, found: Reclaim) -> Iterable[Chore]:
    if found.free:
        yield Chore("delete replaced files", shard, len(found.free), _bytes(found.free))
    for hold, files in found.held.items():
        if hold.kind == "lost":
            yield Chore("remove lost attempts", shard, len(files), _bytes(files))
        elif hold.kind != "in use":
            until = moment(hold.until_ms) if hold.until_ms is not None else ""
            if hold.kind == "leased" and found.lease is not None:
                until = until_released(found.lease.ttl_seconds)
            yield Chore("delete replaced files", shard, len(files), _bytes(files), hold.why, until)


def _state_chores(shard: ShardId, facts: TableStats, held: Lease | None, terms: Terms) -> Iterable[Chore]:
    if facts.merge_due:
        yield Chore("merge the state's files", shard, facts.small, facts.small_bytes)
    if facts.purge_due:
        yield Chore("purge the state's hidden rows", shard, facts.worn, facts.worn_bytes)
    if facts.old:
        by = f"lease {held.name} of {held.holder} at {held.txn}" if held is not None else ""
        until = until_released(held.ttl_seconds) if held is not None else ""
        yield Chore("vacuum the state", shard, facts.old, facts.old_bytes, by, until)
    if facts.waiting:
        days = terms.kept_ms // DAY_MS
        yield Chore(
            "vacuum the state", shard, facts.waiting, facts.waiting_bytes, f"state_history_days: {days}"
        )


def _history_warnings(shard: ShardId, facts: TableStats, terms: Terms) -> Iterable[str]:
    """Files of older versions are kept for `state_history_days` at any size; warn if they are large."""
    if facts.history_large:
        yield (
            f"older versions of the state of {shard} take {facts.waiting_bytes:,} bytes, the state itself"
            f" {facts.bytes:,}; lower `state_history_days: {terms.kept_ms // DAY_MS}`, or publish less often"
        )


def _bytes(files: Iterable[Leftover]) -> int:
    return sum(file.bytes for file in files)


def _counted(files: Sequence[tuple[object, int]]) -> tuple[int, int]:
    return len(files), sum(size for _, size in files)


def until_released(ttl_seconds: float) -> str:
    """Until when a lease holds work back, for people."""
    return f"it is released, or is not renewed for {ttl_seconds:g} s"


def moment(milliseconds: int) -> str:
    """A point in time, for people."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def state_facts(deployment: Deployment, shard: ShardId, terms: Terms) -> TableStats | None:
    """The statistics of a shard's state; None if it has no state yet."""
    uri = f"{deployment.shard_uri(shard)}/state"
    return table_stats(uri, now_ms=terms.now_ms, kept_ms=terms.kept_ms)


def _snapshot_held(deployment: Deployment, shard: ShardId, leases: Leases, terms: Terms) -> Lease | None:
    ledger = deployment.control.publishes(shard)
    ledger.head()

    def superseded_ms(number: int) -> int | None:
        at = ledger.written_at(number)
        return int(at.timestamp() * 1000) if at is not None else None

    return snapshot_held(
        ledger, leases.latest(), superseded_ms=superseded_ms, now_ms=terms.now_ms, kept_ms=terms.kept_ms
    )


def maintain(
    deployment: Deployment, token: WriterToken, terms: Terms, *, watch: bool = True
) -> MaintenanceReport:
    """Do the work that can be done now, and report it. `watch` first waits to see which leases are stale and
    ends those: even a lease that holds no transaction back holds replaced files and files of the state."""
    pipeline, control = deployment.pipeline, deployment.control
    sweep(pipeline)
    leases = Leases(control.leases)
    if watch:
        expire_stale(leases)
    # Before the floor is found: what is left of a candidate that is no more holds input.
    ended = Generations(deployment).clean()
    announce(pipeline, leases, deployment.shards, window=terms.window)
    since = since_of(control.leases.head())
    done = [Chore("removed ended candidates", "", *ended)] if ended.files else []
    notes: list[str] = []
    for shard, log in logs_of(deployment).items():
        # This comes first: a file that is removed below is deleted later, as the log's record of it allows.
        log.remember_removals(terms.kept_ms // DAY_MS)
        taken = truncate(log, shard, lower_of(shard, since, terms))
        if taken:
            done.append(Chore("truncated the log", shard, len(taken), sum(file.part.bytes for file in taken)))
        log.head()
        if choose_runs(log.files()):
            found = compact(control, log, deployment.plane().log_rows, shard, token=token)
            done.append(Chore("merged small files", shard, found.files_before, found.bytes_before))
            notes += [f"files of the log of {shard} were not merged: {why}" for why in found.left]
        freed = reclaim(control, log, shard, leases, now_ms=terms.now_ms, kept_ms=terms.kept_ms).free
        if freed:
            done.append(Chore("deleted replaced files", shard, len(freed), _bytes(freed)))
    for shard in deployment.shards:
        done += _maintained_state(deployment, shard, leases, terms, notes)
        if deployment.config.shard(shard).lateness is not None:
            gone = _expired_tombstones(deployment, shard)
            done += [Chore("removed late tombstones", shard, *gone)] if gone.files else []
    done += [Chore("removed captured changes", "", *one) for one in let_go_input(pipeline, since)]
    pages = old_pages(deployment.data_docs, before_ms=terms.docs_from_ms)
    if pages:
        remove_pages(deployment.data_docs, pages)
        done.append(Chore("removed old Data Docs", "", *_counted(pages)))
    control_files = sum(table.sweep() for table in control.tables)
    if control_files:
        done.append(Chore("cleaned the control tables", "", control_files, 0))
    notes += warnings(deployment, since, terms)
    return MaintenanceReport(deployment.config.name, since, tuple(done), tuple(notes))


def _expired_tombstones(deployment: Deployment, shard: ShardId) -> Freed:
    return expire_tombstones(
        deployment.control, deployment.keeper(), shard, generation=deployment.config.generation
    )


def _maintained_state(
    deployment: Deployment, shard: ShardId, leases: Leases, terms: Terms, notes: list[str]
) -> Iterable[Chore]:
    facts = state_facts(deployment, shard, terms)
    if facts is None:
        return
    notes += _history_warnings(shard, facts, terms)
    vacuum = facts.old > 0 and _snapshot_held(deployment, shard, leases, terms) is None
    if not (facts.merge_due or facts.purge_due or vacuum):
        return
    if vacuum:
        from tidemark.delta.state_status import same_rows_version

        uri = f"{deployment.shard_uri(shard)}/state"
        renew_cut(deployment.control, shard, lambda version: same_rows_version(uri, version))
    try:
        maintain_state(
            deployment.control,
            deployment.keeper(),
            shard,
            merge=facts.merge_due,
            purge=facts.purge_due,
            vacuum=vacuum,
        )
    except BeingPublished:
        notes.append(f"the state of {shard} is being published, the next maintenance does it")
        return
    if facts.merge_due:
        yield Chore("merged the state's files", shard, facts.small, facts.small_bytes)
    if facts.purge_due:
        yield Chore("purged the state's hidden rows", shard, facts.worn, facts.worn_bytes)
    if vacuum:
        yield Chore("vacuumed the state", shard, facts.old, facts.old_bytes)
