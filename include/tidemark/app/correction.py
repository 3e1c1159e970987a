"""The difference between the tables of a pipeline and of its candidate, staged for a promotion."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import TYPE_CHECKING, Final

from tidemark.app.deployment import Deployment
from tidemark.app.views import fresh_pins, open_errors, read_quarantine
from tidemark.config import PipelineConfig
from tidemark.core.binding import Configuration
from tidemark.core.errors import InvalidUsage
from tidemark.core.generation import Correction
from tidemark.core.ids import QUARANTINE, ShardId, Txn, WriterToken
from tidemark.core.publish import StateOverwritten
from tidemark.pipeline.publish import check_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemark.spark.correction import Comparison, Dead
    from tidemark.spark.state_table import StateSpec, StateSpecs
    from tidemark.spark.views import Pins

_NOT_OF_ROWS: Final = frozenset(
    ("alarms", "generation", "name", "on_red", "retention", "schedule", "shards", "tables", "transaction",
     "warehouse")
)  # fmt: skip
"""Settings of a pipeline that don't decide what a record becomes in a shard that it is routed to."""


@dataclass(frozen=True, slots=True)
class Side:
    """One generation's tables of a shard, as of a transaction."""

    spec: StateSpec
    pins: Pins


class TableCorrector:
    """The `Corrector` of a promotion. `target` is the pipeline as it will be, `shadow` the candidate, and
    `before` has the settings that are in charge."""

    def __init__(self, target: Deployment, shadow: Deployment, *, before: PipelineConfig) -> None:
        self._target, self._shadow = target, shadow
        self._before = {shard.name: shard.lateness_number for shard in before.shards}

    @property
    def engine(self) -> str:
        return self._target.plane().engine

    def settings(self, configuration: Configuration, shard: ShardId) -> str | None:
        """All settings of the shard and of the pipeline that could make another row of a record. None for
        quarantine, whose open errors are of all shards, and for a shard with a lateness, whose tables
        forget tombstones that their log has."""
        return settings_by_shard(configuration).get(shard)

    def check(self, shards: Sequence[ShardId], *, upper: Txn, replaced: Collection[ShardId] = ()) -> None:
        """Check the states of both generations that are read. What is folded from a log was read back before
        it was sealed."""
        for shard in shards:
            if shard == QUARANTINE:
                continue
            new = self._new(shard, Txn(upper - 1))
            old = self._old(shard, Txn(upper - 1)) if shard not in replaced else None
            if old is not None and old.pins.base is not None:
                check_rows(self._target.state(), shard, old.pins.base)
            if new.pins.base is None:
                continue
            try:
                check_rows(self._shadow.state(), shard, new.pins.base)
            except StateOverwritten as error:
                raise InvalidUsage(
                    f"the candidate's table is damaged: {error.fact}",
                    hint="nothing has changed; abort the candidate, and start it again",
                ) from error

    def correct(
        self,
        shards: Sequence[ShardId],
        *,
        txn: Txn,
        token: WriterToken,
        watermark: int | None,
        replaced: Collection[ShardId] = (),
    ) -> Mapping[ShardId, Correction]:
        """Spark plans a small job in one thread, so several shards are compared at once."""
        from tidemark.spark.correction import CONFS
        from tidemark.spark.session import confs_set, in_parallel

        if not shards:
            return {}
        # A ledger handle is for one thread.
        known = [shard for shard in shards if shard != QUARANTINE]
        new = {shard: self._new(shard, Txn(txn - 1)) for shard in known}
        old = {shard: self._old(shard, Txn(txn - 1)) for shard in known if shard not in replaced}
        self._target.plane()

        def work(shard: ShardId) -> Correction:
            return self._correct(shard, old.get(shard), new[shard], txn=txn, token=token, watermark=watermark)

        # The confs are the session's, so no shard may set them back while another one is written.
        with confs_set(self._target.session(), CONFS):
            found = dict(zip(known, in_parallel(work, known), strict=True))
            if QUARANTINE in shards:
                found[QUARANTINE] = self._correct_quarantine(txn, token)
        return found

    def compare(
        self,
        shards: Sequence[ShardId],
        *,
        upper: Txn,
        keys_max: int,
        masked: Mapping[ShardId, Collection[str]],
    ) -> dict[ShardId, Comparison]:
        """How the rows of shards would change, as of the transaction before `upper`, for people."""
        from tidemark.spark.session import in_parallel

        sides = {shard: self._sides(shard, Txn(upper - 1)) for shard in shards}
        plane = self._target.plane()

        def work(shard: ShardId) -> Comparison:
            old, new = map(self._rows, sides[shard])
            hidden = masked.get(shard, ())
            return plane.compare(shard, old=old, new=new, limit=keys_max, masked=hidden)

        return dict(zip(shards, in_parallel(work, shards), strict=True))

    @cached_property
    def _specs(self) -> tuple[StateSpecs, StateSpecs]:
        from tidemark.spark.state_table import specs_of

        return specs_of(self._target.config), specs_of(self._shadow.config)

    def _sides(self, shard: ShardId, as_of: Txn) -> tuple[Side, Side]:
        return self._old(shard, as_of), self._new(shard, as_of)

    def _old(self, shard: ShardId, as_of: Txn) -> Side:
        spec = self._specs[0].of(shard)
        return Side(spec, fresh_pins(self._target, spec, as_of=as_of))

    def _new(self, shard: ShardId, as_of: Txn) -> Side:
        spec = self._specs[1].of(shard)
        return Side(spec, fresh_pins(self._shadow, spec, as_of=as_of))

    def _correct(
        self,
        shard: ShardId,
        old: Side | None,
        new: Side,
        *,
        txn: Txn,
        token: WriterToken,
        watermark: int | None,
    ) -> Correction:
        """The difference of a shard's rows; without an old side, all rows."""
        from tidemark.spark.tables import no_rows

        after = self._rows(new)
        before = self._rows(old) if old is not None else no_rows(self._target.session(), new.spec.declared)
        lacking = sorted(set(after.columns) - set(self._target.config.shard(shard).columns.names))
        if lacking:
            return Correction(
                refused=f"its records have columns that only the candidate has found: {', '.join(lacking)};"
                " declare them in the file"
            )
        dead = self._dead(old, new, watermark)
        plane = self._target.plane()
        return plane.correct(shard, old=before, new=after, txn=txn, token=token, dead=dead)

    def _rows(self, side: Side) -> DataFrame:
        from tidemark.spark.views import fresh

        return fresh(self._target.session(), side.spec, side.pins)

    def _dead(self, old: Side | None, new: Side, watermark: int | None) -> Dead:
        """The tombstones of both generations before a transaction. Later records are judged by the watermark
        that the promotion seals, so it says which tombstones they could still lose to. Those of the old
        generation that are too late by its own lateness may be removed by maintenance at any time."""
        from tidemark.spark.correction import Dead
        from tidemark.spark.views import tombstones

        target = self._specs[0].of(ShardId(new.spec.name))
        latenesses = (target.lateness, self._before.get(target.name))
        line, old_line = (
            None if lateness is None or watermark is None else watermark - lateness for lateness in latenesses
        )
        spark = self._target.session()
        before, after = (
            tombstones(spark, side.spec, side.pins) if side is not None else None for side in (old, new)
        )
        return Dead(before, after, line, old_line)

    def _correct_quarantine(self, txn: Txn, token: WriterToken) -> Correction:
        old, new = (read_quarantine(one, as_of=txn - 1) for one in (self._target, self._shadow))
        touched = self._quarantined(new)
        errors = [open_errors(self._shadow, one) for one in self._shadow.shards if one in touched]
        return self._target.plane().correct(
            QUARANTINE,
            old=old,
            new=new,
            txn=txn,
            token=token,
            still_open=reduce(lambda all_, one: all_.unionAll(one), errors) if errors else new.limit(0),
        )

    @staticmethod
    def _quarantined(records: DataFrame) -> set[str]:
        """The shards that have records in quarantine: few of many have open errors to look for."""
        from tidemark.spark.decode import SHARD

        return {row[SHARD] for row in records.select(SHARD).distinct().collect()}


@lru_cache(maxsize=16)
def settings_by_shard(configuration: Configuration) -> Mapping[str, str]:
    """For each shard without a lateness, all settings that could make another row of a record. Whatever is
    not known to be something else is one of them."""
    found = json.loads(configuration.text)
    shared = {name: value for name, value in found.items() if name not in _NOT_OF_ROWS}
    return {
        shard["name"]: json.dumps([shared, shard], sort_keys=True)
        for shard in found.get("shards", ())
        if shard.get("lateness") is None
    }
