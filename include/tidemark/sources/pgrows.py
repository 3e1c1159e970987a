"""The row messages of `pgoutput`, many at a time: where in their bytes every value stands.

Message by message, Python needs microseconds for each value. So messages are put into one piece of memory,
and each step is taken for all rows at once: the first value of every row, then the second, and so on.

Promise: as in `pgoutput`, every byte is accounted for. A row that is cut, has bytes left over, has another
number of values than its table has columns, or a value of an unknown kind is found (`Broken`), and never read
halfway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tidemark.core.errors import InvalidUsage

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

TEXT, BINARY, NULL, UNCHANGED = b"tbnu"
"""The kinds of values. An unchanged one was stored out of line, did not change, and was not sent."""
INSERT, UPDATE, DELETE = b"IUD"
KEY, OLD, NEW = b"KON"
_PADDING: Final = bytes(8)
"""Behind the last message, so that a number that is cut can be looked at."""


class Broken(Exception):
    """A row message that can't be taken: the first one, by its number, and why."""

    def __init__(self, at: int, error: InvalidUsage) -> None:
        super().__init__(at, error)
        self.at, self.error = at, error


@dataclass(frozen=True, slots=True)
class Spans:
    """Where values stand, by row and column; one that is not there has no size."""

    starts: Numbers
    sizes: Numbers
    kinds: Bytes

    def where(self, rows: Flags) -> Spans:
        """Those of some rows."""
        return Spans(self.starts[rows], self.sizes[rows], self.kinds[rows])

    def of(self, columns: Sequence[int]) -> Spans:
        """Those of some columns."""
        at = list(columns)
        return Spans(self.starts[:, at], self.sizes[:, at], self.kinds[:, at])


@dataclass(frozen=True, slots=True)
class Rows:
    """The row messages of one table: their numbers, what they do, and their values. Without an old row
    (`marks` is NEW) the old values are NULL; a deletion has no new ones."""

    numbers: Numbers
    does: Bytes
    marks: Bytes
    old: Spans
    new: Spans

    def where(self, rows: Flags) -> Rows:
        """Some of them."""
        if rows.all():
            return self
        numbers, does, marks = self.numbers[rows], self.does[rows], self.marks[rows]
        return Rows(numbers, does, marks, self.old.where(rows), self.new.where(rows))


class Messages:
    """Messages in one piece of memory, and what their first bytes say."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self.messages = messages
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        self.data: Bytes = np.frombuffer(b"".join([*messages, _PADDING]), np.uint8)
        # An empty message is no row: whoever parses it says what is wrong.
        self._kinds = np.where(sizes > 0, self.data[self._starts], 0)
        self.is_row: Flags = np.isin(self._kinds, np.array([INSERT, UPDATE, DELETE], np.uint8))
        self.relations: Numbers = self._uint32(self._starts + 1)

    def rows(self, numbers: Numbers, columns: int) -> Rows:
        """The rows of a table with so many columns."""
        at, ends = self._starts[numbers] + 6, self._ends[numbers]
        does, marks = self._kinds[numbers], self.data[at - 1]
        has_old, has_new = marks != NEW, does != DELETE
        broken = (at > ends) | ~np.isin(marks, np.array([KEY, OLD, NEW], np.uint8))
        broken |= ((does == INSERT) & has_old) | ((does == DELETE) & ~has_old)
        old, at, broken = self._values(at, ends, broken, has_old, columns)
        # Between an old and a new row stands another mark.
        between = has_old & has_new
        broken |= between & (self.data[np.minimum(at, ends)] != NEW)
        new, at, broken = self._values(at + between, ends, broken, has_new, columns)
        broken |= at != ends
        if broken.any():
            first = int(numbers[int(np.argmax(broken))])
            raise Broken(first, _unreadable(chr(self.messages[first][0])))
        return Rows(numbers, does, marks, old, new)

    def _values(
        self, at: Numbers, ends: Numbers, broken: Flags, there: Flags, columns: int
    ) -> tuple[Spans, Numbers, Flags]:
        """The values behind `at` of the rows that have them there; where they end, and what is broken."""
        starts = np.empty((len(at), columns), np.int64)
        sizes, kinds = np.zeros_like(starts), np.full(starts.shape, NULL, np.uint8)
        at = np.where(broken, ends, at)
        count = self.data[at].astype(np.int64) << 8 | self.data[at + 1]
        broken = broken | (there & (count != columns))
        at = at + 2 * there
        for column in range(columns):
            at = np.where(broken, ends, np.minimum(at, ends))
            kind = np.where(there, self.data[at], NULL)
            sized = (kind == TEXT) | (kind == BINARY)
            size = np.where(sized, self._int32(at + 1), 0)
            starts[:, column], sizes[:, column], kinds[:, column] = at + 5 * sized, size, kind
            at = at + np.where(sized, 5 + size, there)
            broken |= (size < 0) | (at > ends) | ~(sized | (kind == NULL) | (kind == UNCHANGED))
        return Spans(starts, sizes, kinds), at, broken

    def _uint32(self, at: Numbers) -> Numbers:
        return self._int32(at) & 0xFFFFFFFF

    def _int32(self, at: Numbers) -> Numbers:
        # A number may begin at any byte.
        words = np.ndarray((len(self.data) - 3,), ">i4", self.data, strides=(1,))
        return words[at].astype(np.int64)


def _unreadable(kind: str) -> InvalidUsage:
    return InvalidUsage(
        f"a replication message of kind {kind!r} can't be read: it is cut, or has bytes left over",
        hint="nothing of it was captured; check that the slot's plugin is pgoutput, and its version",
    )
