"""What a run has done, gathered from durable facts: for the last line of its log, its page, the command.

Whoever asks gets the same answer, whichever process did the work; nothing is taken from a scheduler's memory.
"""

from __future__ import annotations

from tidemark.assemble import Deployment
from tidemark.core.errors import TidemarkError
from tidemark.core.ids import Txn
from tidemark.core.seal import Lost, Seal, Sealed
from tidemark.core.sentence import Proof, RunFacts, run_sentence, waiting_text
from tidemark.pipeline.announce import announcement_of
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.run import RunReport
from tidemark.pipeline.stepwise import found_by, owned_txns
from tidemark.pipeline.timeline import refused_since
from tidemark.status import waiting_input


def sentence_of(pipeline: Pipeline, attempt: Attempt, *, asks_source: bool = True) -> str:
    """What the run of this attempt did, in one sentence. When that is nothing, the source is asked for what
    waits in it, unless it is not to be asked."""
    facts = facts_of(pipeline, attempt)
    return run_sentence(facts if facts != RunFacts() or not asks_source else idle(pipeline))


def facts_of(pipeline: Pipeline, attempt: Attempt) -> RunFacts:
    """What is on record of the run: of the transactions that it has bound, staged or proven.

    What it has begun to prove is told as a proof, with the verdict that it owes, and not as loaded again."""
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
            told = announcement_of(seal, entries, attempt.owner.run_id, begun=begun[seal.txn])
            proofs.append(Proof(seal.txn, told.gate, told.overruled))
    return RunFacts(
        sealed=tuple(seal for seal in seals if seal.txn not in begun),
        own=frozenset(seal.txn for seal in seals if (seal.txn, seal.token) in tried),
        proofs=tuple(proofs),
        # Those above the first one wait for it, whatever else may be wrong with them.
        open={txn: _why_open(pipeline, txn) if txn == left[0] else "" for txn in left},
    )


def _why_open(pipeline: Pipeline, txn: Txn) -> str:
    stopped = refused_since(pipeline.control, txn)
    return stopped.why if stopped is not None else ""


def idle(pipeline: Pipeline) -> RunFacts:
    """A run that did nothing, and what waits. A source that can't be asked doesn't make a failure of it."""
    try:
        waiting = waiting_input(pipeline)
    except TidemarkError as error:
        return RunFacts(waiting=waiting_text(0, "", error.fact))
    return RunFacts(waiting=waiting_text(waiting.pieces, waiting.unit, waiting.trouble))


def sentence_of_report(deployment: Deployment, report: RunReport) -> str:
    """The same sentence for a run that is this process's own."""
    seals: dict[Txn, Seal] = {}
    own: set[Txn] = set()
    for outcome in report.decided:
        match outcome:
            case Sealed(seal):
                seals[seal.txn] = seal
                own.add(seal.txn)
            case Lost(winner):
                seals[winner.txn] = winner
    proofs = tuple(Proof(one.txn, str(one.verdict)) for one in report.findings)
    facts = RunFacts(tuple(seals.values()), frozenset(own), proofs)
    return run_sentence(facts if facts != RunFacts() else idle(deployment.pipeline))
