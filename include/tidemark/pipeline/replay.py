"""Replay: read a transaction's recorded input again and prove what was written. Writes no data."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tidemark.core.binding import Binding
from tidemark.core.checksum import Digests
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import TXN_FIRST, ShardId, Txn
from tidemark.core.journal import Event
from tidemark.core.lease import SINCE, Lease, since_of
from tidemark.core.ledger import Head, Put
from tidemark.core.listing import LogFile
from tidemark.core.replay import Finding, ReplayStep, Verdict, judge, judge_replay, judge_skipped, plan_replay
from tidemark.core.seal import Seal, Staged
from tidemark.core.upkeep import covering
from tidemark.pipeline.context import Attempt, Pipeline, note
from tidemark.pipeline.settle import settle

VERIFY, REPAIR = "verify", "repair"
MODES: Final = (VERIFY, REPAIR)
PARTS_DIFFER: Final = "the input is as it was, but the parts are not what was sealed; repair them"


def bound_range(pipeline: Pipeline, *, txn_from: int, txn_to: int | None) -> range:
    """The transactions from one to another, or to the last that is bound. `InvalidUsage` when one of them is
    not bound: whoever asks for it would take silence for a proof."""
    upper = pipeline.control.bindings.head().upper
    last = txn_to or max(txn_from, upper - 1)
    if txn_from < 1 or last < txn_from:
        raise InvalidUsage(f"transactions {txn_from} to {last} are not a range", hint="count from 1 up")
    if last >= upper:
        there = f"there are transactions 1 to {upper - 1}" if upper > TXN_FIRST else "nothing is bound yet"
        raise InvalidUsage(f"transaction {max(txn_from, upper)} is not bound", hint=there)
    return range(txn_from, last + 1)


def replay_plan(pipeline: Pipeline, *, txn_from: Txn, txn_to: Txn) -> tuple[ReplayStep, ...]:
    """The steps of a replay, at the boundaries that the bindings recorded."""
    pipeline.control.bindings.head()
    sealed_upper = pipeline.control.seals.head().upper
    bindings = [
        record
        for record in pipeline.control.bindings.read(txn_from, txn_to + 1)
        if isinstance(record, Binding)
    ]
    seals = pipeline.control.seals.read(txn_from, min(txn_to + 1, sealed_upper))
    return plan_replay(txn_from=txn_from, txn_to=txn_to, bindings=bindings, seals=seals)


def as_sealed(seal: Seal) -> Staged:
    """The sealed parts in the shape that a read-back takes."""
    return Staged(seal.txn, seal.token, seal.source, seal.shards, seal.engine)


def merged_files(pipeline: Pipeline, seal: Seal) -> dict[ShardId, tuple[LogFile, ...]]:
    """The shards whose log has other files for a transaction than its seal names, with those files: those
    that compaction has merged, or none below `since`."""
    merged: dict[ShardId, tuple[LogFile, ...]] = {}
    for shard, added in seal.shards.items():
        log = pipeline.control.log(shard)
        # A log that waits has not taken the parts in; they lie where they were staged.
        if log.head().upper > seal.txn:
            files = covering(log.files(), seal.txn)
            if {file.part.path for file in files} != {part.path for part in added.parts}:
                merged[shard] = files
    return merged


def read_sealed(pipeline: Pipeline, seal: Seal) -> Digests:
    """What a sealed transaction's rows give now: from its parts or, where compaction has merged those, from
    the files that have taken their place in the log."""
    merged = merged_files(pipeline, seal)
    moved = {shard: [file.part for file in files] for shard, files in merged.items()}
    return pipeline.plane.read_back(as_sealed(seal), moved=moved)


def replay_input(pipeline: Pipeline, binding: Binding, seal: Seal) -> Finding:
    """Judge a sealed transaction by its input as it is now. A skipped one may have lost it: that is why."""
    skipped = judge_skipped(seal)
    if skipped is not None:
        return skipped
    gone = pipeline.source.inspect(binding)
    if gone:
        return Finding(binding.txn, Verdict.INPUT_GONE, why=gone)
    return judge_replay(seal, pipeline.plane.replay(binding))


def judge_parts(pipeline: Pipeline, seal: Seal, found: Digests) -> Finding:
    """Judge what the sealed parts gave; those that maintenance was free to remove prove nothing."""
    finding = judge(seal.txn, recorded=seal.digests, found=found)
    if finding.passed:
        return finding
    # Asked after the parts were read: maintenance moves this mark before it removes anything. An old
    # snapshot would blame it; a commit that changes nothing goes in on the newest one only.
    since = settle(pipeline.control.leases, confirmed_since, what="the look at since")
    if seal.txn < since:
        return Finding(seal.txn, Verdict.IDENTICAL, why=f"by its input; its parts are gone, below {since}")
    return replace(finding, why=PARTS_DIFFER)


def confirmed_since(head: Head) -> Put[Lease, Txn] | Txn:
    """The first transaction whose parts are kept, in a way that only the newest snapshot can tell."""
    since = since_of(head)
    return Put(marks={SINCE: since}, records=(), result=since)


def verify(pipeline: Pipeline, attempt: Attempt, binding: Binding, seal: Seal) -> Finding:
    """Judge one sealed transaction by its input and by its parts as they are now; note the verdict."""
    finding = replay_input(pipeline, binding, seal)
    if finding.passed and seal.shards:
        finding = judge_parts(pipeline, seal, read_sealed(pipeline, seal))
    note_finding(pipeline, attempt, finding)
    return finding


def note_finding(pipeline: Pipeline, attempt: Attempt, finding: Finding) -> None:
    detail = {"verdict": str(finding.verdict), "finding": str(finding), "run": attempt.owner.run_id}
    note(pipeline, Event.VERIFIED, txn=finding.txn, token=attempt.token, detail=detail)
