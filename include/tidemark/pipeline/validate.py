"""Validate: the gate, while the data is only staged.

A first attempt compares what the write computed with what a read-back of the parts computes; then come
the user's own expectations. What does not pass was never visible (Invariant 15).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidemark.core.checksum import SOURCE, Digests
from tidemark.core.replay import Finding, judge
from tidemark.core.seal import Staged
from tidemark.pipeline.context import Pipeline
from tidemark.ports.gate import Opinion

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
