"""The rows of a file of records, read and checked as they are asked for.

The whole file agrees with the digest in its name. Its rows become Python values a block at a time, and a
block's links are verified then, so that a few rows of a file with ten thousand cost little."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar, overload

from arro3.core import Table

from tidemark.core.ledger import Record, check_chain, check_format
from tidemark.delta.records import COLUMNS, Codec, RecordFile, Row, broken, opened_file, rows_of
from tidemark.delta.store import Store

R = TypeVar("R", bound=Record)
ROWS_AT_ONCE: Final = 500


class Rows(Sequence[Row]):
    """The rows of a file, verified block by block."""

    def __init__(self, found: Table, *, link_before: int, table: str) -> None:
        self._found, self._link_before, self._table = found, link_before, table
        self._blocks: dict[int, tuple[Row, ...]] = {}

    def __len__(self) -> int:
        return int(self._found.num_rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...

    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        if isinstance(place, slice):
            return [self[at] for at in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        block, at = divmod(place, ROWS_AT_ONCE)
        if block not in self._blocks:
            self._blocks[block] = self._read(block * ROWS_AT_ONCE)
        return self._blocks[block][at]

    def _read(self, first: int) -> tuple[Row, ...]:
        rows = rows_of(self._found.slice(first, min(ROWS_AT_ONCE, len(self) - first)))
        for row in rows:
            check_format(row.format, table=self._table)
        previous = self._found["link"][first - 1].as_py() if first else self._link_before
        check_chain(((row.number, row.link, row.body) for row in rows), previous=previous, table=self._table)
        return rows


@dataclass(frozen=True, eq=False)
class Contents:
    """A file's rows and their Arrow table, so that compaction copies them unchanged.

    Rows are found by number and by key without a scan, and each is decoded once: files never change."""

    table: Table
    rows: Sequence[Row]
    _decoded: dict[int, Any] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> list[int]:
        return list(self.table["number"].to_pylist())

    @cached_property
    def kinds(self) -> list[str]:
        return list(self.table["kind"].to_pylist())

    @cached_property
    def _by_number(self) -> dict[str, tuple[list[int], list[int]]]:
        """Of each kind, the numbers in ascending order and the place of each."""
        numbers, found = self.numbers, {}
        for kind in dict.fromkeys(self.kinds):
            places = [place for place, one in enumerate(self.kinds) if one == kind]
            places.sort(key=numbers.__getitem__)
            found[kind] = [numbers[place] for place in places], places
        return found

    @cached_property
    def _by_key(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, key in enumerate(self.table["key"].to_pylist()):
            found.setdefault(key, []).append(place)
        return found

    def numbered(self, lower: int, upper: int, *, but: Container[str] = ()) -> Sequence[int]:
        """The places of the rows numbered in [lower, upper), in order, without those of some kinds: there may
        be very many claims before one binding, and nobody reads them all."""
        wanted = [one for kind, one in self._by_number.items() if kind not in but]
        return sorted(
            place
            for numbers, places in wanted
            for place in places[bisect_left(numbers, lower) : bisect_left(numbers, upper)]
        )

    def keyed(self, key: str) -> Sequence[int]:
        """The places of the rows with this key, in order."""
        return self._by_key.get(key, ())

    def record(self, place: int, codec: Codec[R], *, table: str) -> R:
        """The record in a place."""
        if place not in self._decoded:
            self._decoded[place] = codec.decode(self.rows[place], table=table)
        found: R = self._decoded[place]
        return found


def read_file(store: Store, file: RecordFile, *, table: str) -> Contents:
    """A file's contents, which agree with its name."""
    found = opened_file(store, file, table=table).select(list(COLUMNS)).combine_chunks()
    last = found["link"][-1].as_py() if found.num_rows else file.link_before
    if last != file.link_last or found.num_rows != file.rows:
        raise broken(table, f"the file {file.path} has {found.num_rows} rows that end at {last:016x}")
    return Contents(found, Rows(found, link_before=file.link_before, table=table))


def verified(contents: Contents) -> Table:
    """The Arrow table, once all rows and links are verified: before it is written again."""
    for _ in contents.rows:
        pass
    return contents.table
