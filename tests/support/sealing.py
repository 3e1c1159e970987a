"""Seals that a test writes by hand: those of a log, and the mark of a newer generation."""

from __future__ import annotations

from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import GENERATION, LINK, UPPER, Head, Put
from tidemark.core.log import LogEntry
from tidemark.core.seal import Decision, Seal, ShardParts, touch_mark
from tidemark.pipeline.context import Pipeline, settle
from tidemark.ports.control import Control


def sealed_put(control: Control, shard: ShardId, entry: LogEntry) -> Put[LogEntry, None]:
    """What to commit to the log, once the history has seals up to its transaction. They say nothing of
    the parts, and their links are their numbers, so that racing writers make the same ones."""

    def decide(head: Head) -> Put[Seal, None] | None:
        if entry.txn < head.upper:
            return None
        touched = {shard: ShardParts((), Digest())}
        seals = [
            Seal(
                Txn(txn), WriterToken("hand"), 0, Decision.COMMITTED, Digest(),
                touched if txn == entry.txn else {}, link=txn,
            )
            for txn in range(head.upper, entry.txn + 1)
        ]  # fmt: skip
        marks = {UPPER: entry.txn + 1, touch_mark(shard): int(entry.txn)}
        return Put(marks, seals, None)

    settle(control.seals, decide, what="seals by hand")
    return Put({UPPER: entry.txn + 1, LINK: int(entry.txn)}, (entry,), None)


def announce_generation(pipeline: Pipeline) -> int:
    """Leave the mark that a newer deployment's seal leaves, without a seal; returns the generation in
    charge."""

    def decide(head: Head) -> Put[Seal, int] | int:
        if pipeline.generation <= head.generation:
            return head.generation
        return Put({GENERATION: pipeline.generation}, (), pipeline.generation)

    return settle(pipeline.control.seals, decide, what="a generation by hand")
