"""Reports of tasks, as plain values and as text: for XCom, an asset's event, a log or a terminal.

A report has no rows and at most a few kilobytes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from tidemark.app.deployment import Deployment
from tidemark.core.errors import Determinate
from tidemark.core.ids import QUARANTINE, ShardId
from tidemark.core.ledger import Event
from tidemark.core.publish import Published
from tidemark.core.replay import Verdict
from tidemark.core.seal import Evidence
from tidemark.core.text import ranges, short
from tidemark.pipeline.announce import Announcement
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.publish import last_published
from tidemark.pipeline.replay import PARTS_DIFFER, bound_range
from tidemark.pipeline.validate import Judged

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
