"""Where a pipeline stands: how far it is, what is open, what is blocked, what waits. For the command and the
pages in Airflow. It changes nothing and starts no Spark.

Whether a pipeline needs somebody, and whether that was told before: for the health task in Airflow.

What was told is in the pipeline's journal, under transaction 0, since it is about none: so the account
outlasts the scheduler. An alarm goes on record when it has been told: one whose telling was lost is told
again, and none is lost.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from tidemark.app.deployment import Deployment
from tidemark.config import KafkaSource, PipelineConfig
from tidemark.config.source import PostgresSource
from tidemark.core.alarms import Alarm, Notices, alarms_of, decide_notices
from tidemark.core.frontier import Frontier
from tidemark.core.ids import QUARANTINE, TXN_NONE, ShardId, Txn
from tidemark.core.journal import Event
from tidemark.core.lease import since_of
from tidemark.core.publish import published_txn
from tidemark.core.replay import Replayable
from tidemark.core.shard import Paused
from tidemark.core.status import (
    LOST,
    Blocked,
    Input,
    Proof,
    Quarantined,
    ShardStatus,
    SourceStatus,
    Status,
)
from tidemark.core.summary import quarantined_in
from tidemark.pipeline.checkpoint import holding_back, paused_shards, stalls
from tidemark.pipeline.context import Attempt, Pipeline, binding_at, last_binding, note
from tidemark.pipeline.history import losses
from tidemark.pipeline.publish import last_published
from tidemark.pipeline.replay import ASKED_AT_ONCE_MAX, replayable
from tidemark.pipeline.schema_change import fit_of
from tidemark.pipeline.timeline import last_run, last_verdict, refused_since, times_of, written_at
from tidemark.ports.source import ReportsPosition, ReportsWaiting

SHARE_TXNS: Final = 100
"""Of how many transactions, the newest ones, the share of quarantined records is told."""


def status_of(
    deployment: Deployment,
    *,
    now_seconds: float,
    asks_source: bool = True,
    proofs_at_ends: int = ASKED_AT_ONCE_MAX,
) -> Status:
    """The pipeline's standing, from its ledgers and, unless it is not to be asked, what its source says: of
    its oldest and its newest transactions, so many of each, also whether they can be proven again. A pipeline
    file that doesn't fit the warehouse is told like anything else that blocks."""
    pipeline = deployment.unchecked
    control = pipeline.control
    fit = fit_of(pipeline)
    bound = control.bindings.head().upper - 1
    seals = control.seals.head()
    done = control.checkpoints.head().upper - 1
    held = paused_shards(pipeline)
    blocked = [Blocked("the pipeline file does not fit", None, str(one)) for one in fit.refused]
    if lost := losses(control, (*deployment.shards, QUARANTINE)):
        blocked = [*(Blocked(LOST, None, one) for one in lost), *blocked]
    for shard, waits in held.items():
        what = f"shard {shard} at transaction {waits.txn}"
        blocked.append(Blocked(what, written_at(control.seals, waits.txn), waits.reason, waits.txn, shard))
    unsealed = tuple(range(seals.upper, bound + 1))
    if unsealed and (stopped := refused_since(control, Txn(unsealed[0]))) is not None:
        blocked.insert(0, stopped)
    source = source_status(pipeline, bound=bound, done=done, unsealed=unsealed) if asks_source else None
    since = since_of(control.leases.head())
    limits = deployment.config.alarms.limits
    return Status(
        pipeline=deployment.config.name,
        bound=bound,
        sealed=seals.upper - 1,
        checkpoint=done,
        generation=seals.generation,
        open=unsealed,
        stalled=stalls(pipeline, now_seconds=now_seconds, grace_seconds=limits.stalled_seconds),
        shards=shard_statuses(pipeline, (*deployment.shards, *fit.left_out), fit.left_out, held),
        since=since,
        replayable=proofs_of(pipeline, since, proofs_at_ends) if asks_source else (),
        source=source,
        at=datetime.fromtimestamp(now_seconds, UTC),
        last_run=last_run(control),
        last_bound=times_of(control, Txn(bound)),
        last_sealed=times_of(control, Txn(seals.upper - 1)),
        open_since=written_at(control.bindings, unsealed[0]) if unsealed else None,
        blocked=tuple(blocked),
        waiting=waiting_input(pipeline) if asks_source else Input(),
        quarantined=quarantined_in_logs(pipeline),
        last_verdict=last_verdict(control),
        epoch=seals.epoch,
        witness=witness_of(deployment.config),
        asked=asks_source,
    )


def witness_of(config: PipelineConfig) -> str:
    """What remembers how far a pipeline is, outside of its warehouse. Files don't, and are bound again."""
    match config.source:
        case PostgresSource(slot=slot):
            return f"replication slot {slot}"
        case KafkaSource() as source:
            return f"consumer group {source.group_of(config.name)}"
        case _:
            return ""


def shard_statuses(
    pipeline: Pipeline,
    shards: Sequence[ShardId],
    left_out: Container[ShardId],
    held: Mapping[ShardId, Paused],
) -> tuple[ShardStatus, ...]:
    """Where each shard stands; the quarantine is one of them once it has something."""
    found: list[ShardStatus] = []
    for shard in (*shards, QUARANTINE):
        log = pipeline.control.log(shard).head()
        waits = held.get(shard)
        paused = f"at {waits.txn}: {waits.reason}" if waits is not None else ""
        published = 0 if shard == QUARANTINE else published_txn(last_published(pipeline.control, shard))
        if shard != QUARANTINE or log.upper > 1:
            found.append(ShardStatus(shard, log.upper, log.version, published, paused, shard in left_out))
    return tuple(found)


def waiting_input(pipeline: Pipeline) -> Input:
    """What waits in the source, where it is one that can say; asks the source."""
    if not isinstance(pipeline.source, ReportsWaiting):
        return Input()
    found = pipeline.source.waiting(last_binding(pipeline, pipeline.control.bindings.head()))
    oldest = datetime.fromtimestamp(found.oldest_seconds, UTC) if found.oldest_seconds is not None else None
    return Input(not found.trouble, found.pieces, found.bytes, oldest, found.trouble, found.unit)


def quarantined_in_logs(pipeline: Pipeline) -> Quarantined:
    """What the quarantine's log has, by its list of files; and the share of the newest transactions, by their
    seals. However long the history is, no more of it is read."""
    log, seals = pipeline.control.log(QUARANTINE), pipeline.control.seals
    upper = seals.head().upper
    log.head()
    files = log.files()
    newest = seals.read(max(1, upper - SHARE_TXNS), upper)
    return Quarantined(
        records=sum(file.part.rows for file in files),
        last=written_at(seals, max(file.txn_last for file in files)) if files else None,
        newest_txns=len(newest),
        newest_read=sum(seal.source.count for seal in newest),
        newest_records=sum(map(quarantined_in, newest)),
    )


def proofs_of(pipeline: Pipeline, since: Txn, at_ends: int) -> tuple[Proof, ...]:
    """The kept transactions, of many the oldest and the newest, by whether, and until when, their input can
    be read again. Maintenance asks for all."""

    def told(txn: int, one: Replayable) -> Proof:
        until = datetime.fromtimestamp(one.until_seconds, UTC) if one.until_seconds is not None else None
        return Proof(txn, txn, one.gone, until, one.caveat)

    spans: list[Proof] = []
    for txn, found in replayable(pipeline, since=since, at_ends=at_ends).items():
        one = told(txn, found)
        if spans and spans[-1].last == txn - 1 and replace(spans[-1], first=txn, last=txn) == one:
            spans[-1] = replace(spans[-1], last=txn)
        else:
            spans.append(one)
    return tuple(spans)


def source_status(
    pipeline: Pipeline, *, bound: int, done: int, unsealed: tuple[int, ...]
) -> SourceStatus | None:
    """The source's standing, where it is one that has to be acknowledged; asks the source."""
    source = pipeline.source
    if not isinstance(source, ReportsPosition):
        return None
    received, flushed = (
        source.shown(binding_at(pipeline, Txn(txn)).upper if txn else Frontier()) for txn in (bound, done)
    )
    holds = [f"shard {lag.shard}, which lacks transaction {lag.wanted.txn}" for lag in holding_back(pipeline)]
    if unsealed:
        holds.append(f"transaction {unsealed[0]}, which is not sealed")
    told = source.standing()
    return SourceStatus(
        received, flushed, told.acknowledged, tuple(holds), told.cost, told.trouble, told.kept_bytes
    )


def check_alarms(deployment: Deployment, found: Status) -> Notices:
    """The alarms of a status, by the pipeline file's limits, against those that were told."""
    journal = deployment.unchecked.control.journal
    journal.head()
    return decide_notices(alarms_of(found, deployment.config.alarms.limits), journal.find(str(TXN_NONE)))


def note_alarm(deployment: Deployment, attempt: Attempt, alarm: Alarm) -> None:
    """Put on record that somebody was told of an alarm."""
    detail = {"alarm": alarm.identity, "fact": alarm.fact, "run": attempt.owner.run_id}
    note(deployment.unchecked, Event.ALARM, txn=TXN_NONE, token=attempt.token, detail=detail)


def note_alarm_over(deployment: Deployment, attempt: Attempt, alarm: str) -> None:
    """Put on record that an alarm is over: if it comes again, it is told again."""
    detail = {"alarm": alarm, "run": attempt.owner.run_id}
    note(deployment.unchecked, Event.ALARM_OVER, txn=TXN_NONE, token=attempt.token, detail=detail)
