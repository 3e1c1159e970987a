"""What a frozen consumer tells, and what its journal says about going on without what is lost."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tidemark.core.errors import TidemarkError
from tidemark.core.freeze import Freeze, Frozen, open_freeze
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.journal import Event
from tidemark.core.seal import Part
from tidemark.pipeline.context import Pipeline, note
from tidemark.pipeline.holding import Hold


@dataclass(frozen=True, slots=True)
class Freezer:
    """The freezes of one consumer in one shard; `name` is the pipeline's, as commands take it."""

    pipeline: Pipeline
    hold: Hold
    consumer: str
    shard: ShardId
    token: WriterToken
    name: str

    def passed_over(self, txn: Txn) -> str:
        """Why this consumer passes over a transaction that it can't read; empty when it doesn't."""
        journal = self.pipeline.control.journal
        journal.head()
        mine = {"consumer": self.consumer, "shard": str(self.shard)}
        for entry in journal.find(str(txn)):
            if entry.event is Event.PASSED_OVER and mine.items() <= entry.detail.items():
                return entry.detail["reason"]
        return ""

    def frozen(
        self,
        txn: Txn,
        why: str,
        part: Part | None = None,
        *,
        last: Txn | None = None,
        is_named: bool = True,
        in_snapshot: bool = False,
    ) -> Frozen:
        """The report, which the journal keeps once per part."""
        last = txn if last is None else last
        since, holders = self.hold.standing()
        path, size = (part.path, part.bytes) if part is not None else ("", 0)
        freeze = Freeze(
            self.consumer, self.shard, txn, last, why, since, path, size, holders, is_named, in_snapshot
        )
        mine = {"consumer": self.consumer, "shard": str(self.shard)}
        detail = {**mine, "part": path, "why": why, "last": str(last)}
        # What is lost may be the journal itself; that must not hide the report.
        with suppress(TidemarkError):
            journal = self.pipeline.control.journal
            journal.head()
            known = open_freeze(journal.find(str(txn)), consumer=self.consumer, shard=self.shard)
            if known != detail:
                note(self.pipeline, Event.FROZEN, txn=txn, token=self.token, detail=detail)
        return Frozen(freeze, pipeline=self.name)
