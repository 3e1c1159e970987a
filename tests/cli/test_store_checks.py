"""`tidemark doctor -e`: the places that an environment's pipeline files name. The stores are in memory."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import PermissionDeniedError
from obstore.store import MemoryStore
from typer.testing import CliRunner

from tidemark.cli import doctor
from tidemark.cli.app import app

PIPELINE = """\
name: p
source: {type: files, path: in, format: json}
shards: [{name: t, schema: id BIGINT NOT NULL, keys: [id]}]
environments:
  prod: {warehouse: 's3://lake/x', source: {path: 's3://lake/landing'}}
"""


class Refusing:
    def __getattr__(self, name: str) -> Any:
        raise PermissionDeniedError("not yours\nmore")


def test_a_store_that_answers_passes_and_keeps_nothing() -> None:
    store: Any = MemoryStore()
    assert doctor.check_clock("s3a://lake/x", store=store).ok
    assert doctor.check_landing("s3a://lake/landing", store=store).ok
    assert list(store.list()) == []


def test_a_clock_that_is_minutes_off_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 300)
    found = doctor.check_clock("s3a://lake/x", store=MemoryStore())  # type: ignore[arg-type]
    assert not found.ok
    assert found.remedy == "set the clock of this machine"


def test_a_store_that_refuses_fails_with_what_it_says() -> None:
    refusing: Any = Refusing()
    clock = doctor.check_clock("s3a://lake/x", store=refusing)
    landing = doctor.check_landing("s3a://lake/landing", store=refusing)
    assert (clock.ok, clock.found) == (False, "not yours")
    assert (landing.ok, "not yours" in landing.found) == (False, True)


def test_a_connector_that_is_not_fetched_fails_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    found = doctor.check_connector("s3a")
    assert (found.ok, found.remedy) == (False, "run `python -m tidemark.runtime.jars fetch s3`")


def test_doctor_looks_at_every_place_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "p.yaml").write_text(PIPELINE)
    asked: list[str] = []

    def asks(name: str) -> Any:
        def check(place: str) -> doctor.Check:
            asked.append(f"{name} {place}")
            return doctor.Check(name, ok=True, found="")

        return check

    for name in ("check_connector", "check_clock", "check_put_if_absent", "check_landing"):
        monkeypatch.setattr(doctor, name, asks(name.removeprefix("check_")))
    told = CliRunner().invoke(app, ["doctor", "-e", "prod", "--no-spark", "--json"])
    assert asked == [
        "connector s3a", "clock s3a://lake/x", "put_if_absent s3a://lake/x", "landing s3a://lake/landing",
    ]  # fmt: skip
    assert "python" in [check["name"] for check in json.loads(told.stdout)["checks"]]
