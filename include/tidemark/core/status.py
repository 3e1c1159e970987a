"""The status of a pipeline, as values, and its alarms: the problems that need a person, each with its remedy.

`app.status` collects the values; the command and the pages in Airflow show them. `tidemark status --fail-if`,
the health task in Airflow and the pages all use `alarms_of`, which decides by the status and by limits. A
value that is unknown because the source was not asked is no alarm; a value that could not be determined is
one.

An alarm is identified by its kind and its subject, not by its text: while a problem lasts it stays the same
alarm, however its age and counts change. `decide_notices` compares with the alarms in the journal
(`Event.ALARM`, `Event.ALARM_OVER`), so that each alarm is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.core.ledger import Event, JournalEntry
from tidemark.core.text import bytes_in, seconds_in, share_in, span


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


BLOCKED: Final = "blocked"
STALLED: Final = "stalled"
BEHIND: Final = "behind"
QUARANTINE: Final = "quarantine"
WAL: Final = "wal"
REPLAYABLE: Final = "replayable"
CANDIDATE: Final = "candidate"
KINDS: Final = (BLOCKED, STALLED, BEHIND, WAL, REPLAYABLE, QUARANTINE, CANDIDATE)
"""In the order of their urgency."""
ALL: Final = "all"
HINT: Final = (
    "there are: all, blocked, stalled, behind=10m, quarantine, quarantine=24h, quarantine=5%, wal=10GB, "
    "replayable=2d, candidate=2d"
)


@dataclass(frozen=True, slots=True)
class Alarm:
    """A problem that needs a person: its kind, its subject, the fact, the remedy, and since when."""

    kind: str
    subject: str
    fact: str
    remedy: str
    since: datetime | None = None

    @property
    def identity(self) -> str:
        return f"{self.kind}: {self.subject}"

    def __str__(self) -> str:
        return f"{self.kind}: {self.fact}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits above which a value is an alarm; None for no alarm. `quarantine_within_seconds` and
    `quarantine_share` are two ways to limit the same."""

    blocked: bool = True
    stalled: bool = True
    stalled_seconds: float = 900.0
    behind_seconds: float | None = None
    quarantine: bool = False
    quarantine_within_seconds: float | None = None
    quarantine_share: float | None = None
    wal_bytes: int | None = None
    replayable_seconds: float | None = None
    candidate_seconds: float | None = None


def alarms_of(found: Status, limits: Limits) -> tuple[Alarm, ...]:
    """The active alarms, most urgent first."""
    now = found.at.timestamp() if found.at is not None else 0.0
    return tuple(_alarms(found, limits, now))


def _alarms(found: Status, limits: Limits, now: float) -> Iterator[Alarm]:
    if limits.blocked:
        for stop in found.blocked:
            fact = f"{stop.what}: {stop.why}"
            yield Alarm(BLOCKED, stop.what, fact, _way_out(found.pipeline, stop), stop.since)
    if limits.stalled:
        remedy = "check that a run is active, or start one; if runs take this long, raise alarms.stalled"
        for one in found.stalled:
            yield Alarm(STALLED, one.what, one.sentence(now), remedy, one.since)
    if limits.behind_seconds is not None:
        yield from _behind(found, limits.behind_seconds, now)
    if limits.wal_bytes is not None:
        yield from _retained_bytes(found, limits.wal_bytes)
    if limits.replayable_seconds is not None:
        yield from _replayable(found, limits.replayable_seconds, now)
    if limits.quarantine:
        yield from _quarantine(found, limits, now)
    if limits.candidate_seconds is not None:
        yield from _candidate(found, limits.candidate_seconds, now)


def _way_out(pipeline: str, stop: Blocked) -> str:
    if stop.shard:
        return f'check its rows, then `tidemark release {pipeline} {stop.shard} --reason "..."`'
    if stop.txn is not None:
        decided = f"`tidemark accept {pipeline} {stop.txn}` or `tidemark skip {pipeline} {stop.txn}`"
        return f"correct the cause and run again, or decide with a reason: {decided}"
    if stop.what == COPIED:
        return f"run the pipeline where it was, or let it go on here: `tidemark recover {pipeline} --adopt`"
    if stop.what == LOST:
        return f"restore the table, or run `tidemark recover {pipeline}`"
    return f"correct the pipeline file: `tidemark check {pipeline}`"


def _behind(found: Status, seconds_max: float, now: float) -> Iterator[Alarm]:
    remedy = f"start a run, or find out why none ran: `tidemark journal {found.pipeline} --since 24h`"
    waiting = found.waiting
    if found.asked and not waiting.known:
        fact = waiting.trouble or "the source can't report how long its input has waited"
        yield Alarm(BEHIND, "input", fact, "an unknown delay counts as late: correct the source")
        return
    one = waiting.pieces == 1 and " " not in waiting.unit
    what = f"1 {waiting.unit.removesuffix('s')} waits" if one else f"{waiting.pieces:,} {waiting.unit} wait"
    oldest = [("input", what, waiting.oldest)]
    if found.open:
        what = f"transaction {found.open[0]}"
        oldest.append((what, f"{what} is bound and not sealed", found.open_since))
    for subject, fact, at in oldest:
        if at is not None and now - at.timestamp() > seconds_max:
            yield Alarm(BEHIND, subject, f"{fact}, for {span(now - at.timestamp())}", remedy, at)


def _retained_bytes(found: Status, bytes_max: int) -> Iterator[Alarm]:
    kept = found.source.retained_bytes if found.source is not None else None
    if found.source is None or kept is None or kept <= bytes_max:
        return
    held = f", held back by {', '.join(found.source.held_back_by)}" if found.source.held_back_by else ""
    fact = f"the source keeps {kept:,} bytes for this pipeline{held}"
    yield Alarm(
        WAL,
        "source",
        fact,
        "finish what holds it back, or run the pipeline: the source's disk fills until then",
    )


def _replayable(found: Status, seconds_min: float, now: float) -> Iterator[Alarm]:
    """Alarms for input that expires too soon. For input that is not sealed yet the time counts from now, for
    the newest sealed input from its seal: that an idle pipeline's input expires in time is no alarm."""
    remedy = "keep the input longer at its source, or replay these transactions before it is deleted"
    sealed_at = found.last_sealed.sealed
    for one in found.replayable:
        if one.last > found.sealed:
            yield from _ending(
                one, seconds_min, now, "run the pipeline before it is deleted: unsealed input is lost then"
            )
        elif one.first <= found.sealed <= one.last and sealed_at is not None:
            yield from _ending(one, seconds_min, sealed_at.timestamp(), remedy)


def _ending(one: Proof, seconds_min: float, begin: float, remedy: str) -> Iterator[Alarm]:
    what = f"transaction {one.last}"
    if one.gone:
        yield Alarm(REPLAYABLE, what, f"the input of {what} is gone: {one.gone}", remedy)
    elif one.until is not None and one.until.timestamp() - begin < seconds_min:
        left = span(max(0.0, one.until.timestamp() - begin))
        yield Alarm(REPLAYABLE, what, f"the input of {what} can be read again for {left} only", remedy)


def _quarantine(found: Status, limits: Limits, now: float) -> Iterator[Alarm]:
    bad = found.quarantined
    remedy = f"`tidemark quarantine {found.pipeline}` shows the records and how to correct them"
    if limits.quarantine_share is not None:
        if bad.share > limits.quarantine_share:
            fact = f"{bad.newest_records:,} of {bad.newest_read:,} records of the newest transactions"
            yield Alarm(QUARANTINE, "records", f"{fact} are quarantined", remedy, bad.last)
        return
    within = limits.quarantine_within_seconds
    recent = within is None or bad.last is None or now - bad.last.timestamp() <= within
    if bad.records and recent:
        yield Alarm(QUARANTINE, "records", f"{bad.records:,} records are quarantined", remedy, bad.last)


def _candidate(found: Status, seconds_max: float, now: float) -> Iterator[Alarm]:
    """An alarm for a candidate that nobody has promoted or aborted in time. It keeps the pipeline's input and
    log. A start time that is unknown is no alarm: only tables in memory have none."""
    one = found.candidate
    if one is None or one.started is None or now - one.started.timestamp() <= seconds_max:
        return
    lag = f"{one.behind:,} transactions behind" if one.behind else "caught up"
    age = span(now - one.started.timestamp())
    fact = f"generation {one.generation} is a candidate for {age}, and {lag}; it keeps input and log"
    ways = ("follow", "promote", "abort") if one.behind else ("promote", "abort")
    remedy = " or ".join(f"`tidemark generation {way} {found.pipeline}`" for way in ways)
    yield Alarm(CANDIDATE, f"generation {one.generation}, {one.identity}", fact, remedy, one.started)


def limits_in(asked: str, defaults: Limits) -> Limits:
    """Parse a list of alarms such as `blocked,behind=10m`. A kind without a limit takes its default; `all`
    means all defaults."""
    given: dict[str, object] = {
        "blocked": False,
        "stalled": False,
        "stalled_seconds": defaults.stalled_seconds,
    }
    for one in filter(None, (word.strip() for word in asked.split(","))):
        kind, has_value, value = one.partition("=")
        if kind == ALL and not has_value:
            return defaults
        if kind not in KINDS or (has_value and kind in (BLOCKED, STALLED)):
            raise InvalidUsage(f"{one!r} is not an alarm", hint=HINT)
        given |= limit(kind, value) if has_value else _default_of(kind, defaults)
    return Limits(**given)  # type: ignore[arg-type]


def limit(kind: str, value: str) -> dict[str, object]:
    """Parse one limit into fields of `Limits`."""
    if kind == QUARANTINE:
        of_time = not value.endswith("%")
        within = {"quarantine_within_seconds": seconds_in(value)} if of_time else {}
        return {"quarantine": True, **(within or {"quarantine_share": share_in(value)})}
    if kind == WAL:
        return {"wal_bytes": bytes_in(value)}
    return {f"{kind}_seconds": seconds_in(value)}


def _default_of(kind: str, defaults: Limits) -> dict[str, object]:
    if kind in ("blocked", "stalled", QUARANTINE):
        return {kind: True}
    name = "wal_bytes" if kind == WAL else f"{kind}_seconds"
    default = getattr(defaults, name)
    if default is None:
        raise InvalidUsage(f"the pipeline file sets no limit for {kind!r}", hint=f"give one; {HINT}")
    return {name: default}


@dataclass(frozen=True, slots=True)
class Notices:
    """Alarms compared with earlier reports: new ones, those already reported and still active, and the
    identities of those that are over."""

    new: tuple[Alarm, ...]
    still: tuple[Alarm, ...]
    over: tuple[str, ...]


def decide_notices(alarms: Iterable[Alarm], entries: Iterable[JournalEntry]) -> Notices:
    """Compare the active alarms with those that the journal has as reported."""
    reported: dict[str, bool] = {}
    for entry in entries:
        if entry.event in (Event.ALARM, Event.ALARM_OVER):
            reported[entry.detail["alarm"]] = entry.event is Event.ALARM
    ringing = {alarm.identity: alarm for alarm in alarms}
    return Notices(
        new=tuple(one for name, one in ringing.items() if not reported.get(name)),
        still=tuple(one for name, one in ringing.items() if reported.get(name)),
        over=tuple(name for name, on in reported.items() if on and name not in ringing),
    )
