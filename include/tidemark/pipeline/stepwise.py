"""A run whose steps are tasks of their own: each picks up from durable facts what the one before left.

`gather` stages what is open and replays what a clear asked for, `judge_gathered` puts both before the
gate, `seal_judged` seals what passed. Each can be repeated, retried and cleared by itself, in any process:
the bindings say what the run owns, the attempts what was found, the journal what the gate said, and the
seal decides. A step that finds nothing to do needs no data plane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tidemark.core.binding import Binding, Owned, owned_in
from tidemark.core.checksum import SOURCE, Digests
from tidemark.core.errors import Determinate, TidemarkError
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.journal import Event
from tidemark.core.ledger import Head, Put
from tidemark.core.replay import Finding, RunPlan, Verdict, judge, judge_replay, judge_skipped, plan_run
from tidemark.core.seal import Evidence, Lost, Seal, SealOutcome, Staged, TooEarly, decide_evidence, newest_of
from tidemark.core.shard import UpperRelation
from tidemark.pipeline.context import Attempt, Pipeline, binding_at, seal_at, sealed_binding, settle
from tidemark.pipeline.ingest import note_rejection, upper_relation
from tidemark.pipeline.replay import judge_parts, read_sealed
from tidemark.pipeline.run import Progress, no_progress
from tidemark.pipeline.schema_change import configuration_of, fits, require_shapes, stage_growing
from tidemark.pipeline.upsert import bring_up_logs, commit_staged, drop_lost
from tidemark.pipeline.validate import Gated, Judged, judged_in, last_judged, record, rows_in
from tidemark.ports.plane import Opinion

Pair = tuple[Txn, Digests, Digests]
Compare = Callable[[Sequence[Pair]], Sequence[Finding]]
"""Judges (transaction, recorded, found), in order."""


def compare_plainly(pairs: Sequence[Pair]) -> Sequence[Finding]:
    return [judge(txn, recorded=recorded, found=found) for txn, recorded, found in pairs]


def known_plan(pipeline: Pipeline, attempt: Attempt) -> RunPlan:
    """What the run has to do now; its share was decided when it was reclocked."""
    bindings = pipeline.control.bindings
    bound_upper = bindings.head().upper
    owned = owned_in(bindings.find(attempt.owner.identity))
    if owned is None:
        hint = "retry; if it stays so, clear the reclock task"
        raise Determinate(f"{attempt.owner.identity} was not reclocked", hint=hint)
    sealed_upper = pipeline.control.seals.head().upper
    return plan_run(
        owned=owned.txns, cleared=attempt.proves(owned), sealed_upper=sealed_upper, bound_upper=bound_upper
    )


# Ingest.


def found_by(pipeline: Pipeline, attempt: Attempt) -> Sequence[Evidence]:
    """All that the run has found so far, in order; what other runs found is theirs."""
    pipeline.control.attempts.head()
    return pipeline.control.attempts.find(attempt.owner.identity)


def keep(pipeline: Pipeline, attempt: Attempt, evidence: Evidence) -> None:
    """Put the evidence on record, once."""
    attempts = pipeline.control.attempts

    def decide(head: Head) -> Put[Evidence, None] | None:
        return decide_evidence(head=head, found=attempts.find(evidence.key), new=evidence)

    settle(attempts, decide, what=f"the evidence on transaction {evidence.txn}")


def is_usable(pipeline: Pipeline, binding: Binding, evidence: Evidence | None) -> bool:
    """Whether an earlier try of the same round has done this work, its files are still there, and they were
    made by a pipeline file that fits."""
    if evidence is None or evidence.staged is None:
        return False
    staged = evidence.staged
    if evidence.replayed:
        return True
    lost = any(pipeline.plane.damaged(name, staged.shards[name].parts) for name in staged.shards)
    return not lost and fits(pipeline, binding.under(staged.configuration).configuration)


def gather_one(
    pipeline: Pipeline, attempt: Attempt, txn: Txn, *, replayed: bool, progress: Progress = no_progress
) -> Evidence:
    """The evidence on one transaction: found from an earlier try, or made now, which is told."""
    own = [one for one in found_by(pipeline, attempt) if one.owner.is_run_of(attempt.owner)]
    before = newest_of(own, txn, replayed=replayed, round_min=attempt.round)
    binding = sealed_binding(pipeline, seal_at(pipeline, txn)) if replayed else binding_at(pipeline, txn)
    if before is not None and is_usable(pipeline, binding, before):
        return before
    progress(txn, "replay" if replayed else "ingest")
    if not replayed:
        require_shapes(pipeline, configuration_of(pipeline, binding))
    gone = pipeline.source.inspect(binding)
    staged: Staged | None = None
    if not gone and replayed:
        staged = pipeline.plane.replay(binding)
    elif not gone:
        staged = stage_growing(pipeline, binding, attempt.token)
    made = Evidence(0, txn, attempt.owner, attempt.round, attempt.token, staged, replayed, gone)
    keep(pipeline, attempt, made)
    return made


def gather_open(pipeline: Pipeline, attempt: Attempt, txn: Txn, progress: Progress) -> Evidence | None:
    """The evidence on an open transaction, or None when somebody has decided it meanwhile: the parts of who
    has lost may be swept while they are written, which is a lost race, not an error (Invariant 4)."""
    try:
        return gather_one(pipeline, attempt, txn, replayed=False, progress=progress)
    except (TidemarkError, OSError) as error:
        if upper_relation(pipeline, txn) is UpperRelation.BELOW:
            return None
        note_rejection(pipeline, attempt, txn, error)
        raise


def gather(pipeline: Pipeline, attempt: Attempt, *, progress: Progress = no_progress) -> tuple[Evidence, ...]:
    """Stage every open transaction of the run's plan, and replay those that it has to prove.

    Input that is gone is evidence too: the gate says so. What comes after it in order is left alone. A
    skipped transaction has nothing to prove, and may be one that can't be read."""
    plan = known_plan(pipeline, attempt)
    gathered: list[Evidence] = []
    for txn in plan.finish:
        evidence = gather_open(pipeline, attempt, txn, progress)
        if evidence is None:
            continue
        gathered.append(evidence)
        if evidence.gone:
            break
    for txn in plan.prove:
        if judge_skipped(seal_at(pipeline, txn)) is not None:
            continue
        gathered.append(gather_one(pipeline, attempt, txn, replayed=True, progress=progress))
    return tuple(gathered)


# Validate.


def judge_gathered(
    pipeline: Pipeline,
    attempt: Attempt,
    *,
    compare: Compare = compare_plainly,
    progress: Progress = no_progress,
) -> tuple[Judged, ...]:
    """Put what was gathered before the gate: every staged transaction of the plan, and every replay.

    A proof compares twice with the seal: what the input gives now, and what the sealed parts give now."""
    plan = known_plan(pipeline, attempt)
    pairs: list[Pair] = []
    staged: dict[Txn, Staged] = {}
    settled: dict[tuple[Txn, bool], Finding] = {}
    found = found_by(pipeline, attempt)
    for txn in plan.finish:
        evidence = newest_of(found, txn)
        if evidence is None:
            break
        progress(txn, "read back")
        if evidence.staged is None:
            settled[txn, False] = Finding(txn, Verdict.INPUT_GONE, why=evidence.gone)
            break
        staged[txn] = evidence.staged
        pairs.append((txn, evidence.staged.digests, pipeline.plane.read_back(evidence.staged)))
    for txn in plan.prove:
        progress(txn, "prove")
        settled[txn, True] = proven(pipeline, attempt, txn, pairs)
    compared = Counter(txn for txn, recorded, _ in pairs for _ in recorded)
    rows = {txn: rows_in(recorded) for txn, recorded, _ in reversed(pairs)}
    for finding in compare(pairs):
        replayed = finding.txn not in staged
        before = settled.get((finding.txn, replayed))
        if before is None or (before.passed and not finding.passed):
            settled[finding.txn, replayed] = finding
    judged: list[Judged] = []
    for (txn, replayed), finding in sorted(settled.items()):
        asked = finding.passed and not replayed
        opinion = pipeline.gate.opinion(staged[txn]) if asked else Opinion()
        judged.append(Judged(Gated(finding, opinion, compared[txn], rows.get(txn, 0)), replayed))
        record(pipeline, attempt, judged[-1], token_of=staged.get(txn))
    return tuple(judged)


def proven(pipeline: Pipeline, attempt: Attempt, txn: Txn, pairs: list[Pair]) -> Finding:
    """Collect what proves a sealed transaction; a finding that needs no comparison is returned as it is."""
    seal = seal_at(pipeline, txn)
    skipped = judge_skipped(seal)
    if skipped is not None:
        return skipped
    evidence = gather_one(pipeline, attempt, txn, replayed=True)
    if evidence.staged is None:
        return Finding(txn, Verdict.INPUT_GONE, why=evidence.gone)
    finding = judge_replay(seal, evidence.staged)
    if finding.verdict is Verdict.NOT_COMPARABLE:
        return finding
    pairs.append((txn, seal.digests, evidence.staged.digests))
    if not finding.passed or not seal.shards:
        return finding
    found = read_sealed(pipeline, seal)
    finding = judge_parts(pipeline, seal, found)
    # Parts that maintenance was free to remove, or that can't be compared, have a finding that says so.
    if finding.verdict is Verdict.DIFFERS or not finding.why:
        pairs.append((txn, of_parts(seal.digests), of_parts(found)))
    return finding


def of_parts(digests: Digests) -> Digests:
    """The digests of what lies in the tables, beside those of what the input gives now."""
    return {f"{endpoint} on disk": digest for endpoint, digest in digests.items() if endpoint != SOURCE}


def verdicts_of(pipeline: Pipeline, attempt: Attempt) -> tuple[Judged, ...]:
    """What this very attempt has put on record; for whoever waited for it in another process."""
    plan = known_plan(pipeline, attempt)
    pipeline.control.journal.head()
    found = [
        entry
        for txn in sorted({*plan.finish, *plan.prove})
        for entry in pipeline.control.journal.find(str(txn))
        if entry.detail.get("by") == attempt.token
    ]
    return tuple(map(judged_in, found))


# Upsert.


def seal_judged(
    pipeline: Pipeline, attempt: Attempt, *, progress: Progress = no_progress
) -> tuple[SealOutcome, ...]:
    """Seal in order what this run staged and the gate let through, and bring the logs up.

    What somebody else has decided meanwhile is dropped, recorded with its winner, and its parts go."""
    attempts: dict[Txn, dict[WriterToken, Staged]] = {}
    for entry in found_by(pipeline, attempt):
        if entry.staged is not None and not entry.replayed:
            attempts.setdefault(entry.txn, {})[entry.token] = entry.staged
    outcomes: list[SealOutcome] = []
    for txn, tries in sorted(attempts.items()):
        if upper_relation(pipeline, txn) is UpperRelation.BELOW:
            outcomes += drop_overtaken(pipeline, attempt, seal_at(pipeline, txn), tries)
            continue
        progress(txn, "seal")
        staged, gated = last_judged(pipeline, txn, tries)
        outcome = commit_staged(pipeline, attempt, staged, gated)
        if isinstance(outcome, TooEarly):
            raise Determinate(f"transaction {txn} can't be decided before {outcome.upper}", hint="retry")
        others = {token: other for token, other in tries.items() if token != staged.token}
        winner = outcome.winner if isinstance(outcome, Lost) else outcome.seal
        outcomes += [outcome, *drop_overtaken(pipeline, attempt, winner, others)]
    left = set(known_plan(pipeline, attempt).finish).intersection(owned_txns(pipeline, attempt))
    if left:
        hint = "retry; if it stays so, clear the ingest task"
        raise Determinate(f"transaction {min(left)} is not staged", hint=hint)
    bring_up_logs(pipeline)
    return tuple(outcomes)


def drop_overtaken(
    pipeline: Pipeline, attempt: Attempt, winner: Seal, tries: Mapping[WriterToken, Staged]
) -> list[SealOutcome]:
    """Drop, once, every try at a decided transaction that is not the one that decided it."""
    pipeline.control.journal.head()
    entries = pipeline.control.journal.find(str(winner.txn))
    dropped = {entry.token for entry in entries if entry.event is Event.LOST}
    overtaken = [staged for token, staged in tries.items() if token not in {*dropped, winner.token}]
    for staged in overtaken:
        drop_lost(pipeline, attempt, staged, winner)
    return [Lost(winner) for _ in overtaken]


def owned_txns(pipeline: Pipeline, attempt: Attempt) -> tuple[Txn, ...]:
    """The transactions that the run has bound."""
    owned = _owned(pipeline, attempt)
    return owned.txns if owned is not None else ()


def only_proves(pipeline: Pipeline, attempt: Attempt) -> bool:
    """Whether the run was cleared after its share was bound: it asks the source for nothing new. One whose
    tries never came so far binds as if it were the first."""
    return attempt.cleared and _owned(pipeline, attempt) is not None


def _owned(pipeline: Pipeline, attempt: Attempt) -> Owned | None:
    pipeline.control.bindings.head()
    return owned_in(pipeline.control.bindings.find(attempt.owner.identity))
