"""The sentence that a run and its tasks end with: what it says, and what it never hides in a sum."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.memory.world import World, rec
from tidemark.app.reports import run_facts, sentence_of
from tidemark.core.binding import Owner
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate
from tidemark.core.ids import QUARANTINE, ShardId, Txn, WriterToken
from tidemark.core.seal import Decision, Part, Seal, ShardParts
from tidemark.core.text import Proof, RunFacts, counted, named, run_sentence, step_sentence, waiting_text
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.decide import skip
from tidemark.pipeline.ingest import gather
from tidemark.pipeline.reclock import mint
from tidemark.pipeline.upsert import seal_judged
from tidemark.pipeline.validate import judge_gathered
from tidemark.ports.source import Waiting

ORDERS = ShardId("orders")


def added(rows: int, *, held: str = "") -> ShardParts:
    return ShardParts((Part("p", rows, 1),), Digest(rows), held)


def a_seal(txn: int, *, read: int = 10, bad: int = 0, held: str = "", **more: Any) -> Seal:
    shards = {} if more.get("decision") is Decision.SKIPPED else {ORDERS: added(3, held=held)}
    if bad:
        shards[QUARANTINE] = added(bad)
    settings = {"decision": Decision.COMMITTED, **more}
    return Seal(Txn(txn), WriterToken("w"), 0, source=Digest(read), shards=shards, **settings)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            RunFacts((a_seal(2, read=301, bad=7),), frozenset({Txn(2)})),
            "loaded transaction 2: 301 read = 294 applied + 7 quarantined",
        ),
        (
            RunFacts((a_seal(2), a_seal(3, bad=1)), frozenset({Txn(2), Txn(3)})),
            "loaded transactions 2 to 3: 20 read = 19 applied + 1 quarantined",
        ),
        (
            RunFacts((a_seal(2), a_seal(3)), frozenset({Txn(3)})),
            "loaded transaction 3: 10 read = 10 applied + 0 quarantined;"
            " transaction 2 decided by another run",
        ),
        (
            RunFacts((a_seal(2, held="too many\nNULLs"),), frozenset({Txn(2)})),
            "loaded transaction 2: 10 read = 10 applied + 0 quarantined;"
            " shard orders held at 2: too many NULLs",
        ),
        (
            RunFacts((a_seal(2, decision=Decision.SKIPPED, reason="a test load"),)),
            "transaction 2 skipped by a person: a test load",
        ),
        (
            RunFacts((a_seal(2, decision=Decision.ACCEPTED, reason="a refund"),), frozenset({Txn(2)})),
            "transaction 2 accepted by a person: a refund, 10 read = 10 applied + 0 quarantined",
        ),
        (RunFacts(proofs=(Proof(Txn(1), "identical"),)), "proved 1: identical, 0 bytes written"),
        (
            RunFacts(proofs=(*(Proof(Txn(n), "identical") for n in (1, 2, 4)), Proof(Txn(3), "differs"))),
            "proved 1 to 2, 4: identical, 0 bytes written; transaction 3: differs",
        ),
        (
            RunFacts(proofs=(Proof(Txn(3), "differs", "the validate task was marked as success by hand"),)),
            "transaction 3: differs, overruled: the validate task was marked as success by hand",
        ),
        (
            RunFacts(open={Txn(4): "a.json is gone", Txn(5): "", Txn(6): ""}),
            "transaction 4 open: a.json is gone; transactions 5 to 6 open",
        ),
        (RunFacts(waiting="1 file waiting"), "no new transaction; 1 file waiting"),
        (RunFacts(), "no new transaction"),
    ],
)
def test_a_run_says_what_it_did(facts: RunFacts, said: str) -> None:
    assert run_sentence(facts) == said


def test_counts_that_do_not_add_up_are_no_equation() -> None:
    assert counted(3, 5) == "3 read, 5 quarantined"


def test_what_waits_is_counted_in_its_unit_and_what_can_not_be_known_is_said() -> None:
    assert waiting_text(1, "files") == "1 file waiting"
    assert waiting_text(1_200, "offsets") == "1,200 offsets waiting"
    assert waiting_text(1, "or more source transactions") == "1 or more source transactions waiting"
    assert waiting_text(0, "files") == ""
    assert waiting_text(0, "files", "no\nanswer") == "the waiting input is unknown: no answer"


def test_numbers_that_are_neighbours_are_a_range() -> None:
    assert named([5]) == "transaction 5"
    assert named([1, 2, 3, 7, 9, 10]) == "transactions 1 to 3, 7, 9 to 10"


VERDICT = {
    "txn": 2, "verdict": "identical", "replayed": False, "held": {}, "warned": [],
    "compared": 3, "rows": 294, "expectations": 4,
}  # fmt: skip
NONE: dict[str, Any] = {"count": 0, "ranges": []}


def only(txn: int) -> dict[str, Any]:
    """One transaction, as a task tells it."""
    return {"count": 1, "ranges": [[txn, txn]]}


STEPS: list[tuple[str, dict[str, Any], str]] = [
    ("reclock", {"owned": only(2), "open": [2], "minted": True}, "bound transaction 2 for this run"),
    (
        "reclock",
        {"owned": only(3), "open": [2, 3], "minted": True},
        "bound transaction 3 for this run; transaction 2 open before",
    ),
    ("reclock", {"owned": only(1), "open": [], "minted": False}, "found transaction 1 for this run"),
    ("reclock", {"owned": NONE, "open": [4], "minted": True}, "nothing new to bind; transaction 4 open"),
    ("reclock", {"owned": NONE, "open": [], "minted": True}, "nothing to bind"),
    (
        "ingest",
        {
            "staged": [{"txn": 2, "read": 9, "quarantined": 2, "shards": 2}],
            "total": {"staged": 1, "replayed": 0, "gone": 0, "read": 9, "quarantined": 2},
            "replayed": [],
            "gone": {},
        },
        "staged transaction 2: 9 read = 7 applied + 2 quarantined",
    ),
    (
        "ingest",
        {"staged": [], "replayed": [1], "gone": {"3": "a.json"}, "total": {"replayed": 1, "gone": 1}},
        "read the input of transaction 1 again, 0 bytes written; transaction 3: input gone: a.json",
    ),
    ("ingest", {"staged": [], "replayed": [], "gone": {}, "total": {"gone": 0}}, "nothing to stage"),
    (
        "validate",
        {"verdicts": [VERDICT], "total": 1},
        "transaction 2: identical, 3 digests compared, 294 rows, 4 expectations met",
    ),
    (
        "validate",
        {"verdicts": [{**VERDICT, "replayed": True, "expectations": 0}], "total": 1},
        "replay of transaction 2: identical, 3 digests compared, 294 rows",
    ),
    (
        "validate",
        {"verdicts": [{**VERDICT, "held": {"orders": "NULLs"}, "warned": ["late"]}], "total": 1},
        "transaction 2: identical, 3 digests compared, 294 rows, 4 expectations,"
        " shard orders held: NULLs, warning: late",
    ),
    ("validate", {"verdicts": [], "total": 0}, "nothing to validate"),
    (
        "upsert",
        {"sealed": only(2), "lost": only(3), "published": {"orders": {"txn": 2}}},
        "sealed transaction 2; transaction 3 decided by another run; states: orders at 2",
    ),
    ("checkpoint", {"sentence": "no new transaction", "checkpoint": 2}, "no new transaction; checkpoint 2"),
    (
        "replay",
        {"findings": [{"txn": 1, "verdict": "identical"}, {"txn": 2, "verdict": "differs"}], "restored": []},
        "proved 1: identical, 0 bytes written; transaction 2: differs",
    ),
    (
        "replay",
        {"findings": [{"txn": 1, "verdict": "identical"}], "restored": [{}]},
        "proved 1: identical, 1 part restored",
    ),
    ("maintain", {"done": [{}, {}]}, "maintenance: 2 steps done"),
    ("maintain", {"left": [{}]}, "maintenance: 1 step left"),
]


@pytest.mark.parametrize(("step", "told", "said"), STEPS)
def test_a_step_says_what_it_did(step: str, told: dict[str, Any], said: str) -> None:
    assert step_sentence(step, told) == said


# From durable facts.


def a_try(token: str, run_id: str = "r", *, round_: int = 0) -> Attempt:
    return Attempt(Owner(run_id), WriterToken(token), round_ > 0, round_)


def steps(pipeline: Pipeline, attempt: Attempt) -> None:
    mint(pipeline, attempt)
    gather(pipeline, attempt)
    judge_gathered(pipeline, attempt)
    seal_judged(pipeline, attempt)


def test_a_run_that_is_cleared_says_that_it_proved_and_not_that_it_loaded_again() -> None:
    world = World()
    world.feed(rec("k", 1), rec("j", 2))
    steps(world.process(), a_try("w1"))
    said = sentence_of(world.process(), a_try("other"))
    assert said == "loaded transaction 1: 2 read = 2 applied + 0 quarantined"
    steps(world.process(), a_try("w2", round_=1))
    assert sentence_of(world.process(), a_try("w3", round_=1)) == "proved 1: identical, 0 bytes written"


def test_a_proof_that_was_begun_and_has_no_verdict_is_not_called_proven() -> None:
    world = World()
    world.feed(rec("k", 1))
    steps(world.process(), a_try("w1"))
    gather(world.process(), a_try("w2", round_=1))
    said = sentence_of(world.process(), a_try("w2", round_=1))
    assert said == "transaction 1: not proven, overruled: the run went on without a verdict"


def test_a_run_whose_transaction_another_one_decided_does_not_claim_it() -> None:
    world = World()
    world.feed(rec("k", 1))
    mint(world.process(), a_try("w1"))
    gather(world.process(), a_try("w1"))
    steps(world.process(), a_try("w2", "s"))
    assert sentence_of(world.process(), a_try("w1")) == "transaction 1 decided by another run"
    loaded = "loaded transaction 1: 1 read = 1 applied + 0 quarantined"
    assert sentence_of(world.process(), a_try("w2", "s")) == loaded


def test_a_transaction_that_is_bound_only_is_open_and_one_that_was_skipped_says_why() -> None:
    world = World()
    world.feed(rec("k", 1))
    mint(world.process(), a_try("w1"))
    assert sentence_of(world.process(), a_try("w1")) == "transaction 1 open"
    skip(world.process(), a_try("w2", "hand"), Txn(1), reason="a test load")
    assert sentence_of(world.process(), a_try("w1")) == "transaction 1 skipped by a person: a test load"


def test_a_run_that_found_nothing_asks_what_waits_and_outlives_a_source_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    pipeline = world.process()
    mint(pipeline, a_try("w1"))
    assert run_facts(pipeline, a_try("w1")) == RunFacts()
    assert sentence_of(pipeline, a_try("w1"), asks_source=False) == "no new transaction"
    kind = type(pipeline.source)
    monkeypatch.setattr(kind, "waiting", lambda source, last: Waiting(1), raising=False)
    assert sentence_of(pipeline, a_try("w1")) == "no new transaction; 1 file waiting"

    def fails(source: Any, last: Any) -> Waiting:
        raise Determinate("the broker does not answer", hint="retry")

    monkeypatch.setattr(kind, "waiting", fails, raising=False)
    said = sentence_of(pipeline, a_try("w1"))
    assert said == "no new transaction; the waiting input is unknown: the broker does not answer"
