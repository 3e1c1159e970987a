"""Looks at a database that change nothing, for `status` and `source check`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Final

import psycopg

from tidemark.config.model import PipelineConfig
from tidemark.config.source import PostgresSource
from tidemark.core.binding import Binding, BindingRecord
from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError
from tidemark.ports.control import Ledger
from tidemark.ports.source import Waiting
from tidemark.sources.postgres import slot as slots
from tidemark.sources.postgres.changes import WAL, ChangeFiles
from tidemark.sources.postgres.connection import connect, told
from tidemark.sources.postgres.letting_go import LettingGo, Looked, acknowledged, last_bound
from tidemark.sources.postgres.membership import SameTables, known_readings, wanted_tables
from tidemark.sources.postgres.tables import published_tables

LOOK_SECONDS_MAX: Final = 10
LOOK_CHANGES_MAX: Final = 10_000
_AT_LEAST: Final = "or more source transactions"


@dataclass(frozen=True, slots=True)
class Looks:
    """One pipeline's database."""

    config: PipelineConfig
    source: PostgresSource
    files: ChangeFiles
    bindings: Ledger[BindingRecord]

    def waiting(self, last: Binding | None) -> Waiting:
        """The first source transaction that waits; `trouble` where that can't be told in little time."""
        if last is None:
            return _untold("nothing is bound yet: the first rows of its tables wait")
        try:
            wanted = wanted_tables(self.config, self.files, known_readings(self.config, last))
            if wanted:
                return _untold(f"tables wait to be read: {', '.join(wanted)}")
            with told(), closing(connect(self.source.postgres_conn_id)) as db:
                found = self._into_slot(db, bound=last.upper[WAL])
        except TidemarkError as error:
            return _untold(str(error))
        if found.first is not None:
            return Waiting(1, oldest_seconds=found.first.committed_seconds, unit=_AT_LEAST)
        if not found.is_all:
            return _untold(
                f"the first {LOOK_CHANGES_MAX:,} changes in the slot are bound, or of other tables"
            )
        return Waiting(unit=_AT_LEAST)

    def _into_slot(self, db: psycopg.Connection, *, bound: int) -> Looked:
        slot = slots.usable_slot(db, self.source.slot)
        slots.check_continues(slot, bound=bound, acknowledged=acknowledged(self.files))
        db.execute(f"SET statement_timeout = '{LOOK_SECONDS_MAX}s'")
        looks = LettingGo(self.config, self.source, self.files, self.bindings)
        try:
            return looks.look(db, bound=bound, changes_most=LOOK_CHANGES_MAX)
        except psycopg.errors.QueryCanceled:
            fact = f"slot {slot.name!r} could not be looked into in {LOOK_SECONDS_MAX} s"
            hint = "a run works with it, or its first transaction is large; look again when the run is done"
            raise Determinate(fact, hint=hint) from None

    def changed_tables(self) -> tuple[int, list[InvalidUsage]]:
        """How many tables are compared with what was recorded of them, and what has happened to them."""
        last = last_bound(self.bindings)
        known = known_readings(self.config, last)
        wanted = wanted_tables(self.config, self.files, known)
        if last is None or not known.keys() - wanted.keys():
            return 0, []
        with told(), closing(connect(self.source.postgres_conn_id)) as db, db.transaction():
            slots.lock(db, self.source.slot)
            published = published_tables(db, self.source.publication)
            same = SameTables(db, self.source, self.files, published, lower=last.upper[WAL])
            read = {name: one for name, one in known.items() if name in published and name not in wanted}
            return len(read), list(same.flaws(read))


def _untold(trouble: str) -> Waiting:
    return Waiting(trouble=trouble, unit=_AT_LEAST)
