"""Reports of tasks, runs and transactions, as plain values and as text.

They are for XCom, an asset's event, a log, the command and the pages in Airflow. A task's report has no rows
and at most a few kilobytes. What is reported of runs and transactions comes from the ledgers and the journal,
so the answer does not depend on the process that did the work, nor on the scheduler's database. Nothing here
changes data or starts Spark.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from tidemark.app.deployment import Deployment
from tidemark.app.status import waiting_input
from tidemark.core.binding import Binding
from tidemark.core.errors import Determinate, TidemarkError
from tidemark.core.ids import QUARANTINE, ShardId, Txn, WriterToken
from tidemark.core.ledger import Event
from tidemark.core.publish import Published
from tidemark.core.replay import Verdict
from tidemark.core.seal import Evidence, Seal
from tidemark.core.text import (
    Proof,
    RunFacts,
    applied_in,
    plain,
    quarantined_in,
    ranges,
    run_sentence,
    short,
    waiting_text,
)
from tidemark.pipeline.context import Attempt, Pipeline, attempts_at, attempts_of, binding_at
from tidemark.pipeline.ingest import found_by
from tidemark.pipeline.journal import Announcement, announcement_of, refused_since, times_of, written_at
from tidemark.pipeline.publish import last_published
from tidemark.pipeline.reclock import owned_txns
from tidemark.pipeline.replay import PARTS_DIFFER, PROMOTION_DIFFERS, bound_range
from tidemark.pipeline.validate import Judged, judged_in

Report = dict[str, Any]
LISTED_MAX: Final = 100
REASONS_MAX: Final = 10

T = TypeVar("T")


def rows_of(shards: Mapping[ShardId, Any]) -> dict[str, int]:
    return {str(shard): parts.digest.count for shard, parts in shards.items()}


def gathered_report(gathered: Sequence[Evidence]) -> Report:
    """The staged and replayed transactions: the first `LISTED_MAX` one by one, and totals of all. The table
    of attempts has all of them."""
    staged = [
        {
            "txn": one.txn,
            "read": one.staged.source.count,
            "quarantined": rows_of(one.staged.shards).get(QUARANTINE, 0),
            "shards": len(one.staged.shards),
        }
        for one in gathered
        if one.staged is not None and not one.replayed
    ]
    replayed = [one.txn for one in gathered if one.replayed and one.staged is not None]
    gone = {str(one.txn): short(one.gone) for one in gathered if one.gone}
    return {
        "staged": staged[:LISTED_MAX],
        "replayed": replayed[:LISTED_MAX],
        "gone": dict(list(gone.items())[:LISTED_MAX]),
        "total": {
            "staged": len(staged),
            "replayed": len(replayed),
            "gone": len(gone),
            "read": sum(one["read"] for one in staged),
            "quarantined": sum(one["quarantined"] for one in staged),
        },
    }


def txns_report(txns: Iterable[int]) -> Report:
    """The number of transactions, and their first ranges."""
    found = sorted(set(txns))
    return {"count": len(found), "ranges": [list(one) for one in ranges(found)[:LISTED_MAX]]}


def verdicts_report(judged: Sequence[Judged]) -> Report:
    """The verdicts of a gate that has passed, at most `LISTED_MAX` of them. Those with held shards, warnings
    or another verdict than `identical` take precedence. The journal has all of them."""
    notable = [one for one in judged if one.gated.opinion.held or one.gated.opinion.warned or not _plain(one)]
    plain = [one for one in judged if one not in notable]
    listed = sorted((notable + plain)[:LISTED_MAX], key=lambda one: one.txn)
    return {
        "total": len(judged),
        "verdicts": [
            {
                "txn": one.txn,
                "verdict": str(one.gated.finding.verdict),
                "replayed": one.replayed,
                "held": {str(shard): short(why) for shard, why in _first(one.gated.opinion.held.items())},
                "warned": [short(why) for why in _first(one.gated.opinion.warned)],
                "compared": one.gated.compared,
                "rows": one.gated.rows,
                "expectations": one.gated.opinion.checked,
            }
            for one in listed
        ],
    }


def _plain(one: Judged) -> bool:
    return one.gated.finding.verdict is Verdict.IDENTICAL


def _first(items: Iterable[T]) -> list[T]:
    return list(items)[:REASONS_MAX]


def publish_report(published: Published) -> Report:
    return {"txn": published.txn, "version": published.version, "rows": published.commit.digest.count}


def shard_report(deployment: Deployment, shard: ShardId, announced: Sequence[Announcement]) -> Report:
    """The payload of an asset's event: it wakes up consumers, which keep their own frontier."""
    seals = [one.seal for one in announced]
    log = deployment.control.log(shard).head()
    published = last_published(deployment.control, shard)
    return {
        "txn_from": seals[0].txn,
        "txn_to": seals[-1].txn,
        "link": f"{seals[-1].link:016x}",
        "upper": log.upper,
        "log_version": log.version,
        "published_txn": published.txn if published is not None else 0,
        "state_version": published.version if published is not None else None,
        "rows": sum(seal.shards[shard].digest.count for seal in seals),
        "digests": {str(seal.txn): str(seal.shards[shard].digest) for seal in seals[-LISTED_MAX:]},
        **gate_report(announced),
    }


def gate_report(announced: Sequence[Announcement]) -> Report:
    """The gate's verdict (`identical` if it is so for every transaction, else the first other one), the
    transactions that people overruled, and those that were repaired after they were announced."""
    other = [one.gate for one in announced if one.gate != Verdict.IDENTICAL]
    overruled = {str(one.seal.txn): one.overruled for one in announced if one.overruled}
    return {
        "verdict": other[0] if other else str(Verdict.IDENTICAL),
        "overruled": dict(list(overruled.items())[-LISTED_MAX:]),
        "repaired": [one.seal.txn for one in announced if one.repaired][-LISTED_MAX:],
    }


def replay_report(deployment: Deployment, attempt: Attempt, *, txn_from: int, txn_to: int) -> Report:
    """A replay's report from the journal: the last verdict on each transaction, and the restored parts.

    Any process can make it. `Determinate` if a transaction has no verdict: it is then not proven."""
    journal = deployment.control.journal
    journal.head()
    txns = bound_range(deployment.pipeline, txn_from=txn_from, txn_to=txn_to or None)
    entries = [entry for txn in txns for entry in journal.find(str(txn)) if entry.token == attempt.token]
    findings = {
        one.txn: {"txn": one.txn, "verdict": one.detail["verdict"], "finding": one.detail["finding"]}
        for one in entries
        if one.event is Event.VERIFIED
    }
    restored = [
        {"txn": one.txn, "shard": shard, "part": part}
        for one in entries
        if one.event is Event.REPAIRED
        for shard, parts in json.loads(one.detail["parts"]).items()
        for part in parts
    ]
    require_verdicts(txns, findings)
    return {"findings": list(findings.values()), "restored": restored}


def require_verdicts(asked: Iterable[int], judged: Container[int]) -> None:
    """`Determinate` if this try has no verdict on one of the transactions that it was asked to prove."""
    missing = [txn for txn in asked if txn not in judged]
    if missing:
        listed = ", ".join(map(str, missing[:LISTED_MAX]))
        raise Determinate(f"this attempt left no verdict on transactions {listed}", hint="retry")


def for_environment(environment: str | None) -> str:
    """The option that selects this environment, to append to a command line; empty without one."""
    return f" -e {shlex.quote(environment)}" if environment else ""


def explained(
    red: Sequence[Judged],
    pipeline_file: str,
    environment: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> str:
    """Why a gate is red and the ways out, for people: a summary, the details, then commands to paste into a
    shell. `settings` are the environment variables that locate the warehouse."""
    pipeline = shlex.quote(str(Path(pipeline_file).absolute()))
    command = " ".join(
        [*(f"{name}={shlex.quote(value)}" for name, value in (settings or {}).items()), "tidemark"]
    )
    there = for_environment(environment)
    lines = [f"the gate is red: {', '.join(f'transaction {one.txn}: {one.gated.word}' for one in red)}"]
    for one in red:
        finding = one.gated.finding
        # A finding from the journal has its whole text in `why`.
        lines.append(finding.why or str(finding))
        lines += [f"  expectation not met: {failed}" for failed in one.gated.opinion.failed]
        if one.replayed:
            lines += [
                "what is committed does not change, and downstream tasks wait. What you can do:",
                *ways_out_of_proof(command, pipeline, one, there),
            ]
        else:
            lines += ["none of it is visible. What you can do:", *ways_out(command, pipeline, one, there)]
    return "\n".join(lines)


def ways_out_of_proof(command: str, pipeline: str, one: Judged, there: str) -> list[str]:
    """The remedies for a committed transaction. Only parts can be repaired, and only from unchanged input."""
    finding = one.gated.finding
    match finding.verdict:
        case Verdict.INPUT_GONE:
            return ["  restore the missing input and clear this task"]
        case Verdict.LOST:
            return ["  nothing: its decision is lost, so there is nothing to compare with"]
        case Verdict.NOT_COMPARABLE:
            return ["  replay it with the versions that sealed it: nothing shows an error"]
        # A finding that was read back from the journal has its reason within its text.
        case _ if PROMOTION_DIFFERS in str(finding):
            return ["  restore the lost files from a backup and clear this task"]
        case _ if PARTS_DIFFER in str(finding):
            repair = f"  {command} replay {pipeline} --from {one.txn} --to {one.txn} --mode repair{there}"
            return [repair, "  restores the parts; then clear this task"]
        case _:
            return ["  restore the changed input and clear this task"]


def ways_out(command: str, pipeline: str, one: Judged, there: str) -> list[str]:
    """The remedies for an open transaction. If its input is gone, there are no parts to accept."""
    skip = f'  {command} skip {pipeline} {one.txn} --reason "..."{there}     skips it'
    if one.gated.finding.verdict is Verdict.INPUT_GONE:
        return ["  restore the input and clear the run's tasks from ingest on; or", skip]
    quarantine = (
        "  write `action: quarantine` for the expectation, and clear from ingest on: quarantines the rows; or"
    )
    return [
        "  fix the cause and clear the run's tasks from ingest on; or",
        *([quarantine] if one.gated.opinion.failed else []),
        f'  {command} accept {pipeline} {one.txn} --reason "..."{there}   commits it as it is; or',
        skip,
    ]


Row = dict[str, Any]
STEPS_SHARDS_MAX: Final = 20


def every(row: Row) -> bool:
    """Leaves no transaction out."""
    return True


def listed(
    deployment: Deployment, *, lower: int, upper: int, wanted: Callable[[Row], bool] = every
) -> tuple[list[Row], dict[Txn, Seal]]:
    """The wanted transactions in [lower, upper), the newest first, and the seals of all that have one.
    `wanted` sees a row without its times and tries, which are looked up for wanted rows only."""
    control = deployment.control
    control.bindings.head()
    control.seals.head()
    control.journal.head()
    seals = {seal.txn: seal for seal in control.seals.read(lower, upper)}
    bound = control.bindings.read(lower, upper)
    rows = {one.txn: _row(deployment, one, seals.get(one.txn)) for one in reversed(bound)}
    left = [one for one in reversed(bound) if wanted(rows[one.txn])]
    tries = attempts_of(deployment.pipeline, left) if left else {}
    stories = (_story(deployment, one, seals.get(one.txn), tries[one.txn]) for one in left)
    return [{**rows[one.txn], **story} for one, story in zip(left, stories, strict=True)], seals


def _row(deployment: Deployment, binding: Binding, seal: Seal | None) -> Row:
    """What the records of a transaction say themselves."""
    verdicts = [
        {"verdict": judged_in(entry).gated.word, "replayed": entry.event is Event.VERIFIED}
        for entry in deployment.control.journal.find(str(binding.txn))
        if entry.event in (Event.JUDGED, Event.VERIFIED)
    ]
    replays = [one["verdict"] for one in verdicts if one["replayed"]]
    shards = seal.shards if seal is not None else {}
    return {
        "txn": binding.txn,
        "decision": str(seal.decision) if seal is not None else "open",
        "read": seal.source.count if seal is not None else None,
        "quarantined": quarantined_in(seal) if seal is not None else None,
        "applied": applied_in(seal) if seal is not None else None,
        "rows": {shard: parts.digest.count for shard, parts in shards.items()},
        "deletes": {shard: parts.deletes for shard, parts in shards.items() if parts.deletes is not None},
        "run": binding.owner.run_id,
        "verdict": replays[-1] if replays else "",
        "verdicts": verdicts,
    }


def _story(deployment: Deployment, binding: Binding, seal: Seal | None, tries: Sequence[Evidence]) -> Row:
    """A transaction's times and steps, and who won and who lost its seal."""
    times = times_of(deployment.control, binding.txn)
    staged = {one.token: one.owner.run_id for one in tries if not one.replayed and one.staged is not None}
    won = seal.token if seal is not None else ""
    return {
        "bound_at": times.bound,
        "sealed_at": times.sealed,
        "seconds": times.seconds,
        "steps": _seconds_of(_moments(deployment, binding, seal, tries)),
        "won": {"token": won, "run": staged.get(WriterToken(won), "")} if won else None,
        "lost": [{"token": one, "run": run} for one, run in staged.items() if won and one != won],
    }


def recent(deployment: Deployment, *, limit: int) -> list[Row]:
    """The input of the newest sealed transactions, and how long they were open, the oldest first."""
    control = deployment.control
    control.bindings.head()
    upper = control.seals.head().upper
    return [
        {
            "txn": seal.txn,
            "read": seal.source.count,
            "quarantined": quarantined_in(seal),
            "seconds": times_of(control, seal.txn).seconds,
        }
        for seal in control.seals.read(max(1, upper - limit), upper)
    ]


def steps_of(deployment: Deployment, binding: Binding, seal: Seal | None) -> list[Row]:
    """The time and the duration of each step of a transaction, from the records that the steps left: of the
    sealed try, else of the last one. A step without a record is left out."""
    logs = {f"in the log of {shard}": _appended(deployment, shard, binding.txn) for shard in _shards(seal)}
    moments = {**_moments(deployment, binding, seal, attempts_at(deployment.pipeline, binding)), **logs}
    rows: list[Row] = []
    before = moments["bound"]
    for step, at in moments.items():
        if at is not None and before is not None:
            took = max(0.0, (at - before).total_seconds())
            rows.append({"step": step, "at": at, "seconds": took if step != "bound" else None})
            before = before if step.startswith("in the log") else at
    return rows


def step_seconds(deployment: Deployment, binding: Binding, seal: Seal) -> dict[str, float]:
    """The duration of each step up to the seal, by the step's name, and the whole as `transaction`."""
    return _seconds_of(_moments(deployment, binding, seal, attempts_at(deployment.pipeline, binding)))


def _seconds_of(moments: Mapping[str, datetime | None]) -> dict[str, float]:
    named = {"staged": "ingest", "judged": "validate", "sealed": "upsert"}
    found: dict[str, float] = {}
    first = before = moments["bound"]
    for moment, at in moments.items():
        if at is not None and before is not None and moment in named:
            found[named[moment]] = max(0.0, (at - before).total_seconds())
            before = at
    if first is not None and before is not None and moments["sealed"] is not None:
        found["transaction"] = max(0.0, (before - first).total_seconds())
    return found


def _moments(
    deployment: Deployment, binding: Binding, seal: Seal | None, tries: Sequence[Evidence]
) -> dict[str, datetime | None]:
    """When a transaction was bound, staged, judged and sealed."""
    control = deployment.control
    mine = [one for one in tries if not one.replayed and (seal is None or one.token == seal.token)][-1:]
    control.journal.head()
    token = mine[0].token if mine else ""
    judged = [
        entry
        for entry in control.journal.find(str(binding.txn))
        if entry.event is Event.JUDGED and entry.token == token
    ]
    times = times_of(control, binding.txn)
    return {
        "bound": times.bound,
        "staged": written_at(control.attempts, mine[0].number) if mine else None,
        "judged": written_at(control.journal, judged[-1].number) if judged else None,
        "sealed": times.sealed,
    }


def decided_by(deployment: Deployment, attempt: Attempt) -> tuple[list[Seal], list[Seal]]:
    """The seals of the transactions that a run staged in this round: its own seals, and those of other runs
    that sealed first."""
    staged = [
        one
        for one in found_by(deployment.pipeline, attempt)
        if one.staged is not None and not one.replayed and one.round == attempt.round
    ]
    seals = deployment.control.seals
    upper = seals.head().upper
    own = {(one.txn, one.token) for one in staged}
    tried = sorted({one.txn for one in staged if one.txn < upper})
    found = [seal for txn in tried for seal in seals.read(txn, txn + 1)]
    won = [seal for seal in found if (seal.txn, seal.token) in own]
    return won, [seal for seal in found if seal not in won]


def _shards(seal: Seal | None) -> Sequence[ShardId]:
    return sorted(seal.shards)[:STEPS_SHARDS_MAX] if seal is not None else ()


def _appended(deployment: Deployment, shard: ShardId, txn: Txn) -> datetime | None:
    log = deployment.unchecked.control.log(shard)
    log.head()
    return written_at(log, txn)


def whole(deployment: Deployment, txn: int) -> tuple[Binding, Seal | None, Sequence[Row], Row]:
    """One transaction: its binding, its seal, its journal with the time of each entry, and its times.

    `InvalidUsage` if it is not bound."""
    bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    binding = binding_at(deployment.pipeline, Txn(txn))
    control = deployment.control
    control.seals.head()
    control.journal.head()
    seal = next(iter(control.seals.read(txn, txn + 1)), None)
    entries = control.journal.find(str(txn))
    times = times_of(control, Txn(txn))
    noted = [{"at": written_at(control.journal, entry.number), **plain(entry)} for entry in entries]
    return (
        binding,
        seal,
        noted,
        {"bound_at": times.bound, "sealed_at": times.sealed, "seconds": times.seconds},
    )


# Reports of runs.


def sentence_of(pipeline: Pipeline, attempt: Attempt, *, asks_source: bool = True) -> str:
    """The work of the attempt's run, in one sentence. If there was none, the sentence reports the input that
    waits in the source; `asks_source=False` leaves this out."""
    facts = run_facts(pipeline, attempt)
    return run_sentence(facts if facts != RunFacts() or not asks_source else idle(pipeline))


def run_facts(pipeline: Pipeline, attempt: Attempt) -> RunFacts:
    """The record of the transactions that the run has bound, staged or proven.

    A transaction that the run has begun to prove counts as a proof, also without a verdict, not as loaded."""
    mine = [one for one in found_by(pipeline, attempt) if one.owner.is_run_of(attempt.owner)]
    tried = {(one.txn, one.token) for one in mine if not one.replayed}
    begun = {one.txn: one for one in mine if one.replayed}
    txns = sorted({*owned_txns(pipeline, attempt), *(one.txn for one in mine)})
    sealed_upper = pipeline.control.seals.head().upper
    journal = pipeline.control.journal
    journal.head()
    sealed = [txn for txn in txns if txn < sealed_upper]
    left = txns[len(sealed) :]
    found = pipeline.control.seals.read(sealed[0], sealed[-1] + 1) if sealed else ()
    wanted = set(sealed)
    seals = [seal for seal in found if seal.txn in wanted]
    proofs = []
    for seal in seals:
        if seal.txn in begun:
            entries = journal.find(str(seal.txn))
            announced = announcement_of(seal, entries, attempt.owner.run_id, begun=begun[seal.txn])
            proofs.append(Proof(seal.txn, announced.gate, announced.overruled))
    return RunFacts(
        sealed=tuple(seal for seal in seals if seal.txn not in begun),
        own=frozenset(seal.txn for seal in seals if (seal.txn, seal.token) in tried),
        proofs=tuple(proofs),
        # All others wait for the first one, so their own reasons don't matter yet.
        open={txn: _why_open(pipeline, txn) if txn == left[0] else "" for txn in left},
    )


def _why_open(pipeline: Pipeline, txn: Txn) -> str:
    stopped = refused_since(pipeline.control, txn)
    return stopped.why if stopped is not None else ""


def idle(pipeline: Pipeline) -> RunFacts:
    """The facts of a run without work: the waiting input. An error of the source is reported, not raised."""
    try:
        waiting = waiting_input(pipeline)
    except TidemarkError as error:
        return RunFacts(waiting=waiting_text(0, "", error.fact))
    return RunFacts(waiting=waiting_text(waiting.pieces, waiting.unit, waiting.trouble))
