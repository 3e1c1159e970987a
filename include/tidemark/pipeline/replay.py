"""Replay: read a transaction's recorded input again and prove what was written. Writes no data.

A transaction stays replayable as long as its source still has the input. Maintenance warns before that
ends, so that a person can replay once more, or store the input elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from tidemark.core.binding import Binding
from tidemark.core.checksum import Digests, shard_endpoint
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import TXN_FIRST, ShardId, Txn
from tidemark.core.lease import SINCE, LeaseRecord, since_of
from tidemark.core.ledger import Head, Put
from tidemark.core.log import LogFile
from tidemark.core.maintenance import covering
from tidemark.core.replay import (
    Finding,
    Replayable,
    ReplayStep,
    Verdict,
    judge,
    judge_replay,
    judge_skipped,
    plan_replay,
)
from tidemark.core.seal import Decision, Seal, Staged, replaced_mark
from tidemark.pipeline.context import Pipeline, settle

VERIFY, REPAIR = "verify", "repair"
MODES: Final = (VERIFY, REPAIR)
PARTS_DIFFER: Final = "the input is unchanged, but the parts differ from the seal; repair them"
PROMOTION_DIFFERS: Final = (
    "the parts differ from the seal, and a promotion has no input to make them again from: restore the files"
    " from a backup"
)


def bound_range(pipeline: Pipeline, *, txn_from: int, txn_to: int | None) -> range:
    """The transactions from one to another, or to the last that is bound. `InvalidUsage` when one of them is
    not bound: an empty result would look like a proof."""
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
    bindings = pipeline.control.bindings.read(txn_from, txn_to + 1)
    seals = pipeline.control.seals.read(txn_from, min(txn_to + 1, sealed_upper))
    return plan_replay(txn_from=txn_from, txn_to=txn_to, bindings=bindings, seals=seals)


def as_sealed(seal: Seal) -> Staged:
    """The sealed parts in the form that a read-back takes."""
    return Staged(seal.txn, seal.token, seal.source, seal.shards, seal.engine)


def replaced_since(pipeline: Pipeline, seal: Seal) -> dict[ShardId, Txn]:
    """The shards of a sealed transaction that a later one has replaced, with that one: no log has these parts
    any more."""
    marks = {shard: Txn(pipeline.control.seals.mark(replaced_mark(shard))) for shard in seal.shards}
    return {shard: txn for shard, txn in marks.items() if txn > seal.txn}


def merged_files(pipeline: Pipeline, seal: Seal) -> dict[ShardId, tuple[LogFile, ...]]:
    """The shards whose log has other files for a transaction than its seal names, with those files: files
    that compaction has merged, or none below `since`. Shards that were replaced since are left out."""
    merged: dict[ShardId, tuple[LogFile, ...]] = {}
    replaced = replaced_since(pipeline, seal)
    for shard, added in seal.shards.items():
        if shard in replaced or not added.parts:
            continue
        log = pipeline.control.log(shard)
        # A log that waits has not appended the parts; they are where they were staged.
        if log.head().upper > seal.txn:
            files = covering(log.files(), seal.txn)
            if {file.part.path for file in files} != {part.path for part in added.parts}:
                merged[shard] = files
    return merged


def read_sealed(pipeline: Pipeline, seal: Seal) -> Digests:
    """The current digests of a sealed transaction's rows: from its parts or, where compaction has merged
    those, from the files that replaced them in the log. Shards that were replaced since are not read."""
    merged = merged_files(pipeline, seal)
    moved = {shard: [file.part for file in files] for shard, files in merged.items()}
    replaced = replaced_since(pipeline, seal)
    staged = as_sealed(seal)
    kept = {shard: one for shard, one in staged.shards.items() if one.parts and shard not in replaced}
    return pipeline.plane.read_back(replace(staged, shards=kept), moved=moved)


def replay_input(pipeline: Pipeline, binding: Binding, seal: Seal) -> Finding:
    """Judge a sealed transaction by its current input. A skipped one is not read: missing input may be why it
    was skipped."""
    skipped = judge_skipped(seal)
    if skipped is not None:
        return skipped
    if seal.decision is Decision.CORRECTED:
        _, why = judged_there(pipeline, seal, seal.digests)
        if why:
            return Finding(seal.txn, Verdict.NOT_COMPARABLE, why=why)
        return judge_replay(seal, as_sealed(seal))
    gone = pipeline.source.inspect(binding)
    if gone:
        return Finding(binding.txn, Verdict.INPUT_GONE, why=gone)
    return judge_replay(seal, pipeline.plane.replay(binding))


def judge_parts(pipeline: Pipeline, seal: Seal, found: Digests) -> Finding:
    """Judge the digests of the sealed parts. Parts that maintenance was free to remove are not compared, nor
    are those of shards that were replaced since. A promotion has no input, so nothing else proves it."""
    finding, why = judged_there(pipeline, seal, found)
    if not finding.passed:
        # The loaded version may be older than what was read.
        pipeline.control.seals.head()
        finding, why = judged_there(pipeline, seal, found)
    if finding.passed and why and seal.decision is Decision.CORRECTED:
        return Finding(seal.txn, Verdict.NOT_COMPARABLE, why=why)
    if finding.passed:
        return replace(finding, why=f"by its input; {why}") if why else finding
    # Read after the parts: maintenance raises this mark before it removes anything. An old version of the
    # leases would show removed parts as damaged; a commit, even an empty one, needs the newest version.
    since = settle(pipeline.control.leases, confirmed_since, what="the look at since")
    if seal.txn < since and seal.decision is Decision.CORRECTED:
        why = f"its parts below {since} are deleted, and a promotion has no input"
        return Finding(seal.txn, Verdict.NOT_COMPARABLE, why=why)
    if seal.txn < since:
        return Finding(seal.txn, Verdict.IDENTICAL, why=f"by its input; its parts below {since} are deleted")
    return replace(finding, why=PROMOTION_DIFFERS if seal.decision is Decision.CORRECTED else PARTS_DIFFER)


def judged_there(pipeline: Pipeline, seal: Seal, found: Digests) -> tuple[Finding, str]:
    """The finding on the parts that the logs should still have, and why others are not compared."""
    replaced = replaced_since(pipeline, seal)
    without = {shard_endpoint(shard) for shard in replaced}
    recorded, now = (
        {endpoint: digest for endpoint, digest in digests.items() if endpoint not in without}
        for digests in (seal.digests, found)
    )
    named = [f"{shard} by transaction {txn}" for shard, txn in replaced.items() if seal.shards[shard].parts]
    why = f"its parts were replaced in shard {', '.join(named)}" if named else ""
    return judge(seal.txn, recorded=recorded, found=now), why


def confirmed_since(head: Head) -> Put[LeaseRecord, Txn] | Txn:
    """The first transaction whose parts are retained, as an empty commit, which succeeds only on the newest
    version."""
    since = since_of(head)
    return Put(marks={SINCE: since}, records=(), result=since)


# How long transactions stay replayable.

ASKED_AT_ONCE_MAX: Final = 1_000
WARNED_SECONDS: Final = 2 * 86_400


def replayable(
    pipeline: Pipeline, *, since: Txn = TXN_FIRST, at_ends: int | None = None
) -> dict[Txn, Replayable]:
    """The transactions from `since` on, each with whether its input is there, and until when. With `at_ends`,
    only so many of the oldest and of the newest. Where the source can't be asked now, each has a caveat with
    the reason."""
    upper = pipeline.control.bindings.head().upper
    numbers = range(since, upper)
    runs = [numbers] if at_ends is None else [numbers[:at_ends], numbers[at_ends:][-at_ends:]]
    found: dict[Txn, Replayable] = {}
    for run in runs:
        for first in run[::ASKED_AT_ONCE_MAX]:
            found |= _asked(pipeline, first, min(first + ASKED_AT_ONCE_MAX, run.stop))
    return found


def _asked(pipeline: Pipeline, lower: int, upper: int) -> dict[Txn, Replayable]:
    bindings = pipeline.control.bindings.read(lower, upper)
    try:
        found = pipeline.source.replayable(bindings)
    except (Determinate, InvalidUsage) as error:
        found = [Replayable(caveat=f"the source can't be asked: {error.fact}")] * len(bindings)
    return {binding.txn: one for binding, one in zip(bindings, found, strict=True)}


def warnings(found: Mapping[Txn, Replayable], *, since: Txn, now_seconds: float) -> tuple[str, ...]:
    """Warnings about the retained transactions that can't be proven any more, or soon can't."""
    kept = [(txn, one) for txn, one in sorted(found.items()) if txn >= since]
    gone = [txn for txn, one in kept if one.gone]
    why = {txn: one.gone for txn, one in kept if one.gone}
    notes = [f"{_named(span)} can't be proven again: {why[span[0]]}" for span in _spans(gone)]
    ending = {
        txn: one.until_seconds
        for txn, one in kept
        if not one.gone and one.until_seconds is not None and one.until_seconds - now_seconds < WARNED_SECONDS
    }
    for span in _spans(list(ending)):
        hours = max(0.0, (min(ending[txn] for txn in span) - now_seconds) / 3600)
        notes.append(
            f"{_named(span)} can be proven for {hours:.0f} more hours, then its source deletes the input"
        )
    return tuple(notes)


def _spans(txns: Sequence[Txn]) -> list[list[Txn]]:
    """Runs of consecutive numbers."""
    numbered = groupby(enumerate(txns), key=lambda pair: pair[1] - pair[0])
    return [[txn for _, txn in run] for _, run in numbered]


def _named(span: Sequence[Txn]) -> str:
    return f"transaction {span[0]}" if len(span) == 1 else f"transactions {span[0]} to {span[-1]}"
