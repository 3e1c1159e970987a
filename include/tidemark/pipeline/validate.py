"""Validate: the gate, while the data is only staged.

A first attempt compares what the write computed with what a read-back of the parts computes; then come
the user's own expectations. What does not pass was never visible (Invariant 15).

The gate's verdicts as rows of the journal: put there by the step that judged, found by those after it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemark.core.checksum import SOURCE, Digests
from tidemark.core.errors import Determinate
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.journal import Event, JournalEntry
from tidemark.core.replay import Finding, Verdict, judge
from tidemark.core.seal import Staged
from tidemark.pipeline.context import Attempt, Pipeline, note
from tidemark.ports.plane import Opinion

EXPECTATIONS_FAILED: Final = "expectations not met"


@dataclass(frozen=True, slots=True)
class Gated:
    """What the gate says of one attempt."""

    finding: Finding
    opinion: Opinion = field(default_factory=Opinion)
    compared: int = field(default=0, compare=False)
    """How many digests were compared, for people."""
    rows: int = field(default=0, compare=False)
    """How many rows of shards those that were recorded cover, for people."""

    @property
    def passed(self) -> bool:
        return self.finding.passed and not self.opinion.failed

    @property
    def word(self) -> str:
        """What the gate says, in a word or two: the verdict, unless it is the expectations that fail."""
        broken = self.finding.passed and self.opinion.failed
        return EXPECTATIONS_FAILED if broken else str(self.finding.verdict)


def validate(pipeline: Pipeline, staged: Staged) -> Gated:
    """Read the staged parts back, compare every endpoint, and ask the expectations."""
    found = pipeline.plane.read_back(staged)
    finding = judge(staged.txn, recorded=staged.digests, found=found)
    # Rows that are not those that were written need no opinion.
    opinion = pipeline.gate.opinion(staged) if finding.passed else Opinion()
    return Gated(finding, opinion, len(staged.digests), rows_in(staged.digests))


def rows_in(digests: Digests) -> int:
    """How many rows of shards the digests cover; what was read from the source is not among them."""
    return sum(digest.count for endpoint, digest in digests.items() if endpoint != SOURCE)


@dataclass(frozen=True, slots=True)
class Judged:
    """What the gate said of one transaction, as the journal has it."""

    gated: Gated
    replayed: bool

    @property
    def txn(self) -> Txn:
        return self.gated.finding.txn


def record(pipeline: Pipeline, attempt: Attempt, judged: Judged, *, token_of: Staged | None) -> None:
    """The verdict's row in the journal: under the token that was judged, with the one that judged."""
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
    """The verdict that a row of the journal holds; its mismatches are in its words."""
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
    """The try that the gate saw last, with what it said. Nothing is sealed unseen (Invariant 15)."""
    pipeline.control.journal.head()
    for entry in reversed(pipeline.control.journal.find(str(txn))):
        if entry.event is Event.JUDGED and entry.token in tries:
            return tries[entry.token], judged_in(entry).gated
    raise Determinate(
        f"transaction {txn} as staged by {', '.join(tries)} was not validated",
        hint="retry; if it stays so, clear the validate task",
    )
