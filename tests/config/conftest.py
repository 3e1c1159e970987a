"""A project folder with one good pipeline file, and ways to change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.config.harness import GOOD
from tidemark.config import ConfigInvalid, PipelineConfig, Problem, load_pipeline


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIDEMARK_ROOT", "TIDEMARK_WAREHOUSE", "TIDEMARK_ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "include" / "pipelines").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def write(project: Path) -> Callable[..., Path]:
    """Write a pipeline file; `pairs` of old and new change the text, `add` goes to its end."""

    def write(
        text: str = GOOD, *, name: str = "p.yaml", add: str = "", pairs: Sequence[tuple[str, str]] = ()
    ) -> Path:
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        file = project / "include" / "pipelines" / name
        file.write_text(text + add, encoding="utf-8")
        return file

    return write


@pytest.fixture
def load(write: Callable[..., Path]) -> Callable[..., PipelineConfig]:
    def load(*pairs: tuple[str, str], add: str = "", environment: str | None = None) -> PipelineConfig:
        return load_pipeline(write(pairs=pairs, add=add), environment)

    return load


@pytest.fixture
def problems(load: Callable[..., PipelineConfig]) -> Callable[..., list[Problem]]:
    """The problems of a changed file; there must be some."""

    def problems(*pairs: tuple[str, str], add: str = "", environment: str | None = None) -> list[Problem]:
        with pytest.raises(ConfigInvalid) as caught:
            load(*pairs, add=add, environment=environment)
        return list(caught.value.problems)

    return problems
