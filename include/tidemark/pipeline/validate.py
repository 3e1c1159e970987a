"""Validate: the gate, while the data is only staged.

A first attempt compares what the write computed with what a read-back of the parts computes. What
does not pass was never visible (Invariant 15).
"""

from __future__ import annotations

from tidemark.core.replay import Finding, judge
from tidemark.core.seal import Staged
from tidemark.pipeline.context import Pipeline


def validate(pipeline: Pipeline, staged: Staged) -> Finding:
    """Read the staged parts back, and compare every endpoint."""
    found = pipeline.plane.read_back(staged)
    return judge(staged.txn, recorded=staged.digests, found=found)
