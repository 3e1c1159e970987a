"""A candidate through the parts of the `replace` DAG: an answer is about the candidate that was looked at, a
form and a file about the candidate that was started with them. Real control tables, without Spark."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.crash.generations import deploy, deployment_at, generations_at, promote, run, start
from tests.crash.generations import land as grow
from tests.support import light
from tests.support.growing import Typed, land
from tidemark.airflow.replace import question
from tidemark.app import generation_plan, maintenance, tasks
from tidemark.app.deployment import new_token
from tidemark.app.generation import LEASE, Generations
from tidemark.app.generation_plan import plan
from tidemark.app.job import Order
from tidemark.app.reports import LISTED_MAX
from tidemark.core.binding import Owner
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.core.lease import HolderToken
from tidemark.core.status import Times
from tidemark.delta.ledger import DeltaLedger
from tidemark.pipeline import candidates
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.journal import note_announced
from tidemark.pipeline.leases import Leases
from tidemark.spark.correction import Comparison

BATCHES = {"transaction": {"max_files": 2}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    land(tmp_path)
    assert Typed(tmp_path).run() == [1]
    return tmp_path


def part(works: Typed, name: str, *, from_now: bool = True, **more: Any) -> Any:
    """One task of the DAG."""
    mode = f"{name} from now" if from_now else name
    order = Order("p.yaml", "run", f"{name}-token", mode=mode, reason="why", **more)
    return tasks.generation(works, order)


def test_an_answer_about_one_candidate_promotes_and_aborts_no_other(root: Path) -> None:
    works = Typed(root, generation=1)
    part(works, "follow")
    asked = part(works, "compare")["candidate"]
    Generations(works).abort(reason="started again")
    changed = Typed(root, generation=1, **BATCHES)
    part(changed, "follow")
    with pytest.raises(InvalidUsage, match=f"the one that was looked at is {asked}"):
        part(changed, "promote", candidate=asked)
    with pytest.raises(InvalidUsage, match=f"the one that was looked at is {asked}"):
        Generations(changed).abort(reason="no", identity=asked)
    again = part(changed, "compare")["candidate"]
    assert again != asked
    assert part(changed, "promote", candidate=again)["txn"] == 2
    assert part(Typed(root, generation=1, **BATCHES), "promote", candidate=again)["already"]


def test_runs_wait_for_a_promotion_as_long_as_it_was_asked(root: Path) -> None:
    works = Typed(root, generation=1)
    part(works, "follow")
    part(works, "promote", wait_seconds=7)
    assert works.control.bindings.read(2, 3)[0].grace_seconds == 7
    works = Typed(root, generation=2)
    part(works, "follow")
    part(works, "promote")
    assert works.control.bindings.read(3, 4)[0].grace_seconds == 120


def test_a_form_goes_on_only_with_a_candidate_that_was_started_as_it_says(root: Path) -> None:
    works = Typed(root, generation=1)
    part(works, "follow")
    with pytest.raises(
        InvalidUsage, match="started from 1 to the end, from now on, and is asked for from 1 to"
    ):
        part(works, "follow", from_now=False)
    with pytest.raises(InvalidUsage, match="is asked for from 1 to 3, from now on"):
        part(works, "follow", txn_to=3)
    assert part(works, "compare", from_now=False)["from_now"], "what is compared is what was started"
    assert part(works, "follow")["generation"] == 1


def test_a_candidate_is_not_promoted_beside_a_file_that_has_changed_since(root: Path) -> None:
    part(Typed(root, generation=1), "follow")
    for other, what in (
        (Typed(root, generation=1, **BATCHES), "transaction.max_files"),
        (Typed(root, generation=2), "generation"),
    ):
        for name in ("follow", "promote"):
            with pytest.raises(InvalidUsage, match=f"generation 1 was started with: {what} differ"):
                part(other, name)
    alarms = Typed(root, generation=1, on_red="ask")
    assert part(alarms, "promote")["txn"] == 2, "who is asked decides no row"


def test_after_a_rollback_no_file_is_in_charge_before_it_was_promoted(root: Path) -> None:
    part(Typed(root, generation=1, **BATCHES), "follow")
    part(Typed(root, generation=1, **BATCHES), "promote")
    works = Generations(Typed(root, generation=1, **BATCHES))
    back = works.rollback(reason="it was better")
    assert (back.undoes, back.generation) == (1, 2)
    control = works.deployment.fresh_control()
    control.candidates.head()
    assert control.candidates.read(1, 9)[-1].undoes == 1, "on record"


def test_a_store_that_fails_while_a_proposal_is_opened_puts_it_in_charge_by_no_means(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise Determinate("the store does not answer", hint="retry")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaLedger, "head", fails)
        with pytest.raises(Determinate, match="does not answer"):
            Typed(root, generation=1)
    assert Typed(root, generation=1).config.generation == 0


def test_the_question_says_what_it_leaves_out() -> None:
    found = {ShardId(f"s{number:03}"): Comparison(1, 2, 3) for number in range(LISTED_MAX + 2)}
    report = {"generation": 4, "undoes": 3, **tasks.compared_report(found)}
    subject, body = question("shop", report)
    assert subject == "Promote generation 4, which takes back generation 3, of shop?"
    assert "s099: 1 new, 3 changed, 2 gone" in body
    assert "and 2 more shards: 2 new, 6 changed, 4 gone" in body
    assert "No row changes" in question("shop", tasks.compared_report({ShardId("s"): Comparison(0, 0, 0)}))[1]


def test_a_plan_says_what_it_takes_and_whether_the_input_lasts_that_long(root: Path) -> None:
    land(root)
    assert Typed(root).run() == [2]
    found = plan(Typed(root, generation=1))
    assert (found.transactions, found.refused) == (2, ())
    assert found.bytes > 0
    assert found.seconds is not None
    assert found.effort.startswith("2 transactions with 2 records, 0.0 MB of parts, are read again; ")
    assert not found.expires_first, "files stay until somebody removes them"
    soon = time.time() + 60
    assert replace(found, until_seconds=soon, seconds=3_600.0).expires_first
    assert not replace(found, until_seconds=soon, seconds=1.0).expires_first
    none = plan(Typed(root, generation=1), from_now=True)
    assert (none.transactions, none.bytes, none.seconds) == (0, 0, None)
    assert none.effort == "nothing is read again"
    assert set(none.shards.values()) == {"stays as it is; later input gets the new settings"}
    assert (found.started, none.started) == (None, None)
    part(Typed(root, generation=1), "follow")
    assert plan(Typed(root, generation=2)).started == 1


def test_regression_transactions_that_were_bound_at_once_have_not_taken_the_time_of_those_before_them(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        land(root)
    assert Typed(root).run() == [2, 3]
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def times_of(control: object, txn: int) -> Times:
        return Times(noon, noon + timedelta(seconds=10 * txn) if txn else None)

    monkeypatch.setattr(generation_plan, "times_of", times_of)
    assert plan(Typed(root, generation=1)).seconds == 30


def test_a_candidate_whose_lease_was_removed_holds_its_input_again(root: Path) -> None:
    """Another process may clean up after a candidate that is no more, while this one is started."""
    works = Typed(root, generation=1)
    part(works, "follow")
    leases = Leases(works.fresh_control().leases)
    assert leases.floor(consumers={}, window=Txn(9)).txn == 1, "maintenance removes nothing that it reads"
    leases.forget(LEASE)
    assert leases.floor(consumers={}, window=Txn(9)).txn == 9
    part(works, "follow")
    lease = leases.current(LEASE)
    assert lease is not None
    assert lease.is_kept


def test_a_follower_removes_what_it_has_written_after_its_candidate_was_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables go away under it, and it must not leave new ones."""
    deploy(tmp_path, 0)
    for number in range(3):
        grow(tmp_path)
        run(tmp_path, f"run-{number}")
    deploy(tmp_path, 1)
    works = generations_at(tmp_path)
    pair = works.pair(works.start(reason="another rule"))
    write, left = light.write_part, [4]

    def aborted_meanwhile(*args: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            generations_at(tmp_path).abort(reason="not needed")
        return write(*args)

    monkeypatch.setattr(light, "write_part", aborted_meanwhile)
    with pytest.raises(InvalidUsage, match="generation 1 is no candidate any more"):
        list(pair.follow(Attempt(Owner("follower"), new_token())))
    assert left[0] < 0, "it has written after the abort"
    assert works.leftovers() == []


def test_maintenance_removes_what_a_dead_process_has_left_of_a_candidate(tmp_path: Path) -> None:
    """And the lease with it: else no input and no log would be removed any more."""
    deploy(tmp_path, 0)
    grow(tmp_path)
    run(tmp_path, "run")
    deploy(tmp_path, 1)
    works = generations_at(tmp_path)
    begun = works.start(reason="another rule")
    list(works.pair(begun).follow(Attempt(Owner("follower"), new_token())))
    candidates.abort(works.deployment.control, begun, token=new_token(), reason="it dies after this")
    assert len(works.leftovers()) == 1
    terms = maintenance.terms_of(works.deployment)
    (planned,) = [one for one in maintenance.plan(works.deployment, terms).chores if "candidates" in one.what]
    assert planned.files > 10
    done = maintenance.maintain(works.deployment, new_token(), terms, watch=False)
    (removed,) = [one for one in done.chores if "candidates" in one.what]
    assert (removed.files, removed.bytes) == (planned.files, planned.bytes)
    assert works.leftovers() == []
    lease = Leases(works.deployment.control.leases).current(LEASE)
    assert lease is not None
    assert not lease.is_kept
    again = maintenance.maintain(works.deployment, new_token(), terms, watch=False)
    assert [one for one in again.chores if "candidates" in one.what] == []


def test_a_start_does_not_wait_for_one_that_has_died(root: Path) -> None:
    works = Typed(root, generation=1)
    Leases(works.control.leases).take(LEASE, HolderToken("dead"), start=Txn(1))
    part(works, "follow")
    assert Generations(works).candidate is not None


def test_the_next_checkpoint_announces_a_promotion_which_no_run_owns(tmp_path: Path) -> None:
    """Whoever has promoted it: a downstream DAG would else not be woken before there is new input."""
    deploy(tmp_path, 0)
    grow(tmp_path)
    run(tmp_path, "run")
    deploy(tmp_path, 1)
    start(tmp_path, "start")
    promote(tmp_path, "promote")
    works, idle = deployment_at(tmp_path), Attempt(Owner("idle"), new_token())
    works.control.seals.head()
    (promotion,) = works.control.seals.read(2, 3)
    corrected = dict.fromkeys(promotion.shards, 2)
    assert corrected
    report, made = tasks.checkpoint(works, idle)
    assert {name: facts["txn_to"] for name, facts in report["shards"].items()} == corrected
    note_announced(works.pipeline, idle, made)
    assert tasks.checkpoint(works, Attempt(Owner("next"), new_token()))[0]["shards"] == {}


LATE = {"schema": "id BIGINT, value STRING, m BIGINT, n BIGINT", "sequence_by": "m", "lateness": 10}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ({}, {"schema": "id BIGINT"}, "only another key, type or order replaces a shard"),
        (
            {"on_schema_change": "add_columns"},
            {"keys": ["value"]},
            "a shard that gets the columns of its records is not replaced",
        ),
        (LATE, {"sequence_by": "n"}, "its lateness counts the old sequence_by, so it is not replaced"),
    ],
    ids=["a dropped column", "columns of records", "a lateness"],
)
def test_what_a_promotion_can_not_replace_is_refused_by_name(
    tmp_path: Path, old: dict[str, Any], new: dict[str, Any], why: str
) -> None:
    (tmp_path / "in").mkdir()
    land(tmp_path)
    first = {"on_schema_change": "fail", **old}
    assert Typed(tmp_path, shard=first).run() == [1]
    works = Typed(tmp_path, generation=1, shard={**first, **new})
    found = plan(works)
    assert (list(found.replaced), len(found.refused)) == ([], 1)
    assert why in found.refused[0]
    with pytest.raises(InvalidUsage, match=why):
        Generations(works).start(reason="another", replaces=[str(light.SHARD)])
    assert works.control.bindings.head().upper == 2
