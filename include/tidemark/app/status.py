"""The status of a pipeline, and its alarms.

The status has the progress, the open and blocked transactions and the waiting input, for the command and the
pages in Airflow. Reading it changes nothing and starts no Spark.

The health task in Airflow uses the alarms. The journal records each one that was sent, under transaction 0,
because it belongs to no transaction; so the record survives the scheduler. It is written after the alarm was
sent: an alarm may be sent twice, but none is lost.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from random import Random
from typing import Final

from tidemark.app.deployment import Deployment
from tidemark.config import KafkaSource, PipelineConfig
from tidemark.config.source import PostgresSource
from tidemark.core.generation import current
from tidemark.core.history import CopiedWarehouse
from tidemark.core.ids import QUARANTINE, TXN_FIRST, TXN_NONE, Frontier, ShardId, Txn
from tidemark.core.lease import since_of
from tidemark.core.ledger import Event
from tidemark.core.log import Paused
from tidemark.core.publish import published_txn
from tidemark.core.replay import Replayable
from tidemark.core.seal import Decision
from tidemark.core.status import (
    COPIED,
    LOST,
    Alarm,
    Blocked,
    CandidateStatus,
    Input,
    Notices,
    Proof,
    Quarantined,
    ShardStatus,
    SourceStatus,
    Status,
    alarms_of,
    decide_notices,
)
from tidemark.core.text import quarantined_in
from tidemark.pipeline.checkpoint import holding_back, paused_shards, stalls
from tidemark.pipeline.context import Attempt, Pipeline, binding_at, last_binding, note, unfinished
from tidemark.pipeline.history import LOGS_LOOKED_AT, losses, require_home
from tidemark.pipeline.journal import last_run, last_verdict, refused_since, times_of, written_at
from tidemark.pipeline.publish import last_published
from tidemark.pipeline.replay import ASKED_AT_ONCE_MAX, replayable
from tidemark.pipeline.schema_change import Fit, fit_of
from tidemark.ports.source import ReportsPosition, ReportsWaiting

SHARDS_LISTED_MAX: Final = 50
SHARDS_BY_CHANCE: Final = 5
SHARE_TXNS: Final = 100
"""The number of newest transactions over which the share of quarantined records is computed."""


def status_of(
    deployment: Deployment,
    *,
    now_seconds: float,
    asks_source: bool = True,
    proofs_at_ends: int = ASKED_AT_ONCE_MAX,
    every_shard: bool = False,
) -> Status:
    """The pipeline's status, from its ledgers and, with `asks_source`, from its source.

    Of more than `SHARDS_LISTED_MAX` shards, it looks at those that have work or trouble, unless it is to look
    at `every_shard`. The source also reports whether the oldest and newest `proofs_at_ends` transactions are
    replayable. A pipeline file that doesn't fit the warehouse is reported as a block."""
    pipeline = deployment.unchecked
    control = pipeline.control
    fit = fit_of(pipeline, looks_ahead=False)
    bound = control.bindings.head().upper - 1
    seals = control.seals.head()
    done = control.checkpoints.head().upper - 1
    held = paused_shards(pipeline)
    shards = deployment.shards
    looked_at = shards if every_shard else shards_of_interest(pipeline, shards, held, seed=now_seconds)
    blocked = stops(pipeline, fit, looked_at, held)
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
        shards=shard_statuses(pipeline, (*looked_at, *fit.left_out), fit.left_out, held),
        unlisted=len(shards) - len(looked_at),
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
        candidate=candidate_status(deployment),
    )


def candidate_status(deployment: Deployment) -> CandidateStatus | None:
    """The status of the candidate generation; None without one. Reads the newest record of a candidate, and
    the heads of two histories."""
    control = deployment.unchecked.control
    upper = control.candidates.head().upper
    newest = control.candidates.read(max(TXN_FIRST, upper - 1), upper)
    found = current(newest, generation=control.candidates.head().generation)
    if found is None:
        return None
    has = 0 if found.from_now else deployment.shadow_control(found).seals.head().upper
    behind = 0 if found.from_now else max(0, control.seals.head().upper - has)
    started = written_at(control.candidates, found.number)
    return CandidateStatus(found.generation, found.identity, found.reason, found.from_now, behind, started)


def shards_of_interest(
    pipeline: Pipeline, shards: Sequence[ShardId], held: Container[ShardId], *, seed: float
) -> Sequence[ShardId]:
    """All shards if there are few. Of many, those whose logs wait or lack a sealed transaction, those that
    the newest transactions touch, and some by chance, so that time finds what was lost in idle ones."""
    if len(shards) <= SHARDS_LISTED_MAX:
        return shards
    behind = unfinished(pipeline)
    newest = pipeline.control.seals.read(behind.sealed_upper - LOGS_LOOKED_AT, behind.sealed_upper)
    touched = dict.fromkeys(shard for seal in reversed(newest) for shard in seal.shards)
    wanted = {*islice(touched, LOGS_LOOKED_AT), *behind.lowers}
    wanted |= set(Random(seed).sample(shards, SHARDS_BY_CHANCE))
    return [shard for shard in shards if shard in wanted or shard in held]


def stops(
    pipeline: Pipeline, fit: Fit, looked_at: Sequence[ShardId], held: Mapping[ShardId, Paused]
) -> list[Blocked]:
    """What stops the pipeline or one of its shards."""
    control = pipeline.control
    blocked = [Blocked("the pipeline file does not fit", None, str(one)) for one in fit.refused]
    if lost := losses(control, (*looked_at, QUARANTINE)):
        blocked = [*(Blocked(LOST, None, one) for one in lost), *blocked]
    try:
        require_home(control)
    except CopiedWarehouse as copied:
        blocked.insert(0, Blocked(COPIED, None, copied.fact))
    for shard, waits in held.items():
        what = f"shard {shard} at transaction {waits.txn}"
        blocked.append(Blocked(what, written_at(control.seals, waits.txn), waits.reason, waits.txn, shard))
    return blocked


def witness_of(config: PipelineConfig) -> str:
    """The record of the pipeline's progress outside of its warehouse. Empty for files: they have no such
    record and are bound again."""
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
    """The status of each shard, and of the quarantine if its log has transactions."""
    found: list[ShardStatus] = []
    for shard in (*shards, QUARANTINE):
        log = pipeline.control.log(shard).head()
        waits = held.get(shard)
        paused = f"at {waits.txn}: {waits.reason}" if waits is not None else ""
        last = None if shard == QUARANTINE else last_published(pipeline.control, shard)
        rows = last.commit.digest.count if last is not None else None
        if shard != QUARANTINE or log.upper > 1:
            others = (published_txn(last), paused, shard in left_out, rows)
            found.append(ShardStatus(shard, log.upper, log.version, *others))
    return tuple(found)


def waiting_input(pipeline: Pipeline) -> Input:
    """The input that waits in the source; unknown if the source can't report it. Asks the source."""
    if not isinstance(pipeline.source, ReportsWaiting):
        return Input()
    found = pipeline.source.waiting(last_binding(pipeline, pipeline.control.bindings.head()))
    oldest = datetime.fromtimestamp(found.oldest_seconds, UTC) if found.oldest_seconds is not None else None
    return Input(not found.trouble, found.pieces, found.bytes, oldest, found.trouble, found.unit)


def quarantined_in_logs(pipeline: Pipeline) -> Quarantined:
    """The number of quarantined records, from the log's list of files, and their share of the newest
    transactions, from the seals. The cost does not grow with the history. A promotion quarantines records
    that earlier transactions have read, so it has no part in the share."""
    log, seals = pipeline.control.log(QUARANTINE), pipeline.control.seals
    upper = seals.head().upper
    log.head()
    files = log.files()
    newest = [
        seal
        for seal in seals.read(max(1, upper - SHARE_TXNS), upper)
        if seal.decision is not Decision.CORRECTED
    ]
    return Quarantined(
        records=sum(file.part.rows for file in files),
        last=written_at(seals, max(file.txn_last for file in files)) if files else None,
        newest_txns=len(newest),
        newest_read=sum(seal.source.count for seal in newest),
        newest_records=sum(map(quarantined_in, newest)),
    )


def proofs_of(pipeline: Pipeline, since: Txn, at_ends: int) -> tuple[Proof, ...]:
    """Whether, and until when, transactions from `since` on are replayable: of the oldest and the newest
    `at_ends`, joined into ranges with equal answers."""

    def proof_of(txn: int, one: Replayable) -> Proof:
        until = datetime.fromtimestamp(one.until_seconds, UTC) if one.until_seconds is not None else None
        return Proof(txn, txn, one.gone, until, one.caveat)

    spans: list[Proof] = []
    for txn, found in replayable(pipeline, since=since, at_ends=at_ends).items():
        one = proof_of(txn, found)
        if spans and spans[-1].last == txn - 1 and replace(spans[-1], first=txn, last=txn) == one:
            spans[-1] = replace(spans[-1], last=txn)
        else:
            spans.append(one)
    return tuple(spans)


def source_status(
    pipeline: Pipeline, *, bound: int, done: int, unsealed: tuple[int, ...]
) -> SourceStatus | None:
    """The status of a source that needs acknowledgement; None for any other. Asks the source."""
    source = pipeline.source
    if not isinstance(source, ReportsPosition):
        return None
    received, flushed = (
        source.shown(binding_at(pipeline, Txn(txn)).upper if txn else Frontier()) for txn in (bound, done)
    )
    holds = [f"shard {lag.shard}, which lacks transaction {lag.wanted.txn}" for lag in holding_back(pipeline)]
    if unsealed:
        holds.append(f"transaction {unsealed[0]}, which is not sealed")
    position = source.status()
    return SourceStatus(
        received,
        flushed,
        position.acknowledged,
        tuple(holds),
        position.cost,
        position.trouble,
        position.retained_bytes,
    )


# Alarms.


def check_alarms(deployment: Deployment, found: Status) -> Notices:
    """Compare the alarms of a status, by the pipeline file's limits, with those that were sent."""
    journal = deployment.unchecked.control.journal
    journal.head()
    return decide_notices(alarms_of(found, deployment.config.alarms.limits), journal.find(str(TXN_NONE)))


def note_alarm(deployment: Deployment, attempt: Attempt, alarm: Alarm) -> None:
    """Record that an alarm was sent."""
    detail = {"alarm": alarm.identity, "fact": alarm.fact, "run": attempt.owner.run_id}
    note(deployment.unchecked, Event.ALARM, txn=TXN_NONE, token=attempt.token, detail=detail)


def note_alarm_over(deployment: Deployment, attempt: Attempt, alarm: str) -> None:
    """Record that an alarm is over: if it returns, it is sent again."""
    detail = {"alarm": alarm, "run": attempt.owner.run_id}
    note(deployment.unchecked, Event.ALARM_OVER, txn=TXN_NONE, token=attempt.token, detail=detail)
