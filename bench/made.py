"""Made-up pasts: ledgers filled with a million records in a minute, as an old pipeline's are.

A record is encoded once, with numbers and names that stand for others; each record of the past is its text
with the right ones. The table's own commits write them, in files of the sizes that its merges leave behind,
without syncing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any
from unittest.mock import patch

from tidemark.core.binding import Owner
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import Committed, Put
from tidemark.delta.ledger import DeltaLedger
from tidemark.delta.records import FILES_MAX, ROWS_FULL, ROWS_OLD, TIERS, Codec

STANDS_FOR = 987_654_321
"""The transaction whose record is encoded; the one before it has `STANDS_FOR - 1`."""
NAME = "name-of-the-run"


@dataclass(frozen=True, slots=True)
class Made:
    """A record whose text is known."""

    number: int
    kind: str
    key: str
    body: str
    txn: Txn | None = None
    token: WriterToken | None = None
    owner: Owner | None = None


class Texts(Codec[Any]):
    """A codec that takes the text that a record has."""

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__(dict.fromkeys(kinds, Made))

    def kind_of(self, record: Made) -> str:
        return record.kind

    def encode(self, record: Made) -> str:
        return record.body


@dataclass(frozen=True, slots=True)
class Pattern:
    """How the records of one kind are made. `record` is the one that stands for all: of `STANDS_FOR`, by the
    run `NAME` where a run is named. `key` gives a record's key, `run` the name of its run."""

    kind: str
    text: str
    key: Callable[[int], str]
    run: Callable[[int], str] | None = None

    @classmethod
    def of(
        cls,
        codec: Codec[Any],
        record: Any,
        key: Callable[[int], str],
        run: Callable[[int], str] | None = None,
    ) -> Pattern:
        return cls(codec.kind_of(record), codec.encode(record), key, run)

    def made(self, number: int) -> Made:
        body = self.text.replace(str(STANDS_FOR), str(number)).replace(str(STANDS_FOR - 1), str(number - 1))
        if self.run is not None:
            body = body.replace(NAME, self.run(number))
        return Made(number, self.kind, self.key(number), body, Txn(number))


def sizes(rows: int) -> Iterator[int]:
    """The rows of each file, oldest first, where merges leave `rows` records."""
    while rows - ROWS_OLD >= FILES_MAX * ROWS_FULL:
        yield ROWS_OLD
        rows -= ROWS_OLD
    for size in reversed(TIERS):
        while rows >= size:
            yield size
            rows -= size
    yield from [1] * rows


@contextmanager
def unsynced() -> Iterator[None]:
    """Nothing is synced: a made-up past need not outlive a power cut."""
    with patch.object(os, "fsync", lambda handle: None):
        yield


def fill(ledger: DeltaLedger[Any], records: Iterator[Made], count: int, marks: Mapping[str, int]) -> None:
    """Write `count` records to a control table, and set its marks with the last of them. The handle has the
    codec `Texts`."""
    left = count
    with unsynced():
        for size in sizes(count):
            left -= size
            put = Put(marks if not left else {}, [*islice(records, size)], None)
            if not isinstance(ledger.commit(ledger.head(), put), Committed):
                raise SystemExit("somebody else is writing to the bench's table")
