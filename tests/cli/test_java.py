"""Finding a Java: by what it says of itself, in a fixed order."""

from __future__ import annotations

import os
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidemark.core.errors import InvalidUsage
from tidemark.runtime.machine import find_java, java_folder, use_java

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup" / "setup.py"


def make_java(home: Path, version: str, *, reported_home: str = "/reported") -> Path:
    """A launcher that answers like a Java of that version."""
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {reported_home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
    )
    launcher.chmod(0o755)
    return home


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))
    return tmp_path


def test_java_home_goes_before_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(bare / "a", "17")))
    monkeypatch.setenv("PATH", str(make_java(bare / "b", "21") / "bin"))
    assert (find_java().home, find_java().version) == (bare / "a", 17)


@pytest.mark.parametrize("version", ["1.8", "11", "16", "24", "25"])
def test_a_java_that_spark_does_not_run_on_is_passed_over(
    bare: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(bare / "a", version)))
    monkeypatch.setenv("PATH", str(make_java(bare / "b", "21") / "bin"))
    assert (find_java().home, find_java().version) == (Path("/reported"), 21)


def test_the_fetched_java_is_used_where_there_is_no_other(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = make_java(bare / "home" / "java", "21")
    monkeypatch.setenv("JAVA_HOME", "")  # so that the fixture restores it
    assert use_java().home == fetched
    assert os.environ["JAVA_HOME"] == str(fetched)


def test_regression_set_up_fetches_a_java_to_where_it_is_looked_for(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_from_file_location("setting_up", SETUP)
    assert spec is not None
    assert spec.loader is not None
    setting_up = module_from_spec(spec)
    spec.loader.exec_module(setting_up)
    # Stand in for the question whether there is a Java, and for the fetching.
    monkeypatch.setattr(setting_up.subprocess, "run", lambda *args, **kwargs: SimpleNamespace(returncode=1))
    monkeypatch.setattr(setting_up, "run", lambda command, failure: None)
    setting_up.ensure_java("uv")
    assert java_folder() == bare / "home" / "java"
    assert (java_folder() / "bin" / "java").is_file()


def test_no_java_at_all_says_what_was_looked_at_and_what_to_do(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidUsage, match="JAVA_HOME is not set") as caught:
        find_java()
    assert "make setup" in caught.value.hint
    monkeypatch.setenv("JAVA_HOME", str(make_java(bare / "old", "11")))
    with pytest.raises(InvalidUsage, match="JAVA_HOME is Java 11"):
        find_java()


def test_a_launcher_that_does_not_run_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare / "gone"))
    monkeypatch.setenv("PATH", str(make_java(bare / "b", "17") / "bin"))
    assert find_java().version == 17
