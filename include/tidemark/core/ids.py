"""The identities of the system, as types.

A function that takes a `Txn` can't be given an offset by mistake, and every name from outside is checked
here.

`txn` is the logical timestamp of a pipeline: dense integers 1, 2, 3 and so on. It identifies all work; a run
id, an attempt or a clock time never does. An *upper* is the first `Txn` that is not there yet, so an upper of
1 means that nothing has happened.
"""

from __future__ import annotations

import re
from typing import Final, NewType

from tidemark.core.errors import InvalidUsage

Txn = NewType("Txn", int)
ShardId = NewType("ShardId", str)
WriterToken = NewType("WriterToken", str)

TXN_FIRST: Final = Txn(1)
TXN_NONE: Final = Txn(0)
QUARANTINE: Final = ShardId("quarantine")
"""The shard for records that could not be applied."""

NAME_CHARACTERS_MAX: Final = 64
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


def next_txn(txn: Txn) -> Txn:
    return Txn(txn + 1)


def is_name(value: str) -> bool:
    """Whether this is a valid name of a pipeline, shard or consumer."""
    return len(value) <= NAME_CHARACTERS_MAX and _NAME.match(value) is not None


def checked_name(value: str, *, what: str) -> str:
    """Return a valid name, which is safe in a path, an identifier and a URL; `InvalidUsage` otherwise."""
    if not is_name(value):
        shown = value if len(value) <= NAME_CHARACTERS_MAX else value[:NAME_CHARACTERS_MAX] + "…"
        raise InvalidUsage(
            f"{what} {shown!r} is not a name",
            hint=f"use a lowercase letter, then letters, digits and _, {NAME_CHARACTERS_MAX} at most",
        )
    return value
