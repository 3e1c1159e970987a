"""The versions of states in memory: durable, like the ledgers of a warehouse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.memory.fold import Change, Key
from tidemark.core.ids import ShardId
from tidemark.core.publish import StateCommit


@dataclass(frozen=True, slots=True)
class MemoryVersion:
    """One version of a state: every key's last change, deletes included, and the commit that made it.

    A version without a commit was made by a stranger."""

    rows: Mapping[Key, Change]
    commit: StateCommit | None

    @property
    def visible(self) -> dict[Key, Change]:
        return {key: change for key, change in self.rows.items() if not change.deletes}


@dataclass(slots=True)
class MemoryStates:
    """The durable truth: each shard's versions."""

    versions: dict[ShardId, list[MemoryVersion]] = field(default_factory=dict)

    def of(self, shard: ShardId) -> list[MemoryVersion]:
        return self.versions.setdefault(shard, [])

    def values(self, shard: ShardId) -> dict[Key, object]:
        """What a reader of the state sees now."""
        versions = self.of(shard)
        return {key: row.value for key, row in versions[-1].visible.items()} if versions else {}

    def newest_commit(self, shard: ShardId, after: int) -> StateCommit | None:
        """The newest publish after a version."""
        commits = [one.commit for one in self.of(shard)[after + 1 :] if one.commit is not None]
        return commits[-1] if commits else None
