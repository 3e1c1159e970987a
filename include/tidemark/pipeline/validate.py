"""Validate: the gate, while the data is only staged.

A first attempt compares the digests of the write with those of a read-back of the parts; then it checks the
user's own expectations. A proof compares with the seal twice: the current input, and the current sealed
parts. The rows were measured when they were staged or replayed (`pipeline.ingest`), so judging needs no
data plane. Data that does not pass was never visible (Invariant 15).

`core.replay.judge` decides the verdict, for the command and for Airflow. `Confirm` may check and document
it elsewhere. The verdict goes to the journal under the token of the judged attempt, where the upsert step
finds it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidemark.core.checksum import SOURCE, Digests
from tidemark.core.errors import Determinate
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Event, JournalEntry
from tidemark.core.replay import Finding, Verdict, judge, judge_replay, judge_skipped
from tidemark.core.seal import Evidence, Opinion, Staged, newest_of
from tidemark.pipeline.context import Attempt, Pipeline, note, seal_at
from tidemark.pipeline.ingest import Progress, found_by, gather_one, measured, no_progress
from tidemark.pipeline.reclock import known_plan
from tidemark.pipeline.replay import judge_parts

EXPECTATIONS_FAILED: Final = "expectations not met"

Pair = tuple[Txn, Digests, Digests]
"""A transaction, with its recorded digests and those found now."""
Confirm = Callable[[Sequence[Pair]], object]
"""Checks the comparisons once more and documents them; raises where its result differs."""


def unconfirmed(pairs: Sequence[Pair]) -> None:
    """No-op confirmation."""


@dataclass(frozen=True, slots=True)
class Gated:
    """The gate's result for one attempt."""

    finding: Finding
    opinion: Opinion = field(default_factory=Opinion)
    compared: int = field(default=0, compare=False)
    """How many digests were compared, for people."""
    rows: int = field(default=0, compare=False)
    """How many rows of shards the recorded digests cover, for people."""

    @property
    def passed(self) -> bool:
        return self.finding.passed and not self.opinion.failed

    @property
    def word(self) -> str:
        """The result in a word or two: the verdict, unless only the expectations failed."""
        broken = self.finding.passed and self.opinion.failed
        return EXPECTATIONS_FAILED if broken else str(self.finding.verdict)


@dataclass(frozen=True, slots=True)
class Judged:
    """The gate's result for one transaction, as the journal has it."""

    gated: Gated
    replayed: bool

    @property
    def txn(self) -> Txn:
        return self.gated.finding.txn


@dataclass(frozen=True, slots=True)
class Case:
    """One transaction before the gate: the finding, the comparisons that support it, and the staged parts
    that were judged. A proof has no staged parts."""

    finding: Finding
    pairs: tuple[Pair, ...] = ()
    staged: Staged | None = None
    opinion: Opinion = field(default_factory=Opinion)
    replayed: bool = False

    @property
    def gated(self) -> Gated:
        compared = sum(len(recorded) for _, recorded, _ in self.pairs)
        rows = rows_in(self.pairs[0][1]) if self.pairs else 0
        return Gated(self.finding, self.opinion, compared, rows)


def open_case(pipeline: Pipeline, attempt: Attempt, evidence: Evidence) -> Case:
    """The case of an open transaction: are the parts what was written?"""
    txn, staged = evidence.txn, evidence.staged
    if staged is None:
        return Case(Finding(txn, Verdict.INPUT_GONE, why=evidence.gone))
    by_now = measured(pipeline, evidence, staged, round_min=attempt.round)
    finding = judge(txn, recorded=staged.digests, found=by_now.found)
    return Case(finding, ((txn, staged.digests, by_now.found),), staged, by_now.opinion)


def proof_case(
    pipeline: Pipeline,
    attempt: Attempt,
    txn: Txn,
    *,
    found: Sequence[Evidence] | None = None,
    progress: Progress = no_progress,
) -> Case:
    """The case of a sealed transaction: are the input and the parts what was sealed? Its evidence is made now
    if the run has none."""
    seal = seal_at(pipeline, txn)
    skipped = judge_skipped(seal)
    if skipped is not None:
        return Case(skipped, replayed=True)
    evidence = gather_one(pipeline, attempt, txn, replayed=True, found=found, progress=progress)
    if evidence.staged is None:
        return Case(Finding(txn, Verdict.INPUT_GONE, why=evidence.gone), replayed=True)
    finding = judge_replay(seal, evidence.staged)
    if finding.verdict is Verdict.NOT_COMPARABLE:
        return Case(finding, replayed=True)
    of_input = (txn, seal.digests, evidence.staged.digests)
    if not finding.passed or not seal.shards:
        return Case(finding, (of_input,), replayed=True)
    finding = judge_parts(pipeline, seal, evidence.found)
    # Where maintenance was free to remove the parts, or they can't be compared, the finding has the reason.
    compares = finding.verdict is Verdict.DIFFERS or not finding.why
    of_parts = (txn, on_disk(seal.digests), on_disk(evidence.found))
    return Case(finding, (of_input, of_parts) if compares else (of_input,), replayed=True)


def on_disk(digests: Digests) -> Digests:
    """The digests of the tables' rows, named so that they differ from those of the current input."""
    return {f"{endpoint} on disk": digest for endpoint, digest in digests.items() if endpoint != SOURCE}


def rows_in(digests: Digests) -> int:
    """How many rows of shards the digests cover, without those read from the source."""
    return sum(digest.count for endpoint, digest in digests.items() if endpoint != SOURCE)


def pass_judgement(
    pipeline: Pipeline, attempt: Attempt, cases: Sequence[Case], *, confirm: Confirm = unconfirmed
) -> tuple[Judged, ...]:
    """Have the findings confirmed, and put the verdicts on record, in order."""
    confirm([pair for case in cases for pair in case.pairs])
    judged: list[Judged] = []
    for case in sorted(cases, key=lambda case: (case.finding.txn, case.replayed)):
        judged.append(Judged(case.gated, case.replayed))
        record(pipeline, attempt, judged[-1], token_of=case.staged)
    return tuple(judged)


def judge_gathered(
    pipeline: Pipeline,
    attempt: Attempt,
    *,
    confirm: Confirm = unconfirmed,
    progress: Progress = no_progress,
) -> tuple[Judged, ...]:
    """Judge the gathered evidence: every staged transaction of the plan, and every proof."""
    plan = known_plan(pipeline, attempt)
    found = found_by(pipeline, attempt)
    cases: list[Case] = []
    for txn in plan.finish:
        evidence = newest_of(found, txn)
        if evidence is None:
            break
        progress(txn, "judge")
        cases.append(open_case(pipeline, attempt, evidence))
        if evidence.gone:
            break
    for txn in plan.prove:
        progress(txn, "prove")
        cases.append(proof_case(pipeline, attempt, txn, found=found))
    return pass_judgement(pipeline, attempt, cases, confirm=confirm)


def record(pipeline: Pipeline, attempt: Attempt, judged: Judged, *, token_of: Staged | None = None) -> None:
    """Put the verdict in the journal: under the token that was judged, with the token that judged."""
    finding, opinion = judged.gated.finding, judged.gated.opinion
    detail = {
        "verdict": str(finding.verdict),
        "finding": str(finding),
        "run": attempt.owner.run_id,
        "begun": attempt.owner.begun,
        "round": str(attempt.round),
        "by": attempt.token,
        "failed": json.dumps(opinion.failed),
        "held": json.dumps(dict(opinion.held)),
        "warned": json.dumps(opinion.warned),
        "compared": str(judged.gated.compared),
        "rows": str(judged.gated.rows),
        "expectations": str(opinion.checked),
    }
    event = Event.VERIFIED if judged.replayed else Event.JUDGED
    token = token_of.token if token_of is not None else attempt.token
    note(pipeline, event, txn=finding.txn, token=token, detail=detail)


def judged_in(entry: JournalEntry) -> Judged:
    """The verdict in an entry of the journal; its mismatches are only in its text."""
    finding = Finding(entry.txn, Verdict(entry.detail["verdict"]), why=entry.detail["finding"])
    opinion = Opinion(
        failed=tuple(json.loads(entry.detail.get("failed", "[]"))),
        held={ShardId(name): why for name, why in json.loads(entry.detail.get("held", "{}")).items()},
        warned=tuple(json.loads(entry.detail.get("warned", "[]"))),
        checked=int(entry.detail.get("expectations", 0)),
    )
    compared, rows = (int(entry.detail.get(name, 0)) for name in ("compared", "rows"))
    return Judged(Gated(finding, opinion, compared, rows), entry.event is Event.VERIFIED)


def last_judged(pipeline: Pipeline, txn: Txn, tries: Mapping[WriterToken, Staged]) -> tuple[Staged, Gated]:
    """The try that the gate judged last, with the result; `Determinate` where none was judged. Nothing is
    sealed without a verdict (Invariant 15)."""
    pipeline.control.journal.head()
    for entry in reversed(pipeline.control.journal.find(str(txn))):
        if entry.event is Event.JUDGED and entry.token in tries:
            return tries[entry.token], judged_in(entry).gated
    raise Determinate(
        f"transaction {txn} as staged by {', '.join(tries)} was not validated",
        hint="retry; if it stays so, clear the validate task",
    )


def verdicts_of(pipeline: Pipeline, attempt: Attempt) -> tuple[Judged, ...]:
    """The verdicts that this attempt has put on record, for a caller that waited for them in another
    process."""
    plan = known_plan(pipeline, attempt)
    pipeline.control.journal.head()
    found = [
        entry
        for txn in sorted({*plan.finish, *plan.prove})
        for entry in pipeline.control.journal.find(str(txn))
        if entry.detail.get("by") == attempt.token
    ]
    return tuple(map(judged_in, found))
