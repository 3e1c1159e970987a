"""Where Tidemark keeps what it fetched: the same place for all processes of a user."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidemark.runtime.machine
from tidemark.runtime.machine import home


@pytest.fixture(autouse=True)
def _installed_from_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "site-packages" / "tidemark" / "runtime" / "home.py"
    monkeypatch.setattr(tidemark.runtime.machine, "__file__", str(module))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("TIDEMARK_HOME", raising=False)


def test_regression_a_wheel_keeps_its_things_in_one_place_wherever_a_process_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for name in ("scheduler", "worker"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.add(home())
    assert found == {tmp_path / "user" / ".tidemark"}


def test_an_operator_may_say_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "opt"))
    assert home() == tmp_path / "opt"
