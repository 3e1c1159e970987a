"""Compact a log: merge neighbouring small files, so that readers open few.

Each row keeps its `_txn`. What was written is read back and must give, for every transaction, the digest that
its seal has, before it takes the place of what it was made of (Invariant 7); else the files are left alone,
and what is wrong is told. Who comes second, or dies anywhere in between, leaves files that no log names;
`pipeline.reclaim` deletes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from tidemark.core.errors import Determinate
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import CommitOutcome, Head, Put
from tidemark.core.seal import Part
from tidemark.core.upkeep import (
    Outrun,
    Replaced,
    Replacement,
    Run,
    choose_runs,
    compaction_of,
    decide_begin,
    decide_replace,
    merged_folder,
)
from tidemark.pipeline.history import log_head, require_history
from tidemark.pipeline.settle import settle
from tidemark.ports.control import Control, KeptLog
from tidemark.ports.upkeep import Merger


@dataclass(frozen=True, slots=True)
class Replacing:
    """A log that is settled by changing its files."""

    log: KeptLog

    def head(self) -> Head:
        return self.log.head()

    def commit(self, head: Head, put: Put[Replacement, Any]) -> CommitOutcome:
        return self.log.replace(head, put)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What became of the runs that were due: merged, or left alone for a reason."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    left: tuple[str, ...] = ()


def compact(
    control: Control, log: KeptLog, merger: Merger, shard: ShardId, *, token: WriterToken
) -> Compacted:
    """Merge what is due in one log. Needs no lock: a second compaction shuts out the first."""
    log_head(control, shard, require_history(control))
    log.head()
    runs = choose_runs(log.files())
    if not runs:
        return Compacted()
    number = begin(log, shard)
    done: list[tuple[Run, tuple[Part, ...]]] = []
    left: list[str] = []
    for run in runs:
        # Whoever is shut out stops before it writes more.
        if compaction_of(log.head()) != number:
            left.append("another compaction has begun")
            break
        try:
            merged = merge_run(control, merger, shard, run, number=number, token=token)
        except Determinate as error:
            left.append(f"transactions {run.first} to {run.last}: {error.fact}")
            continue
        match put(log, shard, Replacement(run.files, merged), number=number):
            case Replaced():
                done.append((run, merged))
            case Outrun():
                left.append(f"transactions {run.first} to {run.last}: others have changed these files")
    return Compacted(
        files_before=sum(len(run.files) for run, _ in done),
        files_after=sum(len(merged) for _, merged in done),
        bytes_before=sum(run.bytes for run, _ in done),
        bytes_after=sum(part.bytes for _, merged in done for part in merged),
        left=tuple(left),
    )


def begin(log: KeptLog, shard: ShardId) -> int:
    """Raise the log's compaction mark, and so shut out what was begun before; returns the number."""

    def decide(head: Head) -> Put[Replacement, int] | int:
        return decide_begin(head=head)

    return settle(Replacing(log), decide, what=f"the beginning of a compaction of {shard}")


def merge_run(
    control: Control, merger: Merger, shard: ShardId, run: Run, *, number: int, token: WriterToken
) -> tuple[Part, ...]:
    """The merged files, once they have been read back and have what was sealed."""
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
            f"transaction {wrong[0]} of {shard} is not what was sealed: {found.get(Txn(wrong[0]))} was read, "
            f"{sealed.get(wrong[0])} is sealed",
            hint=f"replay transaction {wrong[0]}, and repair it",
        )
    return merged


def put(log: KeptLog, shard: ShardId, replacement: Replacement, *, number: int) -> Replaced | Outrun:
    """Put what was merged in the place of other files, unless others came first."""

    def decide(head: Head) -> Put[Replacement, Replaced | Outrun] | Replaced | Outrun:
        return decide_replace(head=head, active=log.files(), number=number, replacement=replacement)

    return cast("Replaced | Outrun", settle(Replacing(log), decide, what=f"a change of the files of {shard}"))
