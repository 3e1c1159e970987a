"""A pipeline's ledgers in a warehouse: `<warehouse>/<pipeline>/_control/…` and each shard's log."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from deltalake import Schema

from tidemark.core.binding import Binding, BindingRecord
from tidemark.core.generation import Candidate
from tidemark.core.history import CHAPTERS, HISTORY_MARKS, Recovery, TimedChapter
from tidemark.core.ids import ShardId, Txn, checked_name, is_name
from tidemark.core.lease import LEASE_MARKS
from tidemark.core.publish import Published, StateCommit
from tidemark.core.seal import Seal, replaced_mark
from tidemark.delta.ledger import MARKS, DeltaLedger
from tidemark.delta.log import DeltaLog
from tidemark.delta.records import (
    Codec,
    R,
    attempts_codec,
    checkpoints_codec,
    cuts_codec,
    history_codec,
    journal_codec,
    leases_codec,
    publishes_codec,
)
from tidemark.delta.settings import Settings
from tidemark.delta.state_status import newest_commit
from tidemark.delta.store import Store, address_of, reading

ADDRESS = "tidemark.address"
"""A property of the history's table: the address that it was created at."""


class DeltaControl:
    """One process's handle on a pipeline's control plane. A table is created by its first commit.

    `warehouse_uri` is a folder or an object-store address; `storage_options` are passed to delta-rs.
    `schemas` are the columns of the shards' logs, `properties` their fixed table properties; an existing log
    can be opened without either. If another process adds columns to a `growing` log, this handle can no
    longer be used for it, nor for one that a generation above `generation` has replaced."""

    def __init__(
        self,
        warehouse_uri: str,
        pipeline: str,
        schemas: Mapping[ShardId, Schema] | None = None,
        storage_options: Mapping[str, str] | None = None,
        *,
        properties: Mapping[ShardId, Mapping[str, str]] | None = None,
        growing: Collection[ShardId] = (),
        generation: int = 0,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.root = f"{warehouse_uri.rstrip('/')}/{checked_name(pipeline, what='pipeline')}"
        self._schemas = dict(schemas or {})
        self._properties = dict(properties or {})
        self._growing = frozenset(growing)
        self._generation = generation
        self._options = dict(storage_options or {})
        self._clock_ns = clock_ns
        self.address = address_of(self.root)
        self.settings = Settings(f"{self.root}/_control/settings", self._options)
        self.history = self.ledger(
            "history", history_codec(), marks=HISTORY_MARKS, properties={ADDRESS: self.address}
        )
        self.bindings: TimedChapter[Binding] = TimedChapter(self.history, **CHAPTERS["bindings"])
        self.owned: TimedChapter[BindingRecord] = TimedChapter(self.history, **CHAPTERS["owned"])
        self.seals: TimedChapter[Seal] = TimedChapter(self.history, **CHAPTERS["seals"])
        self.recoveries: TimedChapter[Recovery] = TimedChapter(self.history, **CHAPTERS["recoveries"])
        self.candidates: TimedChapter[Candidate] = TimedChapter(self.history, **CHAPTERS["candidates"])
        self.attempts = self.ledger("attempts", attempts_codec())
        self.checkpoints = self.ledger("checkpoints", checkpoints_codec())
        self.journal = self.ledger("journal", journal_codec())
        self.leases = self.ledger("leases", leases_codec(), marks=LEASE_MARKS)
        self.cuts = self.ledger("cuts", cuts_codec())
        self._logs: dict[ShardId, DeltaLog] = {}
        self._publishes: dict[ShardId, DeltaLedger[Published]] = {}

    @property
    def made_at(self) -> str:
        return self.history.property_of(ADDRESS)

    @property
    def tables(self) -> tuple[DeltaLedger[Any], ...]:
        """The control tables, for maintenance: the pipeline's own, and each shard's record of publishes."""
        own = (self.history, self.attempts, self.checkpoints, self.journal, self.leases, self.cuts)
        return (*own, *(self.publishes(shard) for shard in self._schemas))

    def shards(self) -> tuple[ShardId, ...]:
        """The shards that have a folder in the warehouse, whether or not a pipeline file declares them."""
        with reading(self.root):
            names = Store(self.root, self._options).folders()
        return tuple(ShardId(name) for name in names if is_name(name))

    def ledger(
        self,
        name: str,
        codec: Codec[R],
        *,
        marks: Sequence[str] = MARKS,
        properties: Mapping[str, str] | None = None,
    ) -> DeltaLedger[R]:
        """A control table of this pipeline. The marks belong to its format: all handles must declare the same
        ones."""
        return DeltaLedger(
            f"{self.root}/_control/{checked_name(name, what='control table')}",
            codec,
            storage_options=self._options,
            marks=marks,
            properties=properties,
            settings=self.settings,
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
                generation=self._generation,
                is_awaited=partial(self._is_replaced, shard),
                storage_options=self._options,
                clock_ns=self._clock_ns,
            )
        return self._logs[shard]

    def _is_replaced(self, shard: ShardId, upper: Txn) -> bool:
        """Whether a sealed transaction that a log with this upper lacks replaces it. Asked through a handle
        of its own: a decision may be using the loaded version of the history."""
        history = self.ledger("history", history_codec(), marks=HISTORY_MARKS)
        history.head()
        return history.mark(replaced_mark(shard)) >= upper

    def publishes(self, shard: ShardId) -> DeltaLedger[Published]:
        if shard not in self._publishes:
            self._publishes[shard] = DeltaLedger(
                f"{self.root}/{checked_name(shard, what='shard')}/publishes",
                publishes_codec(),
                storage_options=self._options,
                clock_ns=self._clock_ns,
            )
        return self._publishes[shard]

    def state_commit(self, shard: ShardId, *, after: int) -> StateCommit | None:
        return newest_commit(f"{self.root}/{checked_name(shard, what='shard')}/state", after, self._options)
