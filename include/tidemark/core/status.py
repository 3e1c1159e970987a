"""The status of a pipeline, as values: how far it is, what is open, what is blocked, what waits.

`app.status` collects them; the command and the pages in Airflow show them; `core.alarms` derives alarms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidemark.core.ids import ShardId, Txn
from tidemark.core.text import span


@dataclass(frozen=True, slots=True)
class Times:
    """When a transaction was bound and sealed; None for what has not happened yet."""

    bound: datetime | None
    sealed: datetime | None

    @property
    def seconds(self) -> float | None:
        """How long the transaction was open; None if unknown."""
        if self.bound is None or self.sealed is None:
            return None
        return (self.sealed - self.bound).total_seconds()


@dataclass(frozen=True, slots=True)
class LastRun:
    """The run that requested input last, whether or not there was any."""

    run_id: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class LastVerdict:
    """The gate's last verdict, its transaction, and whether that was a replay."""

    txn: Txn
    verdict: str
    replayed: bool
    at: datetime | None


LOST: Final = "commits are lost"
COPIED: Final = "the warehouse is a copy"
"""The reason that stops a pipeline whose tables contradict each other."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Work that does not continue by itself, since when, and why; with its transaction, and its shard if that
    waits."""

    what: str
    since: datetime | None
    why: str
    txn: int | None = None
    shard: str = ""


@dataclass(frozen=True, slots=True)
class Stalled:
    """Work that has not advanced for too long although nothing blocks it, since when, and what it lacks."""

    what: str
    since: datetime | None
    why: str

    def sentence(self, now_seconds: float) -> str:
        """A sentence with the duration."""
        since = self.since.timestamp() if self.since is not None else 0.0
        return f"{self.what} has not moved for {span(now_seconds - since)}: {self.why}"


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The status of a shard: its log's upper, its state's transaction and rows, and why it is paused, if it
    is."""

    shard: ShardId
    log_upper: int
    log_version: int
    published: int
    paused: str
    left_out: bool = False
    """Whether it has rows but is not in the pipeline file: then its table stays unchanged."""
    rows: int | None = None
    """The rows of its state; None while nothing is published."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The status of a source that keeps input for this pipeline: how far input is received, durable and
    acknowledged, and what holds the rest back, at what cost. `retained_bytes` is how much it keeps, if it
    counts that."""

    received: str
    flushed: str
    acknowledged: str
    held_back_by: tuple[str, ...]
    cost: str
    trouble: str
    retained_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """Neighbouring transactions that are replayable, or why they aren't. `until` is how long their source
    keeps the input, None if unknown; `caveat` is what may remove it sooner."""

    first: int
    last: int
    gone: str = ""
    until: datetime | None = None
    caveat: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """Input that is not bound yet, and when its oldest piece arrived. `known` is false if the source can't
    report it or was not asked; `trouble` is why a report failed."""

    known: bool = False
    pieces: int = 0
    bytes: int = 0
    oldest: datetime | None = None
    trouble: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The number of quarantined records in the kept transactions and the time of the last one; and the counts
    of the newest transactions."""

    records: int = 0
    last: datetime | None = None
    newest_txns: int = 0
    newest_read: int = 0
    newest_records: int = 0

    @property
    def share(self) -> float:
        """The share of quarantined records in the newest transactions."""
        return self.newest_records / self.newest_read if self.newest_read else 0.0


@dataclass(frozen=True, slots=True)
class CandidateStatus:
    """The candidate generation: its number, its identity, which tells it from any other candidate, why it
    was started, how many sealed transactions it lacks, and when it was started. One that is `from_now` reads
    none again."""

    generation: int
    identity: str
    reason: str
    from_now: bool
    behind: int
    started: datetime | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a pipeline."""

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
    unlisted: int = 0
    """How many shards are not in `shards`: nothing is known to wait in them, and they were not looked at."""
    asked: bool = True
    """Whether the source was asked for waiting input, for what it keeps, and for what is replayable."""
    candidate: CandidateStatus | None = None
