"""What the user's expectations found, as values, and what that asks of the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.core.ids import ShardId
from tidemark.ports.gate import Opinion


@dataclass(frozen=True, slots=True)
class Checked:
    """One expectation of the user's suite on one shard's staged rows.

    `detail` is what was observed, or why it could not be; it never has a value of a row.
    `broken_when` is, for the action quarantine, the SQL condition of the rows that break it.
    """

    shard: ShardId
    expectation: str
    action: str
    success: bool
    unexpected_count: int | None = None
    element_count: int | None = None
    detail: str = ""
    broken_when: str = ""

    def __str__(self) -> str:
        counted = self.unexpected_count is not None and self.element_count is not None
        counts = f"{self.unexpected_count} of {self.element_count} rows break it" if counted else ""
        said = "; ".join(part for part in (counts, self.detail) if part) or "does not hold"
        return f"shard {self.shard}: {self.expectation}: {'holds' if self.success else said}"


def opinion_of(checked: Sequence[Checked]) -> Opinion:
    """What the checks ask of the gate."""
    broken = [one for one in checked if not one.success]
    reasons: dict[ShardId, list[str]] = {}
    for one in broken:
        if one.action == "pause":
            reasons.setdefault(one.shard, []).append(_reason(one))
    return Opinion(
        # Rows that break a quarantine check were moved aside when they were staged; what is left is a doubt.
        failed=tuple(str(one) for one in broken if one.action in ("fail", "quarantine")),
        held={shard: "; ".join(found) for shard, found in reasons.items()},
        warned=tuple(str(one) for one in broken if one.action == "warn"),
        checked=len(checked),
    )


def _reason(checked: Checked) -> str:
    count = "" if checked.unexpected_count is None else f", {checked.unexpected_count} rows"
    return f"{checked.expectation}{count}"
