"""Acting on the pages: only who may edit the DAG, only from the pages themselves, only with a reason, and
with the user's name in the journal. Doubles stand for Airflow's database and logins, and for nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.common.db.common import _get_session
from airflow.api_fastapi.core_api import security
from airflow.sdk.exceptions import AirflowFailException
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from tests.airflow.test_pages_api import HOSTILE, PIPELINE, Logins, as_user
from tests.support.light import LightPlane
from tidemark.airflow.pages import app as pages
from tidemark.airflow.pages import registry
from tidemark.airflow.pages.app import pages_app
from tidemark.airflow.pages.registry import (
    REPLACES,
    REPLAYS,
    PipelineDag,
    does,
    marked,
    marked_work,
    pipeline_in,
)
from tidemark.airflow.replace import GenerationOperator, ReplacePlanOperator
from tidemark.app import tasks
from tidemark.app.deployment import Deployment
from tidemark.app.generation import Generations
from tidemark.app.job import Order
from tidemark.app.tasks import open_pipeline
from tidemark.config import load_pipeline
from tidemark.core.binding import Owner
from tidemark.core.errors import InvalidUsage
from tidemark.core.generation import Candidate
from tidemark.core.ids import ShardId, WriterToken
from tidemark.core.seal import Opinion, Staged
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.ingest import gather
from tidemark.pipeline.reclock import mint
from tidemark.pipeline.upsert import seal_judged
from tidemark.pipeline.validate import judge_gathered

pytestmark = pytest.mark.airflow

HERE = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}
BODIES: dict[str, dict[str, Any]] = {
    "skip": {"txn": 1},
    "accept": {"txn": 1},
    "release": {"shard": "points"},
    "replay": {"txn_from": 1, "txn_to": 1},
    "repair": {"txn_from": 1, "txn_to": 1},
    "publish": {},
    "promote": {"candidate": "none"},
    "abort": {"candidate": "none"},
}


class Said:
    """A gate that says what it was told to say."""

    def __init__(self, **opinion: Any) -> None:
        self._opinion = Opinion(**opinion)

    def opinion(self, staged: Staged) -> Opinion:
        return self._opinion


class Rig:
    """A pipeline on disk, the pages over it, and what was started from them."""

    def __init__(self, folder: Path, client: TestClient) -> None:
        self.folder, self.client = folder, client
        self.file = folder / "mine.yaml"
        self.started: list[tuple[str, dict[str, Any], str]] = []

    def work(self, **opinion: Any) -> None:
        """One run of tasks over a new file, up to its verdict; what may be sealed is sealed."""
        number = 1 + len(list((self.folder / "landing").iterdir()))
        (self.folder / "landing" / f"{number}.json").write_text(
            json.dumps({"id": number, "value": "v"}) + "\n"
        )
        deployment = Deployment(load_pipeline(self.file), lambda: pytest.fail("no Spark here"))
        plane = LightPlane(self.folder / "warehouse" / "mine", self.folder / "landing")
        works = replace(deployment.pipeline, plane=plane, gate=Said(**opinion))
        attempt = Attempt(Owner(f"run-{number}"), WriterToken(f"w{number}"))
        mint(works, attempt)
        gather(works, attempt)
        (judged,) = judge_gathered(works, attempt)
        if judged.gated.passed:
            seal_judged(works, attempt)

    def post(
        self, action: str, user: str = "eve", *, headers: dict[str, str] | None = None, **body: Any
    ) -> Any:
        told = {"reason": "because"} | BODIES[action] | body
        address = f"/api/pipelines/mine/actions/{action}"
        return self.client.post(address, json=told, headers={**as_user(user), **HERE, **(headers or {})})

    def journal(self, txn: int) -> list[tuple[str, dict[str, str]]]:
        journal = open_pipeline(self.file, None).control.journal
        journal.head()
        return [(str(one.event), dict(one.detail)) for one in journal.find(str(txn))]

    @property
    def seals(self) -> list[Any]:
        seals = open_pipeline(self.file, None).control.seals
        return list(seals.read(1, seals.head().upper))


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    (tmp_path / "landing").mkdir()
    (tmp_path / "mine.yaml").write_text(PIPELINE.format(name="mine"))
    logins = Logins(
        rights={"ann": {"mine", "plain"}, "eve": {"mine"}, HOSTILE: {"mine"}, "bob": set()},
        edits={"eve": {"mine", "replay", "replace"}, HOSTILE: {"mine"}},
    )
    known = PipelineDag("mine", str(tmp_path / "mine.yaml"), None)
    for module in (security, pages):
        monkeypatch.setattr(module, "get_auth_manager", lambda: logins)
    monkeypatch.setattr("airflow.models.dag.DagModel.get_team_name", lambda dag_id: None)
    monkeypatch.setattr(registry, "pipeline_of", lambda session, dag_id: known if dag_id == "mine" else None)
    monkeypatch.setattr(registry, "known_pipelines", lambda session, ids: [known] if "mine" in ids else [])
    monkeypatch.setattr(registry, "dag_for", lambda work, session, one: work[:-1])
    app = pages_app()
    app.dependency_overrides[_get_session] = lambda: SimpleNamespace(scalar=lambda query: None)
    with TestClient(app) as client:
        made = Rig(tmp_path, client)

        def start(dag_id: str, asked: dict[str, Any], *, note: str, **more: Any) -> str:
            made.started.append((dag_id, asked, note))
            return "manual__1"

        monkeypatch.setattr(pages, "start", start)
        yield made


def untouched(rig: Rig) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in rig.folder.rglob("*")}


def test_every_action_is_known_here() -> None:
    routes = [
        route for route in pages_app().routes if isinstance(route, APIRoute) and route.methods == {"POST"}
    ]
    assert {route.path.rpartition("/")[2] for route in routes} == set(BODIES)


@pytest.mark.parametrize("action", BODIES)
def test_who_may_not_edit_the_dag_changes_nothing_and_anonymous_gets_nothing(rig: Rig, action: str) -> None:
    rig.work(failed=("red",))
    before = untouched(rig)
    for user, status in (("ann", 403), ("bob", 403), ("nobody", 403)):
        assert rig.post(action, user).status_code == status, user
    address = f"/api/pipelines/mine/actions/{action}"
    answer = rig.client.post(address, json={"reason": "because", **BODIES[action]}, headers=HERE)
    assert answer.status_code == 401
    elsewhere = rig.client.post(
        address.replace("mine", "theirs"), json={}, headers={**as_user("eve"), **HERE}
    )
    assert elsewhere.status_code == 403
    assert rig.client.get(address, headers=as_user("eve")).status_code in (404, 405)
    assert (untouched(rig), rig.started) == (before, [])


@pytest.mark.parametrize("action", BODIES)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://testserver.evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {},
    ],
)
def test_a_post_of_another_origin_is_refused_though_the_browser_sends_the_login(
    rig: Rig, action: str, headers: dict[str, str]
) -> None:
    address = f"/api/pipelines/mine/actions/{action}"
    body = {"reason": "because", **BODIES[action]}
    rig.client.cookies.set("_token", "eve")
    answer = rig.client.post(address, json=body, headers=headers)
    assert answer.status_code == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        sent = {**HERE, "Content-Type": kind}
        assert rig.client.post(address, content=json.dumps(body), headers=sent).status_code == 415
    assert (rig.started, (rig.folder / "warehouse").exists()) == ([], False)


def test_the_pages_own_request_and_a_token_without_a_browser_are_let_in(rig: Rig) -> None:
    rig.work(failed=("red",))
    rig.client.cookies.set("_token", "eve")
    answer = rig.client.post(
        "/api/pipelines/mine/actions/skip", json={"reason": "poisoned", "txn": 1}, headers=HERE
    )
    assert answer.status_code == 200, answer.text
    rig.client.cookies.clear()
    rig.work(failed=("red",))
    answer = rig.client.post(
        "/api/pipelines/mine/actions/skip", json={"reason": "poisoned", "txn": 2}, headers=as_user("eve")
    )
    assert answer.status_code == 200, answer.text


def test_a_red_transaction_is_accepted_here_and_the_journal_has_the_name_and_the_reason(rig: Rig) -> None:
    rig.work(failed=("amount is negative",))
    told = rig.client.get("/api/pipelines/mine", headers=as_user("eve")).json()
    assert (told["may_act"], told["alarms"][0]["kind"]) == (True, "blocked")
    assert rig.client.get("/api/pipelines/mine", headers=as_user("ann")).json()["may_act"] is False
    answer = rig.post("accept", reason="  it was a refund ")
    assert answer.json() == {"done": "transaction 1 is accepted; the checkpoint is 1"}
    (seal,) = rig.seals
    assert (str(seal.decision), seal.reason) == ("accepted", "it was a refund")
    event, detail = rig.journal(1)[-1]
    assert (event, detail["user"], detail["reason"]) == ("accepted", "eve", "it was a refund")
    again = rig.post("accept")
    assert (again.status_code, "already accepted" in again.json()["detail"]) == (400, True)


def test_an_open_transaction_is_skipped_and_a_name_is_kept_as_it_is(rig: Rig) -> None:
    rig.work(failed=("red",))
    assert rig.post("skip", HOSTILE, reason=HOSTILE).status_code == 200
    assert [str(seal.decision) for seal in rig.seals] == ["skipped"]
    event, detail = rig.journal(1)[-1]
    assert (event, detail["user"], detail["reason"]) == ("skipped", HOSTILE, HOSTILE)


def test_a_paused_shard_is_released(rig: Rig) -> None:
    rig.work(held={ShardId("points"): "too many NULLs"})
    (alarm,) = rig.client.get("/api/pipelines/mine", headers=as_user("eve")).json()["alarms"]
    assert (alarm["kind"], alarm["subject"]) == ("blocked", "shard points at transaction 1")

    def waits() -> Any:
        answer = rig.client.get("/api/pipelines/mine/transactions/1", headers=as_user("eve"))
        return answer.json()["waits"]

    assert waits() == {"points": "too many NULLs"}
    answer = rig.post("release")
    assert answer.json() == {"done": "shard points appended 1 transaction; it has all transactions up to 1"}
    event, detail = rig.journal(1)[-1]
    assert (event, detail["user"], detail["shard"]) == ("released", "eve", "points")
    assert waits() == {}, "the seal still says that it was held"
    assert rig.post("release", shard="nope").status_code == 400


def test_regression_a_shard_stays_blocked_when_the_checkpoint_has_gone_past_it(
    rig: Rig,
) -> None:
    rig.work(held={ShardId("points"): "too many NULLs"})
    for sealed in (1, 2, 3):
        checkpoint(open_pipeline(rig.file, None).pipeline)
        told = rig.client.get("/api/pipelines/mine", headers=as_user("eve")).json()
        assert told["checkpoint"] == sealed
        assert [one["what"] for one in told["blocked"]] == ["shard points at transaction 1"]
        assert [one["paused"] for one in told["shards"]] == ["at 1: too many NULLs"]
        rig.work()
    assert rig.post("release").status_code == 200
    assert rig.client.get("/api/pipelines/mine", headers=as_user("eve")).json()["blocked"] == []


@pytest.mark.parametrize(("action", "mode"), [("replay", "verify"), ("repair", "repair")])
def test_a_replay_is_a_run_of_the_dag_that_replays_with_the_request_on_record(
    rig: Rig, action: str, mode: str
) -> None:
    rig.work()
    answer = rig.post(action, reason="a doubt")
    assert (answer.status_code, answer.json()["run_id"]) == (200, "manual__1")
    asked = {"pipeline": "mine", "txn_from": 1, "txn_to": 1, "mode": mode, "dry_run": False}
    assert rig.started == [("replay", asked, "a doubt")]
    event, detail = rig.journal(1)[-1]
    assert (event, detail["what"], detail["user"], detail["reason"]) == (
        "requested",
        action,
        "eve",
        "a doubt",
    )
    assert rig.post(action, txn_to=9).status_code == 400, "what is not bound can't be replayed"
    assert rig.post(action, HOSTILE).status_code == 403, "who may not start runs of that DAG"
    assert len(rig.started) == 1


def test_a_publish_is_a_run_of_the_pipelines_own_dag(rig: Rig) -> None:
    rig.work()
    answer = rig.post("publish", reason="the board meets")
    assert answer.json()["done"] == "publish: run manual__1 of DAG mine does it"
    assert rig.started == [("mine", {"publish": True}, "the board meets")]
    ((event, detail),) = rig.journal(0)
    assert (event, detail["what"], detail["user"]) == ("requested", "publish", "eve")


def test_a_run_of_a_paused_dag_is_not_said_to_do_its_work(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow makes new DAGs paused: their runs wait, for ever if nobody unpauses them."""
    rig.work()
    monkeypatch.setattr(registry, "is_paused", lambda session, dag_id: dag_id == "replay")
    done = rig.post("replay").json()["done"]
    assert done == "replay: run manual__1 waits until DAG replay is unpaused"
    assert rig.post("publish").json()["done"] == "publish: run manual__1 of DAG mine does it"


def test_nothing_is_done_without_a_reason_or_by_what_nobody_asked_for(rig: Rig) -> None:
    rig.work(failed=("red",))
    before = untouched(rig)
    for bad in ({"reason": ""}, {"reason": "x" * 1001}, {"txn": 0}, {"txn": "1"}, {"force": True}):
        assert rig.post("skip", **bad).status_code == 422, bad
    assert rig.post("skip", reason="  \n").status_code == 400
    assert rig.post("skip", txn=7).status_code == 400
    assert untouched(rig) == before


def test_what_was_never_staged_can_not_be_accepted_here(rig: Rig) -> None:
    rig.work(failed=("red",))
    for part in (rig.folder / "warehouse").rglob("*.parquet"):
        if "points" in part.parts:
            part.unlink()
    answer = rig.post("accept")
    assert (answer.status_code, "clear the run's tasks from ingest on" in answer.text) == (400, True)
    assert rig.seals == []


def test_a_replay_dag_is_known_by_its_marked_task_for_the_pipelines_it_has() -> None:
    one = PipelineDag("shop", "/p/shop.yaml", "prod")

    def dag(mark: str) -> dict[str, Any]:
        return {"dag": {"tasks": [{"__var": {"task_id": "plan", "doc_json": mark}}]}}

    def replays(mark: str) -> bool:
        return does(REPLAYS, dag(mark), one)

    assert replays(marked_work(REPLAYS, {"shop": "/p/shop.yaml"}, "prod"))
    assert does(REPLACES, dag(marked_work(REPLACES, {"shop": "/p/shop.yaml"}, "prod")), one)
    assert not replays(marked_work(REPLACES, {"shop": "/p/shop.yaml"}, "prod"))
    assert not replays(marked_work(REPLAYS, {"shop": "/p/shop.yaml"}, None))
    assert not replays(marked_work(REPLAYS, {"shop": "/q/shop.yaml"}, "prod"))
    assert not replays(marked("/p/shop.yaml", "prod"))
    assert pipeline_in("replay", dag(marked_work(REPLAYS, {"shop": "/p/shop.yaml"}, "prod"))) is None


def candidate_of(rig: Rig, *, from_now: bool = False) -> Candidate:
    """A candidate with the settings of the pipeline file, which has a new generation."""
    text = rig.file.read_text().partition("generation:")[0]
    rig.file.write_text(f"{text}generation: 1\n")
    return Generations(open_pipeline(rig.file, None)).start(reason="other types", from_now=from_now)


def test_a_candidate_is_shown_with_what_it_lacks_and_only_the_one_that_was_seen_is_aborted(rig: Rig) -> None:
    rig.work()
    assert rig.client.get("/api/pipelines/mine", headers=as_user("ann")).json()["candidate"] is None
    first = candidate_of(rig)
    rig.work()
    told = rig.client.get("/api/pipelines/mine", headers=as_user("ann")).json()["candidate"]
    assert datetime.now(UTC) - datetime.fromisoformat(told.pop("started")) < timedelta(hours=1)
    assert told == {
        "generation": 1, "identity": first.identity, "reason": "other types", "from_now": False, "behind": 2,
    }  # fmt: skip
    assert rig.post("abort", candidate=first.identity, reason="a mistake").status_code == 200
    assert rig.client.get("/api/pipelines/mine", headers=as_user("ann")).json()["candidate"] is None
    second = candidate_of(rig, from_now=True)
    told = rig.client.get("/api/pipelines/mine", headers=as_user("ann")).json()["candidate"]
    assert (told["identity"], told["from_now"], told["behind"]) == (second.identity, True, 0)
    for action in ("abort", "promote"):
        answer = rig.post(action, candidate=first.identity)
        assert (answer.status_code, "was looked at is" in answer.text) == (400, True), action
    assert Generations(open_pipeline(rig.file, None)).candidate == second
    ((event, detail),) = rig.journal(0)
    assert (event, detail["what"], detail["user"], detail["reason"]) == (
        "requested",
        "abort",
        "eve",
        "a mistake",
    )


def test_a_promotion_is_a_run_of_the_dag_that_replaces_settings_for_the_candidate_that_was_seen(
    rig: Rig,
) -> None:
    rig.work()
    assert rig.post("promote").status_code == 400, "there is no candidate"
    seen = candidate_of(rig)
    answer = rig.post("promote", candidate=seen.identity, reason="it was compared")
    assert (answer.status_code, answer.json()["dag_id"]) == (200, "replace")
    asked = {
        "pipeline": "mine", "reason": "it was compared", "txn_from": 1, "txn_to": None, "from_now": False,
        "replace": [], "candidate": seen.identity, "promote": True,
    }  # fmt: skip
    assert rig.started == [("replace", asked, "it was compared")]
    ((event, detail),) = rig.journal(0)
    assert (event, detail["what"], detail["user"]) == ("requested", "promote", "eve")
    assert rig.post("promote", HOSTILE, candidate=seen.identity).status_code == 403, (
        "no right to start its runs"
    )

    # The run stops if the candidate was replaced meanwhile, before it plans and before each part.
    Generations(open_pipeline(rig.file, None)).abort(reason="a mistake")
    candidate_of(rig)
    plan = ReplacePlanOperator(task_id="plan", pipeline_files={"mine": str(rig.file)})
    with pytest.raises(AirflowFailException, match="was looked at is"):
        plan.execute({"params": asked})  # type: ignore[arg-type]
    for part in ("follow", "promote"):
        order = Order(str(rig.file), "r", "w", mode=part, candidate=seen.identity)
        with pytest.raises(InvalidUsage, match="was looked at is"):
            tasks.generation(open_pipeline(rig.file, None), order)
    ran = SimpleNamespace(triggering_user_name="eve")
    promote = GenerationOperator(task_id="promote", part="promote", pipeline_files={})
    for answer, user in ((None, "eve"), ({"user": ""}, "eve"), ({"user": "ann"}, "ann")):
        ti = SimpleNamespace(xcom_pull=lambda answer=answer, **which: answer)
        context: Any = {"ti": ti, "dag_run": ran, "params": {"candidate": seen.identity}}
        assert promote._answer(context) == {"user": user, "candidate": seen.identity}
    for given, named in ((None, "none"), ({"candidate": "1-1-x"}, "1-1-x")):
        ti = SimpleNamespace(xcom_pull=lambda answer=given, **which: answer)
        context = {"ti": ti, "dag_run": ran, "params": {"candidate": None}}
        assert promote._answer(context)["candidate"] == named, "what was not compared is not promoted"
