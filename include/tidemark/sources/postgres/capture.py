"""Capture: what the slot has above the last binding, into change files, up to a commit.

Peeking changes nothing in the slot, so the same is seen again until it is acknowledged; commits that are
bound already are passed over (Invariant 1). A peek is asked for so many changes; when all of them are bound,
for more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

import psycopg

from tidemark.config.model import PipelineConfig
from tidemark.config.shard import ShardConfig
from tidemark.config.source import PostgresSource
from tidemark.core.binding import Step
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.frontier import Frontier
from tidemark.core.ids import ShardId
from tidemark.ports.source import KeptKeys
from tidemark.sources.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Update,
    parse,
)
from tidemark.sources.postgres.changes import WAL, ChangeFiles, StepCutter
from tidemark.sources.postgres.records import Table, place_of, swept, truncated
from tidemark.sources.postgres.slot import peek
from tidemark.sources.postgres.tables import taken_shards

logger = logging.getLogger(__name__)

CHANGES_PER_PEEK: Final = 500_000
_ROWS: Final = frozenset(b"IUDT")


class NotYet(Exception):
    """A truncate can be taken only when everything before it is in the shard's log."""


def while_paused(fact: str, shard: ShardId) -> InvalidUsage:
    """What needs all of a shard in its log is refused while that waits: it may be for days."""
    hint = f"release it first: tidemark release PIPELINE {shard} --reason …"
    return InvalidUsage(f"{fact} while shard {shard} is paused", hint=hint)


class Capture:
    """One reading of the slot, from the last binding on. `waits` says that it ends before a truncate, which
    can be taken once everything before it is done."""

    def __init__(
        self,
        config: PipelineConfig,
        files: ChangeFiles,
        lower: Frontier,
        snapshots: Mapping[str, int],
        kept: KeptKeys,
        *,
        follows: bool,
    ) -> None:
        self.waits = False
        self._follows = follows
        self._applies = isinstance(config.source, PostgresSource) and config.source.on_truncate == "apply"
        self._kept = kept
        self._touched: set[int] = set()
        self._shards = taken_shards(config)
        self._lower = lower[WAL]
        self._snapshots = dict(snapshots)
        self._cutter = StepCutter(files, config.transaction, lower, self._snapshots)
        self._relations: dict[int, Relation] = {}
        self._tables: dict[int, Table] = {}
        self._places: dict[int, str] = {}
        self._begun: Begin | None = None
        self._is_ours = self._is_alone = False

    def take(self, messages: Iterator[bytes]) -> None:
        """Hear all messages of a peek. What must be refused ends it at the commit before, and is raised
        only when nothing comes before it: so everything up to there is bound under the settings of now."""
        try:
            for data in messages:
                # Rows of what is bound already aren't worth parsing.
                if self._begun is not None and data[0] in _ROWS and self._begun.lsn < self._lower:
                    continue
                self._hear(parse(data))
        except InvalidUsage:
            self._cutter.abandon()
            self._cutter.close()
            if not self._cutter.steps:
                raise
        except NotYet:
            self._cutter.abandon()
            self.waits = True
        self._cutter.close()

    @property
    def steps(self) -> Sequence[Step]:
        return self._cutter.steps

    def _hear(self, message: Message) -> None:
        match message:
            case Begin():
                self._begun, self._places, self._touched = message, {}, set()
                self._is_ours = self._is_alone = False
                self._cutter.begin(message.lsn)
            case Commit():
                if self._is_ours:
                    self._cutter.commit(message.end_lsn, alone=self._is_alone)
                self._begun = None
            case Relation():
                self._relations[message.oid] = message
                self._tables.pop(message.oid, None)
                self._places.pop(message.oid, None)
            case Insert() | Update() | Delete():
                self._row(message)
            case Truncate():
                self._truncate(message)
            case _:
                pass  # Types are known by their oid, origins and messages are no rows.

    def _row(self, message: Insert | Update | Delete) -> None:
        relation, shard = self._known(message.relation)
        if shard is None or self._begun is None:
            return
        self._is_ours = True
        if self._is_in_snapshot(relation, self._begun):
            return
        self._touched.add(relation.oid)
        table = self._tables.get(relation.oid)
        if table is None:
            table = self._tables[relation.oid] = Table.of(relation, shard)
        for line in table.lines(message, self._place(relation, self._begun)):
            self._cutter.record(line)

    def _truncate(self, message: Truncate) -> None:
        for oid in message.relations:
            relation, shard = self._known(oid)
            if shard is None or self._begun is None:
                continue
            self._is_ours = True
            if self._is_in_snapshot(relation, self._begun):
                continue
            self._is_alone = True
            place = self._place(relation, self._begun)
            # Rows of the same source transaction are in no log yet, so their keys can't be swept.
            if not self._applies or oid in self._touched:
                self._cutter.record(truncated(place))
                continue
            name = ShardId(shard.name)
            if self._kept.is_paused(name):
                raise while_paused(f"a truncate of {relation.name} can't be applied", name)
            if self._follows or self._cutter.is_begun or not self._kept.is_settled(name):
                logger.info("a truncate of %s waits until everything before it is done", relation.name)
                raise NotYet
            for key in self._kept.keys(name, shard.keys):
                self._cutter.record(swept(key, shard, place))

    def _place(self, relation: Relation, begun: Begin) -> str:
        """Where a row of the open transaction comes from; the same for all of a table."""
        if relation.oid not in self._places:
            self._places[relation.oid] = place_of(relation, lsn=begun.lsn, xid=begun.xid)
        return self._places[relation.oid]

    def _is_in_snapshot(self, relation: Relation, begun: Begin) -> bool:
        """Whether the first reading of the table has this change already."""
        return begun.lsn < self._snapshots.get(relation.name, 0)

    def _known(self, oid: int) -> tuple[Relation, ShardConfig | None]:
        relation = self._relations.get(oid)
        if relation is None:
            raise InvariantViolation(f"a row of table {oid} came before the table was described")
        return relation, self._shards.get(relation.name)


def captured(
    db: psycopg.Connection,
    config: PipelineConfig,
    source: PostgresSource,
    files: ChangeFiles,
    lower: Frontier,
    snapshots: Mapping[str, int],
    kept: KeptKeys,
    *,
    follows: bool,
) -> Capture:
    """What can be bound above `lower`, its files durable; nothing only when the slot has nothing more, or
    when what it has must wait. `follows` says that something is to be bound before it."""
    changes_max = CHANGES_PER_PEEK
    while True:
        messages = Counted(peek(db, source.slot, source.publication, changes_max=changes_max))
        capture = Capture(config, files, lower, snapshots, kept, follows=follows)
        capture.take(messages)
        if capture.steps or capture.waits or messages.count < changes_max:
            return capture
        changes_max *= 4


class Counted(Iterator[bytes]):
    """Messages, and how many of them there were so far."""

    def __init__(self, messages: Iterator[bytes]) -> None:
        self._messages = messages
        self.count = 0

    def __next__(self) -> bytes:
        found = next(self._messages)
        self.count += 1
        return found


def first_needed(messages: Iterator[bytes], tables: Set[str]) -> tuple[int, bool]:
    """Where the last commit ends before the first one that touches these tables, 0 when there is none, and
    whether there is one that does."""
    relations: dict[int, str] = {}
    reached = 0
    for data in messages:
        message = parse(data)
        match message:
            case Relation():
                relations[message.oid] = message.name
            case Insert() | Update() | Delete():
                if relations.get(message.relation) in tables:
                    return reached, True
            case Truncate():
                if any(relations.get(oid) in tables for oid in message.relations):
                    return reached, True
            case Commit():
                reached = message.end_lsn
            case _:
                pass
    return reached, False
