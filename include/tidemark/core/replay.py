"""Replay: read recorded input again, at the recorded boundaries, and judge the result.

A replay never decides where a transaction begins or ends: the bindings have (Invariant 6). It reads each
transaction's input separately and compares the digests of every endpoint with those of the seal. The verdict
is `identical`, `differs`, `input gone`, or `not comparable` if the engine or the row encoding differs from
that of the seal, so that an upgrade is never mistaken for corruption. A last transaction without a seal,
after a crash, is part of the plan too: it is finished, and verified by its own gate (Invariant 7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from tidemark.core.binding import Binding
from tidemark.core.checksum import Digests, Mismatch, compare
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import ShardId, Txn
from tidemark.core.seal import Decision, Seal, Staged


class Verdict(StrEnum):
    """The verdict of a gate or a replay on one transaction."""

    IDENTICAL = "identical"
    DIFFERS = "differs"
    INPUT_GONE = "input gone"
    NOT_COMPARABLE = "not comparable"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one transaction, and its reasons."""

    txn: Txn
    verdict: Verdict
    mismatches: tuple[Mismatch, ...] = ()
    why: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.IDENTICAL

    def __str__(self) -> str:
        lines = [f"transaction {self.txn}: {self.verdict}", self.why, *map(str, self.mismatches)]
        return "; ".join(line for line in lines if line)


@dataclass(frozen=True, slots=True)
class Difference:
    """One key of a transaction that differs between input and table, for people: on which side it is, or
    which columns differ, with (input, table) of each as shortened text. `key` is the whole row if the shard
    has no keys. Only `recorded` goes into the journal: values must not be there."""

    txn: Txn
    shard: ShardId
    key: Mapping[str, str | None]
    what: str
    values: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    is_keyed: bool = True

    @property
    def recorded(self) -> Mapping[str, object]:
        """The difference without values: the shard, the key if there is one, and what differs."""
        return {"shard": self.shard, "key": dict(self.key) if self.is_keyed else {}, "what": self.what}


@dataclass(frozen=True, slots=True)
class Replayable:
    """Whether a transaction's input can still be read as it was. `gone` is why not; `until_seconds` is the
    time (since 1970) until which the source keeps it, None if unknown; `caveat` is what may remove it
    sooner."""

    gone: str = ""
    until_seconds: float | None = None
    caveat: str = ""


class InputGone(InvalidUsage):
    """A binding's input can't be read any more as it was."""

    def __init__(self, txn: Txn, *, what: str) -> None:
        super().__init__(
            f"input of transaction {txn} is gone: {what}",
            hint="restore it and retry, or skip the transaction with a reason",
        )
        self.txn = txn
        self.what = what


class DataDiffers(InvariantViolation):
    """One transaction number has two different contents."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(
            str(finding),
            hint="restore the changed input and clear the task, or run `tidemark accept` or `tidemark skip`",
        )
        self.finding = finding


class ExpectationsFailed(InvalidUsage):
    """The staged rows don't meet the user's expectations."""

    def __init__(self, txn: Txn, failed: Sequence[str]) -> None:
        super().__init__(
            f"transaction {txn} does not meet its expectations: {'; '.join(failed)}",
            hint="fix the cause and clear the task, or run `tidemark accept` or `tidemark skip`",
        )
        self.txn = txn
        self.failed = tuple(failed)


def judge(txn: Txn, *, recorded: Digests, found: Digests) -> Finding:
    """Compare all endpoints; digests of different encodings are not comparable."""
    encodings = {digest.encoding for digest in recorded.values()}
    for endpoint, digest in found.items():
        if encodings and digest.encoding not in encodings:
            why = f"{endpoint} was hashed with encoding {sorted(encodings)}, now with {digest.encoding}"
            return Finding(txn, Verdict.NOT_COMPARABLE, why=why)
    mismatches = compare(txn, recorded=recorded, found=found)
    return Finding(txn, Verdict.DIFFERS if mismatches else Verdict.IDENTICAL, mismatches)


def judge_replay(seal: Seal, staged: Staged) -> Finding:
    """Compare a seal with the current result of the same input. A skipped transaction has nothing to
    prove."""
    skipped = judge_skipped(seal)
    if skipped is not None:
        return skipped
    if seal.engine != staged.engine:
        why = f"sealed by {seal.engine!r}, replayed by {staged.engine!r}"
        return Finding(seal.txn, Verdict.NOT_COMPARABLE, why=why)
    return judge(seal.txn, recorded=seal.digests, found=staged.digests)


def judge_loser(seal: Seal, staged: Staged) -> Finding:
    """Compare a seal with a try that lost to it. Under other settings, other rows are no contradiction."""
    if staged.configuration != seal.configuration and judge_skipped(seal) is None:
        return Finding(seal.txn, Verdict.NOT_COMPARABLE, why="it was staged with other settings than sealed")
    return judge_replay(seal, staged)


def judge_skipped(seal: Seal) -> Finding | None:
    """The finding on a skipped or lost transaction, regardless of its input; None for any other."""
    if seal.decision is Decision.LOST:
        return Finding(seal.txn, Verdict.LOST, why=seal.reason)
    if seal.decision is not Decision.SKIPPED:
        return None
    return Finding(seal.txn, Verdict.IDENTICAL, why=f"skipped: {seal.reason}")


class Action(Enum):
    """How a replay handles a transaction."""

    VERIFY = "verify"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One transaction to replay, with the recorded boundaries in its binding."""

    binding: Binding
    seal: Seal | None

    @property
    def action(self) -> Action:
        return Action.FINISH if self.seal is None else Action.VERIFY


def plan_replay(
    *, txn_from: Txn, txn_to: Txn, bindings: Sequence[Binding], seals: Sequence[Seal]
) -> tuple[ReplayStep, ...]:
    """One step per transaction in [txn_from, txn_to], in order, at the recorded boundaries."""
    if txn_from < 1 or txn_to < txn_from:
        raise InvalidUsage(f"transactions {txn_from} to {txn_to} are not a range", hint="count from 1 up")
    bound = {binding.txn: binding for binding in bindings}
    sealed = {seal.txn: seal for seal in seals}
    # Only the first one: the range may have billions.
    missing = next((txn for txn in range(txn_from, txn_to + 1) if txn not in bound), None)
    if missing is not None:
        raise InvalidUsage(
            f"transaction {missing} is not bound", hint="`tidemark txns` lists the transactions"
        )
    return tuple(
        ReplayStep(binding.under(seal.configuration) if seal is not None else binding, seal)
        for binding, seal in ((bound[Txn(txn)], sealed.get(Txn(txn))) for txn in range(txn_from, txn_to + 1))
    )


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The work of a run: finish these open transactions in order, and prove these sealed ones."""

    finish: tuple[Txn, ...]
    prove: tuple[Txn, ...]


def plan_run(*, owned: Sequence[Txn], cleared: bool, sealed_upper: Txn, bound_upper: Txn) -> RunPlan:
    """Plan a run. A retry finishes what is missing; a clear proves what is sealed.

    Every run first finishes the open transactions below its own, whichever run began them. A run that owns
    nothing finishes all open ones, so that none waits for a run that never returns."""
    finish_upper = (max(owned) + 1) if owned else bound_upper
    finish = tuple(Txn(txn) for txn in range(sealed_upper, finish_upper))
    prove = tuple(txn for txn in owned if cleared and txn < sealed_upper)
    return RunPlan(finish, prove)
