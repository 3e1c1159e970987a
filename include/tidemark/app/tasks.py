"""The tasks of a run: each does one step with a deployment and returns a report of a few kilobytes.

The steps are idempotent and find their work in durable records. So the same function runs in a worker without
Spark, which raises `SparkNeeded` when it needs a session, in a submitted job, and in a worker that is
connected to a warm server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tidemark.app import decisions, maintenance
from tidemark.app.deployment import Deployment, discovered
from tidemark.app.publish import publish_due, publish_now
from tidemark.app.reports import (
    LISTED_MAX,
    Report,
    gathered_report,
    publish_report,
    sentence_of,
    shard_report,
    txns_report,
    verdicts_report,
)
from tidemark.config import load_pipeline
from tidemark.core.checksum import SOURCE
from tidemark.core.errors import TidemarkError
from tidemark.core.generation import GRACE_SECONDS
from tidemark.core.ids import QUARANTINE, TXN_NONE, ShardId, Txn
from tidemark.core.ledger import Event
from tidemark.core.replay import Difference, Finding, Verdict
from tidemark.core.seal import CORRECTION, Seal
from tidemark.pipeline.checkpoint import checkpoint as advance
from tidemark.pipeline.context import Attempt, note, seal_at, sealed_binding
from tidemark.pipeline.ingest import Progress, found_by, gather, no_progress
from tidemark.pipeline.journal import Announcement, announcements, note_overruled
from tidemark.pipeline.publish import last_published
from tidemark.pipeline.reclock import known_plan, mint, only_proves, owned_txns
from tidemark.pipeline.repair import repair
from tidemark.pipeline.replay import REPAIR, bound_range, merged_files, replay_plan
from tidemark.pipeline.run import replay
from tidemark.pipeline.schema_change import left_out
from tidemark.pipeline.upsert import seal_judged
from tidemark.pipeline.validate import judge_gathered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.app.job import Order
    from tidemark.spark.correction import Comparison


SAMPLE_KEYS_MAX: Final = 10
SAMPLED_TXNS_MAX: Final = 10
RECORDED_KEYS_MAX: Final = 20


class SparkNeeded(Exception):
    """The step can't continue without a Spark session."""


def no_session() -> NoReturn:
    raise SparkNeeded


def open_pipeline(
    file: str | Path,
    environment: str | None,
    session: Callable[[], SparkSession] = no_session,
    *,
    binds: bool = False,
) -> Deployment:
    """The deployment of a pipeline file; without a session, for the control plane only.

    With `binds`, the source is asked for its tables first, if the file leaves them to the source."""
    config = load_pipeline(file, environment)
    return Deployment(discovered(config) if binds else config, session)


def open_to_bind(file: str | Path, environment: str | None, attempt: Attempt) -> Deployment:
    """The deployment for the step that binds. A run that only proves does not need the source."""
    proves = attempt.cleared and only_proves(open_pipeline(file, environment).pipeline, attempt)
    return open_pipeline(file, environment, binds=not proves)


def reclock(deployment: Deployment, attempt: Attempt) -> Report:
    """Find the run's transactions, or mint them.

    If another run has bound this run's share, the warehouse has a record of the run that the scheduler has
    lost. The run is then reported as `recognised` and treated as cleared: it is proven, never done again.
    """
    owned = deployment.up_to_date(lambda: mint(deployment.pipeline, attempt))
    plan = known_plan(deployment.pipeline, attempt)
    return {
        "pipeline": deployment.config.name,
        "owned": txns_report(owned.txns),
        "open": list(plan.finish[:LISTED_MAX]),
        "minted": owned.minted,
        "recognised": attempt.proves(owned) and not attempt.cleared,
        "recorded_run_id": owned.owner.run_id,
        "proposal": deployment.proposal,
        "left_out": {str(shard): txn for shard, txn in left_out(deployment.pipeline).items()},
    }


def ingest(deployment: Deployment, attempt: Attempt, *, progress: Progress = no_progress) -> Report:
    """Stage the open transactions; replay those that are to be proven."""
    gathered = deployment.up_to_date(lambda: gather(deployment.pipeline, attempt, progress=progress))
    return gathered_report(gathered)


def load_gate() -> None:
    """Load Great Expectations, which takes seconds, before the gate needs it."""
    from tidemark.quality import engine

    engine.load()


def validate(deployment: Deployment, attempt: Attempt, *, progress: Progress = no_progress) -> Report:
    """Judge the staged and the replayed transactions, and document every verdict."""
    confirm = deployment.confirm
    return verdicts_report(judge_gathered(deployment.pipeline, attempt, confirm=confirm, progress=progress))


def quarantine_red(deployment: Deployment, attempt: Attempt, *, progress: Progress = no_progress) -> Report:
    """Stage red transactions again with the rows in quarantine that made them red, as a person asked, and
    judge them."""
    return verdicts_report(decisions.quarantine_red(deployment, attempt, progress=progress))


def upsert(
    deployment: Deployment,
    attempt: Attempt,
    *,
    progress: Progress = no_progress,
    publishes_all: bool = False,
) -> Report:
    """Seal the transactions that passed, append them to the logs, and publish what is due (or everything)."""
    deployment.up_to_date(lambda: seal_judged(deployment.pipeline, attempt, progress=progress))
    if publishes_all:
        deployment.up_to_date(lambda: publish_now(deployment, attempt, deployment.shards))
    else:
        deployment.up_to_date(lambda: publish_due(deployment, attempt, progress=progress))
    found = found_by(deployment.pipeline, attempt)
    staged = {one.txn: one.token for one in found if one.staged is not None and not one.replayed}
    seals = seals_of(deployment, sorted(staged))
    own = {(one.txn, one.token) for one in found}
    touched = {shard for seal in seals for shard in seal.shards}
    shards = [shard for shard in deployment.shards if shard in touched]
    published = {shard: last_published(deployment.control, shard) for shard in shards}
    return {
        "sealed": txns_report(seal.txn for seal in seals if (seal.txn, seal.token) in own),
        "lost": txns_report(seal.txn for seal in seals if (seal.txn, seal.token) not in own),
        "published": {str(shard): publish_report(last) for shard, last in published.items() if last},
    }


def seals_of(deployment: Deployment, txns: Sequence[Txn]) -> Sequence[Seal]:
    """The seals of the given transactions (in ascending order), without those that are still open."""
    upper = deployment.control.seals.head().upper
    if not txns:
        return ()
    found = deployment.control.seals.read(txns[0], min(txns[-1] + 1, upper))
    return [seal for seal in found if seal.txn in set(txns)]


def checkpoint(deployment: Deployment, attempt: Attempt) -> tuple[Report, Sequence[Announcement]]:
    """Advance the checkpoint, acknowledge the source, and report the run's changes to each shard that were
    not announced before, and those of the last promotion, which no run owns. Overruled verdicts are recorded
    first."""
    reached = advance(deployment.pipeline)
    found = found_by(deployment.pipeline, attempt)
    staged = {one.txn for one in found if not one.replayed}
    txns = sorted(staged.union(owned_txns(deployment.pipeline, attempt)))
    made = announcements(deployment.pipeline, attempt, seals_of(deployment, txns))
    promoted = Txn(deployment.control.seals.mark(CORRECTION))
    if TXN_NONE < promoted <= reached and promoted not in txns:
        theirs = announcements(deployment.pipeline, attempt, seals_of(deployment, [promoted]))
        made = tuple(sorted((*made, *(one for one in theirs if not one.unchanged)), key=_txn_of))
    note_overruled(deployment.pipeline, attempt, made)
    news = [one for one in made if not one.unchanged]
    touched = {shard: [one for one in news if one.seal.touches(shard)] for shard in announced(deployment)}
    shards = {str(shard): shard_report(deployment, shard, its) for shard, its in touched.items() if its}
    unchanged = [one.seal.txn for one in made if one.unchanged][-LISTED_MAX:]
    sentence = sentence_of(deployment.pipeline, attempt)
    return {"checkpoint": reached, "sentence": sentence, "shards": shards, "unchanged": unchanged}, made


def _txn_of(one: Announcement) -> Txn:
    return one.seal.txn


def announced(deployment: Deployment) -> tuple[ShardId, ...]:
    """The shards whose changes are announced downstream: the pipeline's and its quarantine."""
    return (*deployment.shards, QUARANTINE)


def repaired(
    deployment: Deployment, attempt: Attempt, restored: Sequence[tuple[int, str]]
) -> tuple[Report, Sequence[Announcement]]:
    """The report on restored parts, given by transaction and shard, of transactions that were announced:
    their readers may have read damaged data."""
    seals = seals_of(deployment, sorted({Txn(txn) for txn, _ in restored}))
    made = [one for one in announcements(deployment.pipeline, attempt, seals) if one.repaired]
    touched = {
        shard: [one for one in made if (one.seal.txn, shard) in set(restored)]
        for shard in announced(deployment)
    }
    return {str(shard): shard_report(deployment, shard, its) for shard, its in touched.items() if its}, made


def replay_preview(deployment: Deployment, *, txn_from: int, txn_to: int | None) -> list[Report]:
    """The input that a replay would read, and whether it still exists. Reads no data."""
    txns = bound_range(deployment.pipeline, txn_from=txn_from, txn_to=txn_to)
    steps = replay_plan(deployment.pipeline, txn_from=Txn(txns[0]), txn_to=Txn(txns[-1]))
    return [
        {
            "txn": step.binding.txn,
            "action": step.action.value,
            "read": step.seal.source.count if step.seal is not None else None,
            "gone": deployment.pipeline.source.inspect(step.binding),
            "run_id": step.binding.owner.run_id,
        }
        for step in steps
    ]


def replay_range(
    deployment: Deployment,
    attempt: Attempt,
    *,
    txn_from: int,
    txn_to: int | None,
    mode: str,
    progress: Progress = no_progress,
) -> tuple[tuple[Finding, ...], list[tuple[int, str, str]]]:
    """Prove every transaction of a range, or finish it if it is open; with `repair`, restore lost parts."""
    works = deployment.pipeline
    txns = bound_range(works, txn_from=txn_from, txn_to=txn_to)
    sealed = range(txns[0], min(txns[-1] + 1, deployment.control.seals.head().upper))
    mended = sealed if mode == REPAIR else range(0)
    findings: list[Finding] = []
    restored: list[tuple[int, str, str]] = []
    for txn in mended:
        progress(Txn(txn), "repair")
        done = repair(works, attempt, Txn(txn))
        findings.append(done.finding)
        restored += [(txn, str(shard), part.path) for shard, part in done.parts]

    def proven(txn: Txn) -> tuple[Finding, ...]:
        return replay(deployment.pipeline, attempt, txn_from=txn, txn_to=txn, progress=progress)

    for txn in txns[len(mended) :]:
        findings += deployment.up_to_date(partial(proven, Txn(txn)))
    return tuple(findings), restored


def differing_rows(
    deployment: Deployment,
    attempt: Attempt,
    findings: Sequence[Finding],
    *,
    progress: Progress = no_progress,
) -> tuple[Difference, ...]:
    """For each shard with the verdict `differs`, a few keys with their differences, for people. The journal
    gets the keys, up to `RECORDED_KEYS_MAX` of a transaction, and no other values.

    The input is read again and compared with the sealed parts. Data that can't be read is left out; the
    verdict does not depend on it."""
    found: list[Difference] = []
    differ = [finding for finding in findings if finding.verdict is Verdict.DIFFERS]
    for finding in differ[:SAMPLED_TXNS_MAX]:
        names = [one.endpoint.removeprefix("shard:") for one in finding.mismatches if one.endpoint != SOURCE]
        progress(finding.txn, "look at what differs")
        seal = seal_at(deployment.pipeline, finding.txn)
        binding = sealed_binding(deployment.pipeline, seal)
        shards = [ShardId(name) for name in names if name != QUARANTINE]
        parts = {shard: seal.shards[shard].parts if seal.touches(shard) else () for shard in shards}
        merged = merged_files(deployment.pipeline, seal)
        parts |= {shard: tuple(file.part for file in files) for shard, files in merged.items()}
        with suppress(TidemarkError):
            sample = deployment.plane().sample(binding, parts, limit=SAMPLE_KEYS_MAX)
            found += sample
            keys = json.dumps([one.recorded for one in sample[:RECORDED_KEYS_MAX]])
            detail = {"keys": keys, "run": attempt.owner.run_id}
            note(deployment.pipeline, Event.SAMPLED, txn=seal.txn, token=attempt.token, detail=detail)
    return tuple(found)


def generation(deployment: Deployment, order: Order, *, progress: Progress = no_progress) -> Report:
    """One part of a replacement (`airflow.replace`). Each can be repeated after any failure."""
    from tidemark.app.generation import Generations

    part, _, from_now = order.mode.partition(" ")
    found = Generations(deployment)
    report: Report = {
        "pipeline": deployment.config.name,
        "part": part,
        "generation": deployment.file.generation,
    }
    if part == "promote" and found.is_promoted(order.candidate):
        found.clean()  # The try that has done it may have died before it had.
        return {**report, "already": True}
    if part == "follow":
        if order.candidate:
            found.required(order.candidate)
        asked: dict[str, Any] = {
            "since": order.txn_from,
            "until": order.txn_to,
            "from_now": bool(from_now),
            "replaces": [shard for shard in order.replace.split(",") if shard],
        }
        candidate = found.going_on(**asked) or found.start(reason=order.reason, **asked)
    else:
        candidate = found.required(order.candidate)
    pair = found.pair(candidate)
    report |= {
        "generation": candidate.generation,
        "candidate": candidate.identity,
        "undoes": candidate.undoes,
        "from_now": candidate.from_now,
    }
    if part == "follow":
        done = list(pair.follow(order.attempt, progress=progress))
        at = pair.position()
        return {
            **report,
            "followed": len(done),
            "txn": at.txn,
            "behind": at.behind,
            "differs": sum(bool(one.differs) for one in done),
            "other_input": sum(not one.source_equal for one in done),
        }
    if part == "compare":
        counts = {} if candidate.from_now else pair.compare()
        return {**report, **compared_report(counts)}
    if not candidate.from_now:
        deployment.session()  # Before anything is bound.
    wait_seconds = order.wait_seconds or GRACE_SECONDS
    promoted = pair.promote(order.attempt, grace_seconds=wait_seconds, user=order.user, progress=progress)
    rows = {str(s): one.upserts + one.deletes for s, one in promoted.corrections.items() if one.parts}
    listed = dict(list(rows.items())[:LISTED_MAX])
    return {**report, "txn": promoted.txn, "rows": listed, "rows_total": sum(rows.values())}


def compared_report(found: Mapping[ShardId, Comparison]) -> Report:
    """The shards whose rows would change: the first `LISTED_MAX` one by one, and the total of all others."""
    changed = [
        (str(shard), {"new": one.inserted, "changed": one.changed, "gone": one.deleted})
        for shard, one in found.items()
        if not one.is_equal
    ]
    others = [counts for _, counts in changed[LISTED_MAX:]]
    rest = {kind: sum(counts[kind] for counts in others) for kind in ("new", "changed", "gone")}
    return {"compared": dict(changed[:LISTED_MAX]), "others": {"shards": len(others), **rest}}


def maintenance_plan(deployment: Deployment, *, asks_source: bool = True) -> Report:
    """The work that maintenance would do now, and what holds it back. Changes nothing, starts no Spark."""
    found = maintenance.plan(deployment, maintenance.terms_of(deployment), asks_source=asks_source)
    return {
        "pipeline": found.pipeline,
        "since": found.since,
        "left": [asdict(chore) for chore in found.chores],
        "warnings": list(found.warnings),
    }


def maintain(deployment: Deployment, attempt: Attempt, *, progress: Progress = no_progress) -> Report:
    """Publish what is due, then maintain logs, states and control tables (`app.maintenance`)."""
    published = deployment.up_to_date(lambda: publish_due(deployment, attempt, every=True, progress=progress))
    done = maintenance.maintain(deployment, attempt.token, maintenance.terms_of(deployment))
    return {
        "pipeline": done.pipeline,
        "published": {str(shard): publish_report(one) for shard, one in published.items()},
        "since": done.since,
        "done": [asdict(chore) for chore in done.chores],
        "warnings": list(done.warnings),
    }
