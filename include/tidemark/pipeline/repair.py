"""Repair: restore lost or damaged parts of a sealed transaction, once its input has proven identical.

The transaction is staged again under a new token. The same engine writes the same rows to the same files,
byte for byte, so each lost part is replaced by its copy, under the recorded name. Neither the seal nor the
log changes, and readers that froze at the part go on. A copy of another size can't be the same file; then
nothing is replaced. Restored parts are read back before the repair is recorded.

A file that compaction has merged can't be made again byte for byte. When one is damaged, all its
transactions are staged again and merged as in any compaction: compared with the seals, in a folder that no
log named before, and swapped in by one commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.core.lease import since_of
from tidemark.core.ledger import Event
from tidemark.core.log import LogFile
from tidemark.core.maintenance import Outrun, Replacement, Run
from tidemark.core.replay import DataDiffers, Finding, judge, judge_replay
from tidemark.core.seal import Decision, Part, Seal, ShardParts, Staged
from tidemark.pipeline.context import Attempt, Pipeline, note, seal_at, sealed_binding
from tidemark.pipeline.maintain import begin, merge_run, put
from tidemark.pipeline.replay import judged_there, merged_files, read_sealed, replaced_since, replay_input
from tidemark.pipeline.validate import Gated, Judged, record
from tidemark.ports.control import MaintainedLog
from tidemark.ports.planes import MaintainedPlane


@dataclass(frozen=True, slots=True)
class Repaired:
    """The finding, and the parts that were restored; none when nothing was lost, or when the input has
    changed."""

    finding: Finding
    parts: tuple[tuple[ShardId, Part], ...] = ()


def find_damage(pipeline: Pipeline, seal: Seal, shards: Sequence[ShardId]) -> dict[ShardId, tuple[Part, ...]]:
    """The parts to restore: those that are missing or truncated, or all of a shard whose rows are not as
    sealed."""
    asked = {shard: added for shard, added in seal.shards.items() if shard in shards}
    damage = {shard: tuple(pipeline.plane.damaged(shard, added.parts)) for shard, added in asked.items()}
    whole = {shard: added for shard, added in asked.items() if not damage[shard]}
    found = pipeline.plane.read_back(Staged(seal.txn, seal.token, seal.source, whole, seal.engine))
    sealed = judge(seal.txn, recorded=seal.digests, found={**seal.digests, **found})
    changed = {mismatch.endpoint for mismatch in sealed.mismatches}
    for shard, added in whole.items():
        if f"shard:{shard}" in changed:
            damage[shard] = added.parts
    return {shard: parts for shard, parts in damage.items() if parts}


def repair(pipeline: Pipeline, attempt: Attempt, txn: Txn) -> Repaired:
    """Restore the lost parts of a sealed transaction. The input is proven first; changed input repairs
    nothing."""
    pipeline.control.seals.head()
    seal = seal_at(pipeline, txn)
    binding = sealed_binding(pipeline, seal)
    merged, replaced = merged_files(pipeline, seal), replaced_since(pipeline, seal)
    # No log has what was replaced, so nothing of it is restored.
    there = [shard for shard in seal.shards if shard not in merged and shard not in replaced]
    damage = find_damage(pipeline, seal, there)
    broken = {shard: files for shard, files in merged.items() if _is_broken(pipeline, seal, shard, files)}
    finding = replay_input(pipeline, binding, seal)
    record(pipeline, attempt, Judged(Gated(finding), replayed=True))
    if not (damage or broken) or not finding.passed:
        return Repaired(finding)
    _require_input(seal)
    restored = _restored(pipeline, attempt, seal, damage) if damage else []
    for shard, files in broken.items():
        restored += _merged_anew(pipeline, attempt, shard, files)
    again, _ = judged_there(pipeline, seal, read_sealed(pipeline, seal))
    if not again.passed:
        raise DataDiffers(again)
    paths: dict[str, list[str]] = {}
    for shard, part in restored:
        paths.setdefault(str(shard), []).append(part.path)
    detail = {"parts": json.dumps(paths), "run": attempt.owner.run_id}
    note(pipeline, Event.REPAIRED, txn=txn, token=attempt.token, detail=detail)
    return Repaired(finding, tuple(restored))


def _require_input(seal: Seal) -> None:
    """Refuse a promotion: its rows are the difference of two generations, and no input gives them again."""
    if seal.decision is Decision.CORRECTED:
        raise InvalidUsage(
            f"transaction {seal.txn} promoted a generation: its lost parts can't be made again from input",
            hint="restore the files from a backup; the state has their rows if it was published",
        )


def _is_broken(pipeline: Pipeline, seal: Seal, shard: ShardId, files: Sequence[LogFile]) -> bool:
    parts = [file.part for file in files]
    if not parts or pipeline.plane.damaged(shard, parts):
        return bool(parts)
    one = Staged(seal.txn, seal.token, seal.source, {shard: seal.shards[shard]}, seal.engine)
    found = pipeline.plane.read_back(one, moved={shard: parts})
    return found[f"shard:{shard}"] != seal.shards[shard].digest


def _restored(
    pipeline: Pipeline, attempt: Attempt, seal: Seal, damage: Mapping[ShardId, tuple[Part, ...]]
) -> list[tuple[ShardId, Part]]:
    """Stage the transaction again, and put the copies in the places of the lost parts."""
    staged = pipeline.plane.stage(sealed_binding(pipeline, seal), attempt.token)
    try:
        twins = {shard: twins_of(seal, staged.shards, shard, lost) for shard, lost in damage.items()}
        for shard, pairs in twins.items():
            for lost, copy in pairs:
                pipeline.plane.restore(shard, lost=lost, copy=copy)
    finally:
        pipeline.plane.discard(seal.txn, attempt.token)
    whole = {shard: seal.shards[shard] for shard in damage}
    found = pipeline.plane.read_back(Staged(seal.txn, seal.token, seal.source, whole, seal.engine))
    again = judge(seal.txn, recorded=seal.digests, found={**seal.digests, **found})
    if not again.passed:
        raise DataDiffers(again)
    return [(shard, part) for shard, parts in damage.items() for part in parts]


def _merged_anew(
    pipeline: Pipeline, attempt: Attempt, shard: ShardId, files: Sequence[LogFile]
) -> list[tuple[ShardId, Part]]:
    """Stage the transactions of merged files again, and replace these files by a new merge."""
    # Only a log that can be compacted has merged files.
    log, merger = (
        cast("MaintainedLog", pipeline.control.log(shard)),
        cast("MaintainedPlane", pipeline.plane).log_rows,
    )
    # First of all, so that no other compaction replaces these files meanwhile.
    number = begin(log, shard)
    since = since_of(pipeline.control.leases.head())
    kept = {
        seal.txn: seal
        for file in files
        for seal in pipeline.control.seals.read(max(file.txn_first, since), file.txn_last + 1)
        if seal.touches(shard)
    }
    try:
        staged: list[LogFile] = []
        for txn, seal in kept.items():
            _require_input(seal)
            again = pipeline.plane.stage(sealed_binding(pipeline, seal), attempt.token)
            finding = judge_replay(seal, again)
            if not finding.passed:
                raise DataDiffers(finding)
            staged += [LogFile(part, txn, txn) for part in again.shards[shard].parts]
        merged = merge_run(
            pipeline.control, merger, shard, Run(tuple(staged)), number=number, token=attempt.token
        )
        outcome = put(log, shard, Replacement(tuple(files), merged), number=number)
    finally:
        for txn in kept:
            pipeline.plane.discard(txn, attempt.token)
    if isinstance(outcome, Outrun):
        raise Determinate(
            f"another process changed the files of {shard} meanwhile", hint="run the repair again"
        )
    return [(shard, part) for part in merged]


def twins_of(
    seal: Seal, staged: Mapping[ShardId, ShardParts], shard: ShardId, lost: tuple[Part, ...]
) -> list[tuple[Part, Part]]:
    """Each lost part with its staged copy. `InvalidUsage` unless all parts of the shard pair up."""
    sealed = sorted(seal.shards[shard].parts, key=lambda part: part.path)
    copies = sorted(staged[shard].parts, key=lambda part: part.path)
    same = [(one.rows, one.bytes) for one in sealed] == [(one.rows, one.bytes) for one in copies]
    if not same:
        raise InvalidUsage(
            f"transaction {seal.txn} of {shard} can't be staged into the same files",
            hint="restore the lost files from a backup, or read the input again with a new pipeline",
        )
    return [(one, copy) for one, copy in zip(sealed, copies, strict=True) if one in lost]
