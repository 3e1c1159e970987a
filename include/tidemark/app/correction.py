"""The difference between the tables of a pipeline and of its candidate, staged for a promotion."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from tidemark.app.deployment import Deployment
from tidemark.app.views import View, open_errors, read, read_quarantine, read_tombstones
from tidemark.config import PipelineConfig
from tidemark.core.generation import Correction
from tidemark.core.ids import QUARANTINE, ShardId, Txn, WriterToken

if TYPE_CHECKING:
    from tidemark.spark.correction import Dead


class TableCorrector:
    """The `Corrector` of a promotion. `target` is the pipeline as it will be, `shadow` the candidate, and
    `before` has the settings that are in charge."""

    def __init__(self, target: Deployment, shadow: Deployment, *, before: PipelineConfig) -> None:
        self._target, self._shadow = target, shadow
        self._before = {shard.name: shard.lateness_number for shard in before.shards}

    @property
    def engine(self) -> str:
        return self._target.plane().engine

    def correct(self, shard: ShardId, *, txn: Txn, token: WriterToken, watermark: int | None) -> Correction:
        if shard == QUARANTINE:
            return self._correct_quarantine(txn, token)
        plane, as_of = self._target.plane(), txn - 1
        old, new = (read(one, shard, view=View.FRESH, as_of=as_of) for one in (self._target, self._shadow))
        lacking = sorted(set(new.columns) - set(self._target.config.shard(shard).columns.names))
        if lacking:
            return Correction(
                refused=f"its records have columns that only the candidate has found: {', '.join(lacking)};"
                " declare them in the file"
            )
        dead = self._dead(shard, txn, watermark)
        return plane.correct(shard, old=old, new=new, txn=txn, token=token, dead=dead)

    def _correct_quarantine(self, txn: Txn, token: WriterToken) -> Correction:
        old, new = (read_quarantine(one, as_of=txn - 1) for one in (self._target, self._shadow))
        errors = [open_errors(self._shadow, one) for one in self._shadow.shards]
        return self._target.plane().correct(
            QUARANTINE,
            old=old,
            new=new,
            txn=txn,
            token=token,
            still_open=reduce(lambda all_, one: all_.unionAll(one), errors),
        )

    def _dead(self, shard: ShardId, txn: Txn, watermark: int | None) -> Dead:
        """The tombstones of both generations before a transaction. Later records are judged by the watermark
        that the promotion seals, so it says which tombstones they could still lose to. Those of the old
        generation that are too late by its own lateness may be removed by maintenance at any time."""
        from tidemark.spark.correction import Dead

        now = self._target.config.shard(shard).lateness_number
        latenesses = (now, self._before.get(shard))
        line, old_line = (
            None if lateness is None or watermark is None else watermark - lateness for lateness in latenesses
        )
        old, new = (read_tombstones(one, shard, as_of=txn - 1) for one in (self._target, self._shadow))
        return Dead(old, new, line, old_line)
