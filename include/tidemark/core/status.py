"""Where a pipeline stands, as values: how far it is, what is open, what is blocked, what waits.

`tidemark.app.status` gathers them; the command and the pages in Airflow show them, and `core.alarms` says which
of them are an alarm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidemark.core.ids import ShardId, Txn
from tidemark.core.text import span


@dataclass(frozen=True, slots=True)
class Times:
    """When a transaction was bound and when it was sealed; None for what has not happened yet."""

    bound: datetime | None
    sealed: datetime | None

    @property
    def seconds(self) -> float | None:
        """How long it was open."""
        if self.bound is None or self.sealed is None:
            return None
        return (self.sealed - self.bound).total_seconds()


@dataclass(frozen=True, slots=True)
class LastRun:
    """The run that asked for input last, whether or not there was any."""

    run_id: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class LastVerdict:
    """What the gate said last, of which transaction, and whether that was a replay."""

    txn: Txn
    verdict: str
    replayed: bool
    at: datetime | None


LOST: Final = "commits are lost"
"""What stops a pipeline whose tables do not agree any more."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """What does not go on by itself, since when, and why; with the transaction, and the shard if it is one
    that waits there, for who decides about it."""

    what: str
    since: datetime | None
    why: str
    txn: int | None = None
    shard: str = ""


@dataclass(frozen=True, slots=True)
class Stalled:
    """What has not moved for too long although nothing stops it, since when, and what it lacks."""

    what: str
    since: datetime | None
    why: str

    def told(self, now_seconds: float) -> str:
        """In words, with how long that is."""
        since = self.since.timestamp() if self.since is not None else 0.0
        return f"{self.what} has not moved for {span(now_seconds - since)}: {self.why}"


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """Where a shard stands: its log's upper, what its state has, and why it waits, if it does."""

    shard: ShardId
    log_upper: int
    log_version: int
    published: int
    paused: str
    left_out: bool = False
    """Whether it has rows and the pipeline file doesn't name it: its table stays as it is."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How far a source that remembers for us was received, is durable, and was told so; and what holds the
    rest back, at what cost. `kept_bytes` is how much it keeps for us, where it counts that."""

    received: str
    flushed: str
    acknowledged: str
    held_back_by: tuple[str, ...]
    cost: str
    trouble: str
    kept_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """Neighbouring transactions that can be proven again, or why they can't; `until` is how long their source
    keeps the input, None when no such time is known, and `caveat` what may take it sooner."""

    first: int
    last: int
    gone: str = ""
    until: datetime | None = None
    caveat: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """Input that belongs to no transaction yet, and when the oldest of it came. `known` is false for a source
    that can't say, or was not asked; `trouble` is why one that can has not."""

    known: bool = False
    pieces: int = 0
    bytes: int = 0
    oldest: datetime | None = None
    trouble: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """How many records are quarantined in the kept transactions, and when the last of them was; and how many
    of those that the newest transactions have read."""

    records: int = 0
    last: datetime | None = None
    newest_txns: int = 0
    newest_read: int = 0
    newest_records: int = 0

    @property
    def share(self) -> float:
        """The quarantined ones among what the newest transactions have read."""
        return self.newest_records / self.newest_read if self.newest_read else 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """Where a pipeline stands."""

    pipeline: str
    bound: int
    sealed: int
    checkpoint: int
    generation: int
    open: tuple[int, ...]
    stalled: tuple[Stalled, ...]
    shards: tuple[ShardStatus, ...]
    since: int = 1
    replayable: tuple[Proof, ...] = ()
    source: SourceStatus | None = None
    at: datetime | None = None
    last_run: LastRun | None = None
    last_bound: Times = field(default_factory=lambda: Times(None, None))
    last_sealed: Times = field(default_factory=lambda: Times(None, None))
    open_since: datetime | None = None
    """When the first open transaction was bound."""
    blocked: tuple[Blocked, ...] = ()
    waiting: Input = field(default_factory=Input)
    quarantined: Quarantined = field(default_factory=Quarantined)
    last_verdict: LastVerdict | None = None
    epoch: int = 0
    """How often the history was recovered."""
    witness: str = ""
    """What outside of the warehouse would show that all of it was put back from a copy; empty for nothing."""
    asked: bool = True
    """Whether the source was asked: for what waits, what it keeps, and what can be read again."""
