"""What the gate found, as values, and as text that tells people their ways out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidemark.config.shard import Expectation
from tidemark.config.text import shown
from tidemark.core.ids import ShardId
from tidemark.core.replay import Finding, Verdict
from tidemark.ports.gate import Opinion

_COLUMN_KEYS = ("column", "column_A", "column_B", "column_list", "column_set")


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


@dataclass(frozen=True, slots=True)
class GateReport:
    """All that the gate says of one transaction: the digests' verdict and the user's own checks."""

    finding: Finding
    checked: tuple[Checked, ...] = ()
    site: str = ""

    @property
    def passed(self) -> bool:
        """Whether the transaction may be sealed; a shard may still have to wait."""
        return self.finding.passed and not self.failed

    @property
    def failed(self) -> tuple[Checked, ...]:
        """What keeps the transaction from its seal."""
        return self._broken("fail")

    @property
    def warned(self) -> tuple[Checked, ...]:
        """What is recorded, and nothing more."""
        return self._broken("warn")

    @property
    def quarantined(self) -> tuple[Checked, ...]:
        """What has rows that belong into quarantine."""
        return self._broken("quarantine")

    @property
    def paused(self) -> Mapping[ShardId, str]:
        """The shards whose logs wait, each with the reason."""
        reasons: dict[ShardId, list[str]] = {}
        for checked in self._broken("pause"):
            reasons.setdefault(checked.shard, []).append(_reason(checked))
        return {shard: "; ".join(found) for shard, found in reasons.items()}

    def _broken(self, action: str) -> tuple[Checked, ...]:
        return tuple(checked for checked in self.checked if checked.action == action and not checked.success)


def opinion_of(checked: Sequence[Checked]) -> Opinion:
    """What the checks ask of the gate."""
    broken = [one for one in checked if not one.success]
    reasons: dict[ShardId, list[str]] = {}
    for one in broken:
        if one.action == "pause":
            reasons.setdefault(one.shard, []).append(_reason(one))
    return Opinion(
        failed=tuple(str(one) for one in broken if one.action == "fail"),
        held={shard: "; ".join(found) for shard, found in reasons.items()},
        warned=tuple(str(one) for one in broken if one.action in ("warn", "quarantine")),
    )


def described(expectation: Expectation) -> str:
    """The expectation on one line: its type, its columns, then what else it was given."""
    named = [value for key in _COLUMN_KEYS if (value := expectation.kwargs.get(key)) is not None]
    columns = [value if isinstance(value, str) else json.dumps(value) for value in named]
    others = [
        f"{key}={_short(value)}" for key, value in expectation.kwargs.items() if key not in _COLUMN_KEYS
    ]
    return f"{expectation.type}({', '.join(columns + others)})"


def explain(report: GateReport, pipeline: str) -> str:
    """What the gate found and what can be done, in lines for people (Invariant 8)."""
    return "\n".join(_lines(report, pipeline))


def _lines(report: GateReport, pipeline: str) -> Iterator[str]:
    txn = report.finding.txn
    state = "passed the gate" if report.passed else "did not pass the gate"
    yield f"pipeline {pipeline}, transaction {txn}: {state}; the digests are {_verdict(report.finding)}"
    for mismatch in report.finding.mismatches:
        yield f"  {mismatch}"
    for title, found in (
        ("failed", report.failed),
        ("paused", report._broken("pause")),
        ("to quarantine", report.quarantined),
        ("warned", report.warned),
    ):
        yield from (f"  {title}: {checked}" for checked in found)
    if not report.passed:
        yield "nothing of it is sealed; the ways out:"
        yield "  mend the cause, then clear the task: the same input is read and checked again"
        yield f'  tidemark accept {pipeline} {txn} --reason "…"   commit it as it is'
        yield f'  tidemark skip {pipeline} {txn} --reason "…"     pass over it for good'
    elif report.paused:
        yield "the transaction is sealed and durable; each paused shard's log waits until it is released:"
        for shard in report.paused:
            yield f'  tidemark release {pipeline} {shard} --reason "…"'
    if report.site:
        yield f"data docs: {report.site}"


def _verdict(finding: Finding) -> str:
    why = f" ({finding.why})" if finding.why else ""
    return f"{finding.verdict if finding.verdict is not Verdict.DIFFERS else 'different'}{why}"


def _reason(checked: Checked) -> str:
    count = "" if checked.unexpected_count is None else f", {checked.unexpected_count} rows"
    return f"{checked.expectation}{count}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else shown(text, 80).strip("'")
