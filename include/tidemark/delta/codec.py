"""Records as JSON, and back: pydantic over the core's own dataclasses, checked again on every read.

A row's `body` is the whole record; the other columns repeat what people filter by. They are derived
from the record when it is written, and compared with it when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from tidemark.core.binding import Binding, Claim
from tidemark.core.checkpoint import Checkpoint
from tidemark.core.errors import InvalidUsage, InvariantViolation, TidemarkError
from tidemark.core.evidence import Evidence
from tidemark.core.history import HistoryRecord
from tidemark.core.journal import JournalEntry, check_format
from tidemark.core.lease import Lease
from tidemark.core.ledger import Record
from tidemark.core.publish import Published
from tidemark.core.seal import Seal

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a control table, without the wall time that nothing depends on."""

    number: int
    kind: str
    key: str
    txn: int | None
    token: str | None
    run_id: str | None
    format: int
    link: int
    body: str


class Codec(Generic[R]):
    """The kinds of record of one control table, each with its dataclass."""

    def __init__(self, kinds: Mapping[str, type[Any]]) -> None:
        self._classes = dict(kinds)
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        self._kinds = {cls: kind for kind, cls in kinds.items()}

    def kind_of(self, record: R) -> str:
        kind = self._kinds.get(type(record))
        if kind is None:
            raise InvalidUsage(
                f"{type(record).__name__} is not a record of this table",
                hint=f"it keeps {sorted(self._classes)}",
            )
        return kind

    def names_of(self, kinds: tuple[type, ...]) -> frozenset[str]:
        """The kinds of records by their names; all where none is named."""
        return frozenset(self._kinds[cls] for cls in kinds) if kinds else frozenset(self._classes)

    def encode(self, record: R) -> str:
        return self._adapter(self.kind_of(record)).dump_json(record).decode()

    def _adapter(self, kind: str) -> TypeAdapter[Any]:
        # Each takes milliseconds to make, and a process meets few kinds.
        if kind not in self._adapters:
            self._adapters[kind] = TypeAdapter(self._classes[kind])
        return self._adapters[kind]

    def decode(self, row: Row, *, table: str) -> R:
        """The record of a row; a row that is not a valid record, or not this one, stops the reader."""
        check_format(row.format, table=table)
        if row.kind not in self._classes:
            raise InvariantViolation(f"{table}: record {row.number} is of the unknown kind {row.kind!r}")
        try:
            record = self._adapter(row.kind).validate_json(row.body)
        except (ValidationError, TidemarkError) as error:
            raise InvariantViolation(
                f"{table}: record {row.number} is not a valid {row.kind}: {error}",
                hint="restore the table's files from a backup",
            ) from error
        known = cast("R", record)
        if (known.number, known.key) != (row.number, row.key):
            raise InvariantViolation(
                f"{table}: the row numbered {row.number} holds record {known.number} of {known.key!r}",
                hint="restore the table's files from a backup",
            )
        return known


def txn_column(record: object) -> int | None:
    return getattr(record, "txn", None)


def token_column(record: object) -> str | None:
    """The token of the process that wrote; a lease calls its own the holder."""
    return getattr(record, "token", None) or getattr(record, "holder", None)


def run_column(record: object) -> str | None:
    """The run that asked, where a record names one."""
    owner = getattr(record, "owner", None)
    if owner is not None:
        return cast("str | None", getattr(owner, "run_id", None))
    detail = getattr(record, "detail", None)
    return detail.get("run") if isinstance(detail, Mapping) else None


@cache
def history_codec() -> Codec[HistoryRecord]:
    return Codec({"binding": Binding, "claim": Claim, "seal": Seal})


@cache
def attempts_codec() -> Codec[Evidence]:
    return Codec({"evidence": Evidence})


@cache
def checkpoints_codec() -> Codec[Checkpoint]:
    return Codec({"checkpoint": Checkpoint})


@cache
def journal_codec() -> Codec[JournalEntry]:
    return Codec({"event": JournalEntry})


@cache
def publishes_codec() -> Codec[Published]:
    return Codec({"published": Published})


@cache
def leases_codec() -> Codec[Lease]:
    return Codec({"lease": Lease})
