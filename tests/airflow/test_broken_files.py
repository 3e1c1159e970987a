"""Several folders of pipeline files in one DAG file: the broken files of each are reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow.sdk.definitions._internal.contextmanager import DagContext

from tests.airflow.conftest import PIPELINE
from tidemark.airflow import maintain_dag, pipeline_dags, replay_dag
from tidemark.airflow.dags import BROKEN
from tidemark.core.errors import InvalidUsage

pytestmark = pytest.mark.airflow


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A DAG file that is being parsed, as Airflow does it."""
    monkeypatch.setattr(DagContext, "current_autoregister_module_name", __name__)
    monkeypatch.setattr(DagContext, "autoregistered_dags", set())
    return ModuleType("dag_file")


def folder(root: Path, name: str, *, broken: str = "", pipeline: str = "") -> Path:
    made = root / name
    made.mkdir()
    if broken:
        (made / f"{broken}.yaml").write_text(PIPELINE.format(name=broken).replace("keys:", "keyz:"))
    if pipeline:
        (made / f"{pipeline}.yaml").write_text(PIPELINE.format(name=pipeline))
    return made


def test_regression_every_broken_file_of_two_folders_is_reported_whichever_error_airflow_keeps(
    tmp_path: Path, module: ModuleType
) -> None:
    for name, broken, pipeline in (("a", "first", "one"), ("b", "second", "two"), ("c", "", "three")):
        module.__dict__.update(pipeline_dags(folder(tmp_path, name, broken=broken, pipeline=pipeline)))
    dags = {name: dag for name, dag in module.__dict__.items() if not name.startswith("__")}
    assert {"one", "two", "three"} <= dags.keys()
    broken = [dag for name, dag in dags.items() if name.startswith(BROKEN)]
    assert len(broken) == 2, "one in the place of the other would leave its errors out"
    for dag in broken:
        with pytest.raises(InvalidUsage) as error:
            dag.validate()
        assert "first.yaml:9" in str(error.value)
        assert "second.yaml:9" in str(error.value)


def test_regression_a_pipeline_does_not_take_the_place_of_another_of_its_name(
    tmp_path: Path, module: ModuleType
) -> None:
    first = pipeline_dags(folder(tmp_path, "a", pipeline="shop"))
    module.__dict__.update(first)
    second = pipeline_dags(folder(tmp_path, "b", pipeline="shop"))
    assert "shop" not in second
    (broken,) = second.values()
    with pytest.raises(InvalidUsage, match=r"b/shop\.yaml: this DAG file has a DAG 'shop' already"):
        broken.validate()


@pytest.mark.parametrize("make", [replay_dag, maintain_dag])
def test_a_second_dag_for_all_pipelines_needs_an_id_of_its_own(
    tmp_path: Path, module: ModuleType, make: Callable[..., dict[str, Any]]
) -> None:
    there = folder(tmp_path, "a", pipeline="one")
    make(there)
    with pytest.raises(InvalidUsage, match=": give this one its own dag_id"):
        make(there)
    assert set(make(there, dag_id="mine")) == {"mine"}


def test_a_file_that_is_parsed_again_knows_nothing_of_the_time_before(
    tmp_path: Path, module: ModuleType
) -> None:
    there = folder(tmp_path, "a", broken="first", pipeline="one")
    assert len(pipeline_dags(there)) == 2
    DagContext.autoregistered_dags.clear()
    (there / "first.yaml").unlink()
    assert set(pipeline_dags(there)) == {"one"}
