"""Repair: bring back lost or damaged parts of a sealed transaction, once its input has proven identical.

The transaction is staged again under a token of its own. The same engine makes the same files of the
same rows, byte for byte, so each lost part is replaced by its twin, under the recorded name; neither the
seal nor the log changes, and readers that froze at the part go on. A twin of another size means that the
files can't be the same; then nothing is replaced. What was restored is read back before it is called so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.core.journal import Event
from tidemark.core.replay import DataDiffers, Finding, judge
from tidemark.core.seal import Part, Seal, ShardParts, Staged
from tidemark.pipeline.context import Attempt, Pipeline, binding_at, note, seal_at
from tidemark.pipeline.replay import as_sealed, note_finding, replay_input


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was restored; nothing when nothing was lost, or when the finding did not allow it."""

    finding: Finding
    parts: tuple[tuple[ShardId, Part], ...] = ()


def find_damage(pipeline: Pipeline, seal: Seal) -> dict[ShardId, tuple[Part, ...]]:
    """The parts to restore: those that are gone or cut, or all of a shard whose rows are not as sealed."""
    damage = {
        shard: tuple(pipeline.plane.damaged(shard, added.parts)) for shard, added in seal.shards.items()
    }
    whole = {shard: added for shard, added in seal.shards.items() if not damage[shard]}
    found = pipeline.plane.read_back(Staged(seal.txn, seal.token, seal.source, whole, seal.engine))
    sealed = judge(seal.txn, recorded=seal.digests, found={**seal.digests, **found})
    changed = {mismatch.endpoint for mismatch in sealed.mismatches}
    for shard, added in whole.items():
        if f"shard:{shard}" in changed:
            damage[shard] = added.parts
    return {shard: parts for shard, parts in damage.items() if parts}


def repair(pipeline: Pipeline, attempt: Attempt, txn: Txn) -> Repaired:
    """Restore what a sealed transaction has lost. The input is proven first; a wrong one repairs nothing."""
    pipeline.control.seals.head()
    binding, seal = binding_at(pipeline, txn), seal_at(pipeline, txn)
    damage = find_damage(pipeline, seal)
    finding = replay_input(pipeline, binding, seal)
    note_finding(pipeline, attempt, finding)
    if not damage or not finding.passed:
        return Repaired(finding)
    staged = pipeline.plane.stage(binding, attempt.token)
    try:
        twins = {shard: twins_of(seal, staged.shards, shard, lost) for shard, lost in damage.items()}
        for shard, pairs in twins.items():
            for lost, copy in pairs:
                pipeline.plane.restore(shard, lost=lost, copy=copy)
    finally:
        pipeline.plane.discard(txn, attempt.token)
    restored = judge(txn, recorded=seal.digests, found=pipeline.plane.read_back(as_sealed(seal)))
    if not restored.passed:
        raise DataDiffers(restored)
    replaced = {str(shard): [part.path for part in parts] for shard, parts in damage.items()}
    detail = {"parts": json.dumps(replaced), "run": attempt.owner.run_id}
    note(pipeline, Event.REPAIRED, txn=txn, token=attempt.token, detail=detail)
    return Repaired(finding, tuple((shard, part) for shard, parts in damage.items() for part in parts))


def twins_of(
    seal: Seal, staged: Mapping[ShardId, ShardParts], shard: ShardId, lost: tuple[Part, ...]
) -> list[tuple[Part, Part]]:
    """Each lost part with the staged one that takes its place; the whole shard must pair up."""
    sealed = sorted(seal.shards[shard].parts, key=lambda part: part.path)
    copies = sorted(staged[shard].parts, key=lambda part: part.path)
    same = [(one.rows, one.bytes) for one in sealed] == [(one.rows, one.bytes) for one in copies]
    if not same:
        raise InvalidUsage(
            f"transaction {seal.txn} of {shard} can't be staged into the same files again",
            hint="restore the lost files from a backup, or rebuild the pipeline's log from its input",
        )
    return [(one, copy) for one, copy in zip(sealed, copies, strict=True) if one in lost]
