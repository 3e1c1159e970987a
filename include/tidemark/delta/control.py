"""A pipeline's ledgers in a warehouse: `<warehouse>/<pipeline>/_control/…` and each shard's log."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from deltalake import Schema

from tidemark.core.binding import BindingRecord
from tidemark.core.history import CHAPTERS, HISTORY_MARKS, Recovery, TimedChapter
from tidemark.core.ids import ShardId, checked_name, is_name
from tidemark.core.lease import SINCE
from tidemark.core.ledger import UPPER
from tidemark.core.publish import Published
from tidemark.core.seal import Seal
from tidemark.delta.ledger import MARKS, DeltaLedger
from tidemark.delta.log import DeltaLog
from tidemark.delta.records import (
    Codec,
    R,
    attempts_codec,
    checkpoints_codec,
    history_codec,
    journal_codec,
    leases_codec,
    publishes_codec,
)
from tidemark.delta.store import Store, reading


class DeltaControl:
    """One process's view of a pipeline's control plane. Nothing is made before it is committed to.

    `warehouse_uri` is a folder or an object-store address, `storage_options` go to delta-rs.
    `schemas` are the shards' log columns, `properties` what else a log says of itself and can't change; a log
    that exists can be opened without either. A handle on a `growing` one is of no use once others have given
    it columns.
    """

    def __init__(
        self,
        warehouse_uri: str,
        pipeline: str,
        schemas: Mapping[ShardId, Schema] | None = None,
        storage_options: Mapping[str, str] | None = None,
        *,
        properties: Mapping[ShardId, Mapping[str, str]] | None = None,
        growing: Collection[ShardId] = (),
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.root = f"{warehouse_uri.rstrip('/')}/{checked_name(pipeline, what='pipeline')}"
        self._schemas = dict(schemas or {})
        self._properties = dict(properties or {})
        self._growing = frozenset(growing)
        self._options = dict(storage_options or {})
        self._clock_ns = clock_ns
        self.history = self.ledger("history", history_codec(), marks=HISTORY_MARKS)
        self.bindings: TimedChapter[BindingRecord] = TimedChapter(self.history, **CHAPTERS["bindings"])
        self.seals: TimedChapter[Seal] = TimedChapter(self.history, **CHAPTERS["seals"])
        self.recoveries: TimedChapter[Recovery] = TimedChapter(self.history, **CHAPTERS["recoveries"])
        self.attempts = self.ledger("attempts", attempts_codec())
        self.checkpoints = self.ledger("checkpoints", checkpoints_codec())
        self.journal = self.ledger("journal", journal_codec())
        self.leases = self.ledger("leases", leases_codec(), marks=(UPPER, SINCE))
        self._logs: dict[ShardId, DeltaLog] = {}
        self._publishes: dict[ShardId, DeltaLedger[Published]] = {}

    @property
    def tables(self) -> tuple[DeltaLedger[Any], ...]:
        """The control tables, for who looks after them: the pipeline's, and the record of each shard's
        publishes."""
        own = (self.history, self.attempts, self.checkpoints, self.journal, self.leases)
        return (*own, *(self.publishes(shard) for shard in self._schemas))

    def shards(self) -> tuple[ShardId, ...]:
        """The shards that have a folder here, whatever a pipeline file says."""
        with reading(self.root):
            names = Store(self.root, self._options).folders()
        return tuple(ShardId(name) for name in names if is_name(name))

    def ledger(self, name: str, codec: Codec[R], *, marks: Sequence[str] = MARKS) -> DeltaLedger[R]:
        """A control table of this pipeline by its name, with the records that its codec knows. Its
        marks belong to its format: every handle on it must name the same ones."""
        return DeltaLedger(
            f"{self.root}/_control/{checked_name(name, what='control table')}",
            codec,
            storage_options=self._options,
            marks=marks,
            clock_ns=self._clock_ns,
        )

    def log(self, shard: ShardId) -> DeltaLog:
        if shard not in self._logs:
            self._logs[shard] = DeltaLog(
                f"{self.root}/{checked_name(shard, what='shard')}/log",
                shard=shard,
                schema=self._schemas.get(shard),
                properties=self._properties.get(shard),
                grows=shard in self._growing,
                storage_options=self._options,
                clock_ns=self._clock_ns,
            )
        return self._logs[shard]

    def publishes(self, shard: ShardId) -> DeltaLedger[Published]:
        if shard not in self._publishes:
            self._publishes[shard] = DeltaLedger(
                f"{self.root}/{checked_name(shard, what='shard')}/publishes",
                publishes_codec(),
                storage_options=self._options,
                clock_ns=self._clock_ns,
            )
        return self._publishes[shard]
