"""Which record files to merge: always the newest ones, so that they are neighbours in the chain.

Files fall into tiers by powers of ten of their rows. As soon as the newest files up to some tier are
`FILES_MAX` many, they become one. A record is therefore rewritten a handful of times in its life, and
a table of n records has about `FILES_MAX` small files per tier and n / 1000 full ones, which are left
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.delta.records import RecordFile

FILES_MAX: Final = 10
ROWS_FULL: Final = 1000
BYTES_FULL: Final = 4 * 1024 * 1024
_TIERS: Final = (10, 100, ROWS_FULL)


@dataclass(frozen=True, slots=True)
class Merge:
    """A run of files to become one."""

    files: tuple[RecordFile, ...]


def choose_merge(files: Sequence[RecordFile]) -> Merge | None:
    """The smallest tier whose newest files are due; None when none is."""
    for rows_below in _TIERS:
        first = len(files)
        while first > 0 and files[first - 1].rows < rows_below and files[first - 1].bytes < BYTES_FULL:
            first -= 1
        if len(files) - first >= FILES_MAX:
            return Merge(tuple(files[first:]))
    return None
