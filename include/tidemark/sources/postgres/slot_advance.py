"""How far a slot may forget: to what is durable, and on over what the pipeline doesn't take.

Before a slot is advanced, the position is noted beside the captured files: a slot that is further than that
note has lost changes. It is advanced to record boundaries only, a commit's end or a mark of our own.
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
from tidemark.core.binding import Binding, BindingRecord
from tidemark.ports.control import Ledger
from tidemark.sources.files.manifest import Manifest
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
    """How far the slot may have been advanced; 0 when it never was."""
    path = files.folder / ACKNOWLEDGED
    return parsed_lsn(path.read_text()) if path.exists() else 0


def last_bound(bindings: Ledger[BindingRecord]) -> Binding | None:
    """The newest binding; None when nothing is bound."""
    upper = bindings.head().upper
    return next((one for one in bindings.read(upper - 1, upper) if isinstance(one, Binding)), None)


@dataclass(frozen=True, slots=True)
class SlotContents:
    """What a slot has: `reached` is where the last commit ends that comes before what is needed, 0 for none,
    `first` the first source transaction that is needed, if one was seen; `is_all` is whether that was all."""

    reached: int
    first: Begin | None
    is_all: bool


class SlotAdvance:
    """Advances the slot of a pipeline; never back, and never past a change that is still to be bound."""

    def __init__(
        self,
        config: PipelineConfig,
        source: PostgresSource,
        files: ChangeFiles,
        bindings: Ledger[BindingRecord],
    ) -> None:
        self._config, self._source, self._files, self._bindings = config, source, files, bindings

    def up_to(self, db: psycopg.Connection, lsn: int) -> None:
        """Advance to a position below which all is durable, and on to the next change that is needed."""
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
        """Up to which commit the slot has nothing that this pipeline takes, and what comes after that; of
        what ends at `bound` or before, nothing counts. The slot stays where it is, and so many changes are
        looked at, at most, and the rest of their transaction. A table that the last binding knows counts, and
        one that was read since, whatever our settings say: a process with older ones must not let go of what
        a newer one takes."""
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
        """Their names, and those that were read by their oids, whatever they are called by now."""
        last = last_bound(self._bindings)
        if last is None:
            return noted_tables(self._files, lsn_min=0), set()
        bound = Manifest.from_json(last.manifest).snapshots
        noted = noted_tables(self._files, lsn_min=last.upper[WAL])
        return bound.keys() | noted, {read.oid for read in bound.values()}


def first_needed(
    batches: Iterable[Sequence[bytes]], tables: Set[str], oids: Set[int], *, bound: int = 0
) -> tuple[int, Begin | None]:
    """Where the last commit ends before the first one that touches these tables, 0 when there is none, and
    the source transaction that does. Those whose commit ends at `bound` or before don't count."""
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
