"""The gate's port: what the user's own expectations say of rows that are only staged.

Promise: an opinion depends on the staged rows and the expectations alone, and holds no row of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tidemark.core.ids import ShardId
from tidemark.core.seal import Staged


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the expectations ask for: stop the transaction, hold a shard for a reason, or just be told."""

    failed: tuple[str, ...] = ()
    held: Mapping[ShardId, str] = field(default_factory=dict)
    warned: tuple[str, ...] = ()
    checked: int = field(default=0, compare=False)
    """How many expectations were asked, for people."""


class Gate(Protocol):
    """Looks at staged rows; never decides."""

    def opinion(self, staged: Staged) -> Opinion:
        """What the expectations of every shard say of these rows."""
        ...


class NoExpectations:
    """The gate of a pipeline that declares none."""

    def opinion(self, staged: Staged) -> Opinion:
        return Opinion()
