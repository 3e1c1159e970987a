"""The list of the pages with fifty pipelines: every row is there, a broken one is told in its place, and a
second look opens nothing anew."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.common.db.common import _get_session
from airflow.api_fastapi.core_api import security
from fastapi.testclient import TestClient

from tests.airflow.test_pages_api import Logins, as_user, loaded
from tests.support.copies import at_home
from tidemark.airflow.pages import answers, registry
from tidemark.airflow.pages import app as pages
from tidemark.airflow.pages.app import pages_app
from tidemark.airflow.pages.registry import PipelineDag
from tidemark.app import tasks

pytestmark = pytest.mark.airflow

PIPELINES = 50


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Fifty pipelines, each with a warehouse of its own: one that has run, and copies of it."""
    root = tmp_path_factory.mktemp("many")
    first = loaded(root / "p00", "p00")
    found = {"p00": first}
    for number in range(1, PIPELINES):
        name = f"p{number:02}"
        shutil.copytree(first.parent, root / name)
        (root / name / "warehouse" / "p00").rename(root / name / "warehouse" / name)
        at_home(root / name)
        found[name] = (root / name / "p00.yaml").rename(root / name / f"{name}.yaml")
        found[name].write_text(found[name].read_text().replace("name: p00", f"name: {name}"))
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each pipeline file was opened for the pages."""
    counted: Counter[str] = Counter()

    def opening(file: str, environment: str | None) -> Any:
        counted[Path(file).stem] += 1
        return tasks.open_pipeline(file, environment)

    monkeypatch.setattr(answers, "open_pipeline", opening)
    monkeypatch.setattr(answers, "_open", type(answers._open)())
    return counted


@pytest.fixture
def client(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    known = {name: PipelineDag(name, str(file), None) for name, file in files.items()}
    logins = Logins(rights={"ann": set(known), "bob": {"p07"}})
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


def listed(client: TestClient, user: str) -> list[str]:
    found: list[str] = client.get("/api/pipelines", headers=as_user(user)).json()["pipelines"]
    return found


def test_fifty_pipelines_are_listed_looked_at_and_kept_open(
    client: TestClient, files: dict[str, Path], opened: Counter[str]
) -> None:
    assert listed(client, "ann") == sorted(files)
    assert listed(client, "bob") == ["p07"]
    broken = files["p13"].read_text()
    files["p13"].write_text("name: p13\nsource: {}\n")

    def look() -> dict[str, Any]:
        return {name: client.get(f"/api/pipelines/{name}", headers=as_user("ann")) for name in files}

    first = look()
    assert {name for name, answer in first.items() if answer.status_code != 200} == {"p13"}
    assert first["p13"].status_code == 400
    assert "p13.yaml" in first["p13"].json()["detail"]
    for name, answer in first.items():
        if name != "p13":
            row = answer.json()
            assert (row["pipeline"], row["sealed"], row["checkpoint"], row["waiting"]["pieces"]) == (
                name,
                2,
                2,
                1,
            )
    files["p13"].write_text(broken)
    second = look()
    assert {answer.status_code for answer in second.values()} == {200}
    assert {name: count for name, count in opened.items() if count > 1} == {"p13": 2}
