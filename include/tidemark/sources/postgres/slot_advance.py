"""How far the slot may advance: to the durable position, and past changes that the pipeline doesn't need.

The new position is recorded beside the captured files before the slot is advanced. A slot beyond the recorded
position has lost changes. A slot is advanced only to the end of a WAL record: a commit, or Tidemark's own
mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import psycopg

from tidemark.config.model import PipelineConfig
from tidemark.config.source import PostgresSource
from tidemark.core.binding import Binding
from tidemark.ports.control import Ledger
from tidemark.sources.files.bound_files import Manifest
from tidemark.sources.postgres import slot as slots
from tidemark.sources.postgres.capture import CHANGES_PER_PEEK
from tidemark.sources.postgres.change_files import WAL, ChangeFiles
from tidemark.sources.postgres.pgoutput import (
    Begin,
    Commit,
    Messages,
    Relation,
    Truncate,
    lsn_text,
    parse,
    parsed_lsn,
)
from tidemark.sources.postgres.snapshot import noted_tables
from tidemark.sources.postgres.tables import taken_shards

ACKNOWLEDGED: Final = "acknowledged"


def acknowledged(files: ChangeFiles) -> int:
    """The position up to which the slot may have been advanced; 0 if it never was."""
    path = files.folder / ACKNOWLEDGED
    return parsed_lsn(path.read_text()) if path.exists() else 0


def last_bound(bindings: Ledger[Binding]) -> Binding | None:
    """The newest binding; None if nothing is bound."""
    upper = bindings.head().upper
    return next(iter(bindings.read(upper - 1, upper)), None)


@dataclass(frozen=True, slots=True)
class SlotContents:
    """The contents of a slot. `first` is the first source transaction that is needed, if one was found.
    `reached` is the end of the last commit before it, or 0. `is_all` is whether the whole slot was read."""

    reached: int
    first: Begin | None
    is_all: bool


class SlotAdvance:
    """Advances the slot of a pipeline; never backwards, and never past a change that is still to be bound."""

    def __init__(
        self,
        config: PipelineConfig,
        source: PostgresSource,
        files: ChangeFiles,
        bindings: Ledger[Binding],
    ) -> None:
        self._config, self._source, self._files, self._bindings = config, source, files, bindings

    def up_to(self, db: psycopg.Connection, lsn: int) -> None:
        """Advance to a position below which everything is durable, and then to the next needed change."""
        self._advance(db, lsn)
        found = self.look(db)
        reached = found.reached
        if not reached and found.first is None:
            marked = slots.mark(db)
            found = self.look(db)
            reached = marked if not found.reached and found.first is None else found.reached
        self._advance(db, reached)

    def _advance(self, db: psycopg.Connection, lsn: int) -> None:
        with db.transaction():
            slots.lock(db, self._source.slot)
            found = slots.usable_slot(db, self._source.slot)
            if lsn <= found.confirmed:
                return
            if lsn > acknowledged(self._files):
                self._files.replace(self._files.folder / ACKNOWLEDGED, lsn_text(lsn).encode())
            slots.advance(db, self._source.slot, lsn)

    def look(
        self, db: psycopg.Connection, *, bound: int = 0, changes_most: int = CHANGES_PER_PEEK
    ) -> SlotContents:
        """Find the first source transaction that the pipeline needs. Those that end at or below `bound` don't
        count. Does not move the slot. Reads at most `changes_most` changes, and the rest of their source
        transaction.

        The tables of the last binding, and those with a newer snapshot, count as needed whatever this
        process's settings are: a process with an older pipeline file must not advance the slot past changes
        that a newer one needs."""
        changes_max = 1
        while True:
            with db.transaction():
                slots.lock(db, self._source.slot)
                names, oids = self._bound_tables()
                tables = taken_shards(self._config).keys() | names
                source = self._source
                with closing(
                    slots.peek(db, source.slot, source.publication, changes_max=changes_max)
                ) as some:
                    messages = slots.Counted(some)
                    reached, first = first_needed(messages, tables, oids, bound=bound)
            is_all = messages.count < changes_max
            if first is not None or is_all or changes_max >= changes_most:
                return SlotContents(reached, first, is_all)
            changes_max = changes_most

    def _bound_tables(self) -> tuple[set[str], set[int]]:
        """The names of the needed tables, and the oids of those that are bound, as they may be renamed."""
        last = last_bound(self._bindings)
        if last is None:
            return noted_tables(self._files, lsn_min=0), set()
        bound = Manifest.from_json(last.manifest).snapshots
        noted = noted_tables(self._files, lsn_min=last.upper[WAL])
        return bound.keys() | noted, {read.oid for read in bound.values()}


def first_needed(
    batches: Iterable[Sequence[bytes]], tables: Set[str], oids: Set[int], *, bound: int = 0
) -> tuple[int, Begin | None]:
    """The first source transaction that changes these tables, or None; and the end of the last commit before
    it, or 0. Source transactions that end at or below `bound` don't count."""
    needed: set[int] = set()
    reached = 0
    begun = Begin(0, 0, 0)
    for batch in batches:
        messages = Messages(batch)
        first = 0
        for at in [*np.flatnonzero(~messages.is_row).tolist(), len(batch)]:
            counts = begun.lsn >= bound
            if counts and needed.intersection(messages.relations[first:at].tolist()):
                return reached, begun
            first = at + 1
            message = parse(batch[at]) if at < len(batch) else None
            match message:
                case Relation():
                    needed.discard(message.oid)
                    if message.name in tables or message.oid in oids:
                        needed.add(message.oid)
                case Begin():
                    begun = message
                case Truncate():
                    if counts and needed.intersection(message.relations):
                        return reached, begun
                case Commit():
                    reached = message.end_lsn
                case _:
                    pass
    return reached, None
