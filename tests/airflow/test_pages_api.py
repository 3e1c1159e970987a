"""The pages' API: nobody gets in without a user, nobody sees a pipeline whose DAG they may not view, and it
says what the command says. The control plane is real; doubles stand for Airflow's database and logins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.common.db.common import _get_session
from airflow.api_fastapi.core_api import security
from fastapi import HTTPException
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from tests.support.light import LightPlane
from tidemark.airflow.pages import app as pages
from tidemark.airflow.pages import registry
from tidemark.airflow.pages.app import HEADERS, PAGES, STATIC, pages_app
from tidemark.airflow.pages.registry import PipelineDag, marked, pipeline_in
from tidemark.app.deployment import Deployment
from tidemark.cli.app import app as command
from tidemark.config import load_pipeline
from tidemark.core.binding import Owner
from tidemark.core.ids import WriterToken
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.ingest import gather
from tidemark.pipeline.reclock import mint
from tidemark.pipeline.upsert import seal_judged
from tidemark.pipeline.validate import judge_gathered

pytestmark = pytest.mark.airflow

PIPELINE = """\
name: {name}
source: {{type: files, path: landing, format: json, settle_seconds: 0}}
warehouse: warehouse
shards:
  - name: points
    schema: id BIGINT NOT NULL, value STRING
    keys: [id]
    masked: [value]
"""
HOSTILE = "<img src=x onerror=alert(1)>"
SECRET = "a-masked-value"


def loaded(folder: Path, name: str) -> Path:
    """A pipeline with two transactions, one of them by a run with a hostile name, and a file that waits."""
    (folder / "landing").mkdir(parents=True)
    file = folder / f"{name}.yaml"
    file.write_text(PIPELINE.format(name=name))
    for number, run_id in enumerate(("first", HOSTILE), start=1):
        row = {"id": number, "value": SECRET}
        (folder / "landing" / f"{number}.json").write_text(json.dumps(row) + "\n")
        config = load_pipeline(file)
        deployment = Deployment(config, lambda: pytest.fail("no Spark here"))
        plane = LightPlane(folder / "warehouse" / name, folder / "landing")
        works = replace(deployment.pipeline, plane=plane)
        attempt = Attempt(Owner(run_id), WriterToken(f"w{number}"))
        mint(works, attempt)
        gather(works, attempt)
        judge_gathered(works, attempt)
        seal_judged(works, attempt)
        checkpoint(works)
    (folder / "landing" / "3.json").write_text('{"id": 3}\n')
    return file


class Person(str):
    """A user of Airflow's."""

    def get_name(self) -> str:
        return str(self)


@dataclass
class Logins:
    """Airflow's auth manager: a token is a user's name, and a user may view some DAGs, and edit some."""

    rights: dict[str, set[str]] = field(default_factory=lambda: {"ann": {"mine"}, "bob": set()})
    edits: dict[str, set[str]] = field(default_factory=dict)

    async def get_user_from_token(self, token: str) -> Person:
        if token not in self.rights:
            raise HTTPException(403, "unknown")
        return Person(token)

    def is_authorized_dag(self, *, method: str, user: str, details: Any, access_entity: Any = None) -> bool:
        rights = self.rights if method == "GET" else self.edits
        return details.id in rights.get(user, set())

    def get_authorized_dag_ids(self, *, user: str, method: str, session: Any) -> set[str]:
        return self.rights[user]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: loaded(tmp_path_factory.mktemp(name), name) for name in ("mine", "theirs")}


@pytest.fixture
def client(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    logins = Logins()
    known = {name: PipelineDag(name, str(file), None) for name, file in files.items()}
    for module in (security, pages):
        monkeypatch.setattr(module, "get_auth_manager", lambda: logins)
    monkeypatch.setattr(security.DagModel, "get_team_name", lambda dag_id: None)
    monkeypatch.setattr(registry, "pipeline_of", lambda session, dag_id: known.get(dag_id))
    monkeypatch.setattr(
        registry, "known_pipelines", lambda session, ids: [one for one in known.values() if one.dag_id in ids]
    )
    app = pages_app()
    app.dependency_overrides[_get_session] = lambda: SimpleNamespace(scalar=lambda query: None)
    with TestClient(app) as started:
        yield started


def as_user(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def addresses(dag_id: str = "mine") -> list[str]:
    """Every route of the app, with something in the place of each parameter."""
    found = []
    for route in pages_app().routes:
        assert isinstance(route, APIRoute), f"{route} has none of the app's dependencies"
        if route.methods != {"GET"}:
            assert route.path.startswith("/api/pipelines/{dag_id}/actions/"), "nothing else changes anything"
            continue
        path = route.path.replace("{dag_id}", dag_id).replace("{txn}", "1")
        path = path.replace("{path:path}", "index.html")
        found.append(path.replace("{page}", "pipelines").replace("{name}", "page.js"))
    return found


def test_nobody_gets_anything_without_a_user(client: TestClient) -> None:
    assert len(addresses()) >= 7
    for address in addresses():
        for headers in ({}, as_user("nobody"), {"Cookie": "_token=nobody"}):
            answer = client.get(address, headers=headers, params={"run_id": "first"})
            assert answer.status_code in (401, 403), address
            assert SECRET not in answer.text
            assert "points" not in answer.text
    for address in ("/openapi.json", "/docs", "/redoc", "/static/../app.py"):
        assert client.get(address).status_code in (401, 403, 404)


def test_a_user_without_the_right_to_a_dag_gets_nothing_of_its_pipeline(client: TestClient) -> None:
    about = [address for address in addresses("theirs") if "theirs" in address]
    assert len(about) == 6
    for user in ("ann", "bob"):
        for address in about:
            answer = client.get(address, headers=as_user(user), params={"run_id": "first"})
            assert (answer.status_code, answer.json()) == (403, {"detail": "Forbidden"}), address
    assert client.get("/api/pipelines", headers=as_user("ann")).json() == {"pipelines": ["mine"]}
    assert client.get("/api/pipelines", headers=as_user("bob")).json() == {"pipelines": []}


def test_the_session_cookie_of_airflows_own_pages_is_a_user_too(client: TestClient) -> None:
    answer = client.get("/api/pipelines", headers={"Cookie": "_token=ann"})
    assert answer.json() == {"pipelines": ["mine"]}


def test_nothing_may_come_from_elsewhere_and_nothing_is_kept(client: TestClient) -> None:
    for address in (*(f"/{page}" for page in PAGES), *(f"/static/{name}" for name in STATIC), "/api/none"):
        headers = client.get(address, headers=as_user("ann")).headers
        assert HEADERS.items() <= {name: headers.get(name) for name in HEADERS}.items(), address
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_the_pages_make_no_markup_of_what_they_show_and_name_no_other_host() -> None:
    """Names come from files, runs and people: a page that sets them as text can't be made to run them."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in pages.FILES.iterdir()}
    assert texts.keys() == {"page.html", *STATIC}
    for name, text in texts.items():
        for way in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "DOMParser"):
            assert way not in text, f"{name}: {way}"
        assert "://" not in text.replace("http://www.w3.org/2000/svg", ""), name
    assert not re.search(r"<script>|<style|\son\w+=|style=|javascript:", texts["page.html"]), (
        "the policy forbids it"
    )


def get(client: TestClient, path: str, **params: Any) -> Any:
    answer = client.get(f"/api/pipelines/mine{path}", headers=as_user("ann"), params=params)
    assert answer.status_code == 200, answer.text
    assert SECRET not in answer.text, "no value of a row may be told"
    return answer.json()


def test_a_pipeline_says_what_the_command_says(client: TestClient, files: dict[str, Path]) -> None:
    told = get(client, "")
    said = json.loads(CliRunner().invoke(command, ["status", str(files["mine"]), "--json"]).output)
    assert [(one["txn"], one["read"], one["quarantined"]) for one in told["recent"]] == [(1, 1, 0), (2, 1, 0)]
    assert all(one["seconds"] > 0 for one in told["recent"])
    assert told.pop("tables") == str(files["mine"].parent / "warehouse" / "mine")
    for changes in ("at", "dag_id", "source_type", "may_act", "recent", "consumers", "leases"):
        told.pop(changes, None)
        said.pop(changes, None)
    assert told == said
    assert (told["bound"], told["sealed"], told["checkpoint"]) == (2, 2, 2)
    assert (told["waiting"]["pieces"], told["waiting"]["unit"]) == (1, "files")


def test_transactions_come_newest_first_in_pages_and_can_be_searched(client: TestClient) -> None:
    whole = get(client, "/transactions")
    assert [row["txn"] for row in whole["transactions"]] == [2, 1]
    assert (whole["next"], whole["total"]) == (None, 2)
    first = get(client, "/transactions", limit=1)
    assert ([row["txn"] for row in first["transactions"]], first["next"]) == ([2], 2)
    rest = get(client, "/transactions", limit=1, before=first["next"])
    assert ([row["txn"] for row in rest["transactions"]], rest["next"]) == ([1], None)
    found = get(client, "/transactions", search="FIRST committed")
    assert [row["txn"] for row in found["transactions"]] == [1]
    assert get(client, "/transactions", search="nothing of the kind")["transactions"] == []
    for bad in ({"limit": 0}, {"limit": 10**6}, {"before": "x"}, {"search": "x" * 1000}):
        answer = client.get("/api/pipelines/mine/transactions", headers=as_user("ann"), params=bad)
        assert answer.status_code == 422


def test_a_transaction_has_its_input_digests_parts_and_journal_and_no_value(client: TestClient) -> None:
    told = get(client, "/transactions/2")
    assert [file["name"] for file in told["input"]["files"]] == ["2.json"]
    assert (told["run"], told["gone"]) == (HOSTILE, "")
    assert told["seal"]["digests"].keys() == {"source", "shard:points"}
    steps = ["bound", "staged", "judged", "sealed", "in the log of points"]
    assert [one["step"] for one in told["steps"]] == steps
    assert sum(one["seconds"] for one in told["steps"][1:4]) == pytest.approx(told["seconds"], abs=0.002)
    (part,) = told["seal"]["parts"]
    assert part.keys() == {"shard", "path", "rows", "bytes", "held"}
    answer = client.get("/api/pipelines/mine/transactions/9", headers=as_user("ann"))
    assert (answer.status_code, "transaction 9 is not bound" in answer.text) == (400, True)


def test_a_run_has_its_sentence(client: TestClient) -> None:
    found: Any = SimpleNamespace(logical_date=None, start_date=None, clear_number=0, state="success")
    session = SimpleNamespace(scalar=lambda query: found)
    client.app.dependency_overrides[_get_session] = lambda: session  # type: ignore[attr-defined]
    told = get(client, "/run", run_id="first")
    assert [row["txn"] for row in told["transactions"]] == [1]
    assert told["sentence"] == "loaded transaction 1: 1 read = 1 applied + 0 quarantined"
    for state in ("queued", "running", "failed"):
        found.state = state
        told = get(client, "/run", run_id="other")
        assert told["sentence"] == f"the run is {state}, and has no transaction on record"
    found.state = "success"
    assert get(client, "/run", run_id="other")["sentence"] == "no new transaction"
    found = None
    answer = client.get("/api/pipelines/mine/run", headers=as_user("ann"), params={"run_id": "none"})
    assert answer.status_code == 404


def test_data_docs_are_shown_without_any_right_to_run_something(
    client: TestClient, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = files["mine"].parent / "home"
    site = home / "data-docs" / "mine"
    (site / "validations").mkdir(parents=True)
    (site / "validations" / "1.html").write_text(f"<p>{HOSTILE}</p>")
    (home / "data-docs" / "secret.html").write_text(SECRET)
    (site / "other.txt").write_text(SECRET)
    monkeypatch.setenv("TIDEMARK_HOME", str(home))
    answer = client.get("/docs/mine/validations/1.html", headers=as_user("ann"))
    assert (answer.status_code, answer.text) == (200, f"<p>{HOSTILE}</p>")
    policy = answer.headers["Content-Security-Policy"]
    assert "sandbox;" in policy, "an origin of its own"
    assert "allow-" not in policy
    assert "script-src" not in policy
    for path in ("nothing.html", "..%2Fsecret.html", "%2e%2e/secret.html", "other.txt", "", "validations"):
        answer = client.get(f"/docs/mine/{path}", headers=as_user("ann"))
        assert (answer.status_code, SECRET in answer.text) == (404, False), path


def test_looking_writes_nothing_and_makes_no_table(
    client: TestClient, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "landing").mkdir()
    untouched = tmp_path / "new.yaml"
    untouched.write_text(PIPELINE.format(name="new"))
    for file, total in ((files["mine"], 2), (untouched, 0)):
        shown = PipelineDag("mine", str(file), None)
        monkeypatch.setattr(registry, "pipeline_of", lambda session, dag_id, shown=shown: shown)
        before = written_below(file.parent)
        assert get(client, "")["bound"] == get(client, "/transactions")["total"] == total
        assert written_below(file.parent) == before


def written_below(folder: Path) -> dict[Path, int]:
    """When each file was written; the caches in `_index` are no tables, and may be made by a look."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if "_index" not in path.parts}


def test_a_dag_is_known_by_its_marked_task_and_no_other_is() -> None:
    task = {"__type": "operator", "__var": {"task_id": "reclock", "doc_json": marked("/p/shop.yaml", "prod")}}
    found = pipeline_in("shop", {"dag": {"tasks": [{"__var": {"task_id": "x"}}, task]}})
    assert found == PipelineDag("shop", "/p/shop.yaml", "prod")
    for other in ("{", "[]", '"tidemark"', '{"tidemark": 1}', '{"other": {}}'):
        assert pipeline_in("x", {"dag": {"tasks": [{"__var": {"doc_json": other}}]}}) is None
    assert pipeline_in("x", {}) is None
