"""The capture of changes from a slot into change files, from the last binding up to a commit.

Before a capture, the pipeline's tables are compared with those of the last binding: which must be read, and
whether the others are unchanged (`known_readings`, `wanted_tables`, `SameTables`).

Peeking does not move the slot, so it returns the same changes until they are acknowledged. The capture skips
commits that are already bound (Invariant 1). A peek has a limited number of changes; if all of them are
bound, a larger peek follows.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import psycopg

from tidemark.config.model import PipelineConfig
from tidemark.config.shard import ShardConfig
from tidemark.config.source import PostgresSource
from tidemark.core.binding import Binding, Step
from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.ids import Frontier, ShardId
from tidemark.ports.control import Ledger
from tidemark.ports.source import ShardKeysPort
from tidemark.sources.files.bound_files import Manifest, TableRead
from tidemark.sources.postgres.catalog import (
    CatalogFacts,
    is_rewritten,
    put_facts,
    recorded_facts,
    reread,
    truncated_tables,
)
from tidemark.sources.postgres.change_files import WAL, ChangeFiles, StepCutter
from tidemark.sources.postgres.pgoutput import (
    Begin,
    Broken,
    Commit,
    Messages,
    Numbers,
    Relation,
    Truncate,
    parse,
)
from tidemark.sources.postgres.records import (
    Deferred,
    Table,
    Taken,
    not_apart,
    place_of,
    sweep_of,
    swept_away,
    truncated,
)
from tidemark.sources.postgres.slot import Counted, peek
from tidemark.sources.postgres.snapshot import asked_again
from tidemark.sources.postgres.tables import PublishedTable, shape_flaws, taken_shards
from tidemark.sources.postgres.values import Lines, ordered

# Which tables are read, and whether they are still the same.


def with_its_settings(bindings: Ledger[Binding], last: Binding | None) -> Binding | None:
    """The last binding with the configuration that its tables were read with. A promotion has that of its
    candidate, and reads nothing."""
    before = last
    while before is not None and before.promotes:
        found = bindings.read(before.txn - 1, before.txn)
        before = found[0] if found else None
    return last if last is None or before is None else last.under(before.configuration)


def known_readings(config: PipelineConfig, last: Binding | None) -> dict[str, TableRead]:
    """The bound snapshot of each table in its current shard. Tables that left the pipeline, or go to another
    shard now, are left out.

    Both need a higher generation (`InvalidUsage`): otherwise a process with an older pipeline file would
    silently skip the changes of a table that was added."""
    if last is None:
        return {}
    known = dict(Manifest.from_json(last.manifest).snapshots)
    shards, before = taken_shards(config), _shards_of(last)
    left = sorted(known.keys() - shards.keys())
    both = known.keys() & shards.keys()
    moved = sorted(table for table in both if before.get(table) != shards[table].name)
    if config.tables is not None and any(config.tables.asks_source(table) for table in left):
        fact = f"another run has added tables meanwhile: {', '.join(left)}"
        raise Determinate(fact, hint="run again: they are in the pipeline's record of its tables now")
    bound = last.configuration.generation
    if config.generation < bound or ((left or moved) and config.generation == bound):
        what = f"table {[*left, *moved][0]} is captured" if left or moved else "changes are bound"
        raise InvalidUsage(
            f"{what} by generation {bound} of the pipeline, and this is generation"
            f" {config.generation} {'with another shard for it' if moved else 'without it'}",
            hint="use the newest pipeline file; to remove a table from it, or to move one to another"
            " shard, raise its generation",
        )
    return {table: read for table, read in known.items() if table not in left and table not in moved}


def wanted_tables(
    config: PipelineConfig, files: ChangeFiles, known: Mapping[str, TableRead]
) -> dict[str, int]:
    """The tables that need a snapshot, with the position that it must reach at least."""
    asked = asked_again(files)
    return {
        name: asked.get(name, 0)
        for name in sorted(taken_shards(config))
        if name not in known or known[name].lsn < asked.get(name, 0)
    }


class SameTables:
    """Checks that tables are still the ones that were read, without changes that the WAL does not carry."""

    def __init__(
        self,
        db: psycopg.Connection,
        source: PostgresSource,
        files: ChangeFiles,
        published: Mapping[str, PublishedTable],
        *,
        lower: int,
    ) -> None:
        self._db, self._source, self._files, self._published = db, source, files, published
        self._lower = lower

    def refusals(
        self, known: Mapping[str, TableRead], shards: Mapping[str, ShardConfig], *, anew: Container[str]
    ) -> Iterator[InvalidUsage]:
        """The errors of all tables. A table that this run reads (`anew`) only needs columns that fit its
        shard. A changed table is checked for that too, because it must be read again."""
        for table, shard in shards.items():
            flaws = [] if table in anew else list(self.flaws({table: known[table]}))
            yield from flaws
            if flaws or table in anew:
                yield from shape_flaws(self._published, {table: shard})

    def flaws(self, known: Mapping[str, TableRead]) -> Iterator[InvalidUsage]:
        """An error, with the remedy, for each table that has changed; none for one without a record."""
        for table, read in known.items():
            if read.oid not in (0, self._published[table].relation.oid):
                yield another_table(table)
                continue
            try:
                before, now = recorded_facts(self._files, table, read), self._published[table].facts
            except InvalidUsage as error:
                yield error
                continue
            if before is None:
                continue
            if found := [*before.differences(now), *self._rewritten(table, before, now)]:
                yield InvalidUsage(f"table {table}: {', '.join(found)}", hint=reread(table))

    def _rewritten(self, table: str, before: CatalogFacts, now: CatalogFacts) -> Iterator[str]:
        """A reason, if all rows of the table, or of a partition, are new, and no truncate explains it."""
        for oid in before.other_files(now):
            if is_rewritten(self._db, oid, since=before.since.get(oid, 0)):
                if self._published[table].relation.oid not in self._truncated:
                    yield "its rows were rewritten or temporarily not logged, so changes were not sent"
                return

    @cached_property
    def _truncated(self) -> set[int]:
        source = self._source
        return truncated_tables(self._db, source.slot, source.publication, lower=self._lower)

    def recorded(self, table: str, read: TableRead) -> TableRead:
        """The snapshot with a record of the current catalog entry."""
        before, published = recorded_facts(self._files, table, read), self._published[table]
        facts = published.facts if before is None else before.carried_on(published.facts)
        name = read.catalog if facts == before else put_facts(self._files, facts)
        return replace(read, oid=read.oid or published.relation.oid, catalog=name)


def another_table(table: str) -> InvalidUsage:
    """The error for a table that has the name of another one. Rows of two tables are never mixed."""
    return InvalidUsage(
        f"table {table} is not the one that was read: it was dropped and created again, or renamed",
        hint=reread(table),
    )


def _shards_of(binding: Binding) -> dict[str, str]:
    """The shard of each table in a binding's configuration."""
    shards = json.loads(binding.configuration.text)["shards"]
    return {shard["route"]["table"]: shard["name"] for shard in shards if shard.get("route")}


# Capture.

logger = logging.getLogger(__name__)

CHANGES_PER_PEEK: Final = 500_000
_NOT_TAKEN: Final = -1
Bound = tuple[int, Begin | Commit]
"""A message that begins or ends a source transaction, with its number."""


class NotYet(Exception):
    """A truncate can be captured only once everything before it is in the shard's log."""


def while_paused(fact: str, shard: ShardId) -> InvalidUsage:
    """The error for an operation that must wait for a paused shard's log. The pause may last for days, so it
    is an error and not a wait."""
    hint = f"release it first: tidemark release PIPELINE {shard} --reason …"
    return InvalidUsage(f"{fact} while shard {shard} is paused", hint=hint)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a capture starts, the snapshots of the tables, and the tables as they are now. `follows` is
    whether this offer has steps before the capture's."""

    lower: Frontier
    snapshots: Mapping[str, TableRead]
    published: Mapping[str, PublishedTable]
    follows: bool


class Capture:
    """One pass over the slot, from the last binding on. `waits` is whether it ends before a truncate that can
    be captured only once everything before it is done."""

    def __init__(
        self, config: PipelineConfig, files: ChangeFiles, start: Start, shard_keys: ShardKeysPort
    ) -> None:
        self.waits = False
        self._follows = start.follows
        self._applies = isinstance(config.source, PostgresSource) and config.source.on_truncate == "apply"
        self._shard_keys = shard_keys
        self._touched: set[int] = set()
        self._shards = taken_shards(config)
        self._lower = start.lower[WAL]
        self._snapshots = dict(start.snapshots)
        self._names = {read.oid: name for name, read in start.snapshots.items()}
        now = {table.relation.oid: table for table in start.published.values()}
        self._has = {oid: table.facts.columns.keys() for oid, table in now.items()}
        self._deferrable = {oid for oid, table in now.items() if table.is_deferrable}
        self._deferred = Deferred()
        self._cutter = StepCutter(files, config.transaction, start.lower, self._snapshots)
        self._relations: dict[int, Relation] = {}
        self._tables: dict[int, Table] = {}
        self._begun: Begin | None = None
        self._is_ours = self._is_alone = False

    def take(self, batches: Iterable[Sequence[bytes]]) -> None:
        """Process all messages of a peek. A change that must be refused ends the capture at the commit before
        it. The error is raised only if nothing comes before it, so that everything before it is bound with
        the current settings."""
        try:
            for batch in batches:
                self._hear(Messages(batch))
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

    def _hear(self, messages: Messages) -> None:
        """Process a batch. Rows are processed together unless a table's columns change, or a truncate comes,
        between them."""
        first, bounds = 0, list[Bound]()
        for at in np.flatnonzero(~messages.is_row).tolist():
            try:
                message = parse(messages.messages[at])
            except InvalidUsage:
                self._rows(messages, first, at, bounds)
                raise
            match message:
                case Begin() | Commit():
                    bounds.append((at, message))
                case Relation() if self._relations.get(message.oid, message) == message:
                    self._relations[message.oid] = message
                case Relation() | Truncate():
                    self._rows(messages, first, at, bounds)
                    first, bounds = at + 1, []
                    if isinstance(message, Truncate):
                        self._truncate(message)
                    elif message.oid in self._deferred:
                        raise not_apart(message.name)
                    else:
                        self._relations[message.oid] = message
                        self._tables.pop(message.oid, None)
                case _:
                    pass  # Types are identified by their oids; origins and logical messages have no rows.
        self._rows(messages, first, len(messages.messages), bounds)

    def _rows(self, messages: Messages, first: int, end: int, bounds: Sequence[Bound]) -> None:
        """Process the rows, begins and commits of the messages in [first, end)."""
        refusal: InvalidUsage | None = None
        while True:
            heard = [bound for bound in bounds if bound[0] < end]
            try:
                taken = self._taken(messages, first, end, heard)
                break
            except Broken as broken:
                # Process the messages before it.
                end, refusal = broken.at, broken.error
        self._hand_over(taken, heard)
        if refusal is not None:
            raise refusal

    def _taken(self, messages: Messages, first: int, end: int, bounds: Sequence[Bound]) -> Taken:
        """The records of the rows that the pipeline needs. The source transaction that is open at the start
        has the number 0."""
        begins = [(at, bound) for at, bound in bounds if isinstance(bound, Begin)]
        begun = [self._begun, *(begin for _, begin in begins)]
        rows = first + np.flatnonzero(messages.is_row[first:end])
        transactions = np.searchsorted([at for at, _ in begins], rows)
        oids, which = np.unique(messages.relations[rows], return_inverse=True)
        pairs, firsts, pair_of = np.unique(
            transactions * len(oids) + which, return_index=True, return_inverse=True
        )
        taken, places = Taken(), defaultdict[int, list[bytes]](list)
        place_of_pair = np.full(len(pairs), _NOT_TAKEN)
        for at, pair in enumerate(pairs.tolist()):
            transaction, oid = pair // len(oids), int(oids[pair % len(oids)])
            begin = begun[transaction]
            # Skip rows that are already bound.
            if begin is None or begin.lsn < self._lower:
                continue
            relation, shard = self._known(oid)
            if shard is None:
                continue
            taken.ours.add(transaction)
            try:
                if self._is_in_snapshot(relation, begin):
                    continue
                if oid not in self._tables:
                    self._tables[oid] = Table.of(relation, shard, has=self._has.get(oid))
            except InvalidUsage as error:
                raise Broken(int(rows[firsts[at]]), error) from None
            taken.touched[transaction].add(oid)
            place_of_pair[at] = len(places[oid])
            places[oid].append(place_of(relation, lsn=begin.lsn, xid=begin.xid))
        place_of_row = place_of_pair[pair_of]
        parts: list[tuple[Lines, Numbers]] = []
        for at, oid in enumerate(oids.tolist()):
            mine = (which == at) & (place_of_row != _NOT_TAKEN)
            if oid not in places:
                continue
            if oid in self._deferrable:
                events = self._tables[oid].events(messages, rows[mine], places[oid], place_of_row[mine])
                for transaction, some in zip(transactions[mine].tolist(), events, strict=True):
                    taken.deferred[transaction].append((oid, some))
            else:
                parts += self._tables[oid].changes(messages, rows[mine], places[oid], place_of_row[mine])
        taken.lines, taken.order = ordered(parts)
        return taken

    def _hand_over(self, taken: Taken, bounds: Sequence[Bound]) -> None:
        """Pass records, begins and commits to the cutter in their order."""
        transaction = done = 0
        self._defer(taken, transaction)
        self._is_ours |= transaction in taken.ours
        self._touched |= taken.touched[transaction]
        ends = np.searchsorted(taken.order, [2 * at for at, _ in bounds]).tolist()
        for (_, bound), end in zip(bounds, ends, strict=True):
            self._cutter.records(taken.lines, done, end)
            done = end
            if isinstance(bound, Begin):
                transaction += 1
                self._begun, self._is_alone = bound, False
                self._is_ours = transaction in taken.ours
                self._touched = taken.touched[transaction]
                self._cutter.begin(bound.lsn)
                self._defer(taken, transaction)
            else:
                settled = self._deferred.settled()
                self._cutter.records(settled, 0, len(settled))
                if self._is_ours:
                    self._cutter.commit(bound.end_lsn, alone=self._is_alone)
                self._begun = None
        self._cutter.records(taken.lines, done, len(taken.lines))

    def _defer(self, taken: Taken, transaction: int) -> None:
        for oid, events in taken.deferred[transaction]:
            self._deferred.add(oid, self._relations[oid].name, events)

    def _truncate(self, message: Truncate) -> None:
        for oid in message.relations:
            relation, shard = self._known(oid)
            if shard is None or self._begun is None or self._begun.lsn < self._lower:
                continue
            self._is_ours = True
            if self._is_in_snapshot(relation, self._begun):
                continue
            self._is_alone = True
            place = place_of(relation, lsn=self._begun.lsn, xid=self._begun.xid)
            # Rows of the same source transaction are not in the shard's log yet, so their keys are unknown.
            if not self._applies or oid in self._touched:
                self._record([truncated(place)])
                continue
            name = ShardId(shard.name)
            if self._shard_keys.is_paused(name):
                raise while_paused(f"a truncate of {relation.name} can't be applied", name)
            if self._follows or self._cutter.is_begun or not self._shard_keys.is_settled(name):
                logger.info("a truncate of %s waits until everything before it is complete", relation.name)
                raise NotYet
            try:
                self._cutter.sweep(self._shard_keys.files(name), sweep_of(shard, place))
            except FileNotFoundError as error:
                raise swept_away(name, error) from None

    def _record(self, records: Sequence[bytes]) -> None:
        self._cutter.records(Lines.of(records), 0, len(records))

    def _is_in_snapshot(self, relation: Relation, begun: Begin) -> bool:
        """Whether the table's snapshot already has this change. If not, raises `InvalidUsage` unless the
        change is of the same table."""
        name = self._names.get(relation.oid, relation.name)
        read = self._snapshots.get(name, TableRead(0))
        if begun.lsn >= read.lsn and (name != relation.name or read.oid not in (0, relation.oid)):
            raise another_table(name)
        return begun.lsn < read.lsn

    def _known(self, oid: int) -> tuple[Relation, ShardConfig | None]:
        relation = self._relations.get(oid)
        if relation is None:
            raise InvariantViolation(f"a row of table {oid} came before the table was described")
        # A table that was read, and renamed since, still belongs to the pipeline.
        return relation, self._shards.get(self._names.get(oid, relation.name))


def captured(
    db: psycopg.Connection,
    config: PipelineConfig,
    source: PostgresSource,
    files: ChangeFiles,
    start: Start,
    shard_keys: ShardKeysPort,
) -> Capture:
    """A capture whose files are durable. It has no steps only if the slot has nothing more, or if the next
    change must wait."""
    changes_max = CHANGES_PER_PEEK
    while True:
        capture = Capture(config, files, start, shard_keys)
        with closing(peek(db, source.slot, source.publication, changes_max=changes_max)) as batches:
            messages = Counted(batches)
            capture.take(messages)
        if capture.steps or capture.waits or messages.count < changes_max:
            return capture
        changes_max *= 4
