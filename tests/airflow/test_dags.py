"""The DAGs as Airflow sees them: what they consist of, what they cost to parse, what they refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.definitions._internal.contextmanager import DagContext

from tests.airflow.conftest import PIPELINE, PROJECT
from tests.support.waiting import SECONDS_MAX
from tidemark.airflow import ShardUpperSensor, maintain_dag, pipeline_dags, replay_dag
from tidemark.airflow.assets import pipeline_alias
from tidemark.airflow.dags import BROKEN
from tidemark.core.errors import InvalidUsage

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

# What parsing a DAG file must never load.
HEAVY = ("pyspark", "deltalake", "pyarrow", "pandas", "numpy", "great_expectations")
BAG = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
looked = []
def look(event, arguments):
    if event in ("open", "os.scandir", "os.listdir"):
        looked.append(str(arguments[0]))
sys.addaudithook(look)
bag = DagBag(sys.argv[1], bundle_path=None, bundle_name="test")
looked = sorted({path for path in looked if any(name in path for name in ("landing", "warehouse"))})
dags = {
    dag_id: {
        "tasks": {one.task_id: [type(one).__name__, sorted(one.downstream_task_ids)] for one in dag.tasks},
        "params": {name: dag.params.get_param(name).schema for name in dag.params},
        "pools": {task.task_id: task.pool for task in dag.tasks},
        "schedule": str(dag.schedule),
    }
    for dag_id, dag in bag.dags.items()
}
heavy = [name for name in sys.argv[2].split() if name in sys.modules]
print("RESULT" + json.dumps({"dags": dags, "errors": bag.import_errors, "heavy": heavy, "looked": looked}))
"""


def parse(dags: Path, pipelines: Path, home: Path) -> dict[str, Any]:
    """Parse a DAGs folder in a process of its own, as the DAG processor does."""
    done = subprocess.run(
        [sys.executable, "-c", BAG, str(dags), " ".join(HEAVY)],
        env={
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "TIDEMARK_PIPELINES": str(pipelines),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "RESULT" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.rpartition("RESULT")[2])
    return found


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The project's own DAGs over a folder with two good pipeline files and two broken ones."""
    folder = tmp_path_factory.mktemp("project") / "pipelines"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(PIPELINE.format(name=name))
    (folder / "broken.yaml").write_text(PIPELINE.format(name="broken").replace("keys:", "keyz:"))
    (folder / "worse.yaml").write_text("name: [")
    (folder / "taken.yaml").write_text(PIPELINE.format(name="maintain"))
    return parse(PROJECT / "dags", folder, tmp_path_factory.mktemp("airflow"))


def test_every_pipeline_file_has_a_dag_with_exactly_these_tasks(parsed: dict[str, Any]) -> None:
    assert set(parsed["dags"]) == {"one", "two", "replay", "replace", "maintain", "health"}
    assert parsed["dags"]["one"]["tasks"] == {
        "reclock": ["ReclockOperator", ["ingest"]],
        "ingest": ["IngestOperator", ["validate"]],
        "validate": ["ValidateOperator", ["upsert"]],
        "upsert": ["UpsertOperator", ["checkpoint"]],
        "checkpoint": ["CheckpointOperator", []],
    }
    assert parsed["dags"]["one"]["pools"]["upsert"] == "tidemark_publishers"


def test_the_replay_dag_asks_for_what_it_needs_and_no_more(parsed: dict[str, Any]) -> None:
    dag = parsed["dags"]["replay"]
    assert {name: kind for name, (kind, _) in dag["tasks"].items()} == {
        "plan": "ReplayPlanOperator",
        "replay": "ReplayOperator",
        "report": "ReplayReportOperator",
    }
    assert dag["params"]["pipeline"]["enum"] == ["one", "two"]
    assert dag["params"]["mode"]["enum"] == ["verify", "repair"]
    assert (dag["params"]["txn_from"]["type"], dag["params"]["txn_from"]["minimum"]) == ("integer", 1)
    assert set(parsed["dags"]["maintain"]["tasks"]) == {"one", "two"}
    assert set(parsed["dags"]["health"]["tasks"]) == {"one", "two"}


def test_a_broken_pipeline_file_is_one_import_error_with_file_and_line_and_the_others_live(
    parsed: dict[str, Any],
) -> None:
    (error,) = parsed["errors"].values()
    assert "broken.yaml:9" in error
    assert "keyz" in error
    assert "keys" in error
    assert "worse.yaml:2" in error


def test_a_pipeline_with_the_name_of_another_dag_is_refused_by_its_file(parsed: dict[str, Any]) -> None:
    (error,) = parsed["errors"].values()
    assert "taken.yaml: 'maintain' is the id of a DAG; give the pipeline another name" in error
    assert set(parsed["dags"]["maintain"]["tasks"]) == {"one", "two"}


def test_the_dags_for_all_pipelines_take_a_users_arguments_and_refuse_a_pipelines_id(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(PIPELINE.format(name="one"))
    for make, task in ((replay_dag, "plan"), (maintain_dag, "one")):
        (dag,) = make(tmp_path, default_args={"retries": 7}, tags=["mine"]).values()
        assert (dag.get_task(task).retries, dag.get_task(task).owner) == (7, "tidemark")
        with pytest.raises(InvalidUsage, match="the DAG id 'one' is used by another DAG"):
            make(tmp_path, dag_id="one")


def two_pipelines(folder: Path, *, schedule: str = "null") -> None:
    """Pipeline files of which the second has a schedule of its own."""
    (folder / "one.yaml").write_text(PIPELINE.format(name="one"))
    text = PIPELINE.format(name="two").replace("schedule: null", f"schedule: {schedule}")
    (folder / "two.yaml").write_text(text)


def test_regression_a_continuous_pipeline_has_one_run_at_a_time_and_leaves_the_others_alone(
    tmp_path: Path,
) -> None:
    two_pipelines(tmp_path, schedule='"@continuous"')
    dags = pipeline_dags(tmp_path, max_active_runs=2)
    assert {name: dag.max_active_runs for name, dag in dags.items()} == {"one": 2, "two": 1}


def test_regression_a_dag_that_airflow_refuses_is_one_problem_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_pipelines(tmp_path)

    def refuse(pipeline: str) -> Any:
        if pipeline == "two":
            raise ValueError("not this one")
        return pipeline_alias(pipeline)

    monkeypatch.setattr("tidemark.airflow.assets.pipeline_alias", refuse)
    monkeypatch.setattr(DagContext, "current_autoregister_module_name", __name__)
    monkeypatch.setattr(DagContext, "autoregistered_dags", set())
    dags = pipeline_dags(tmp_path)
    (broken,) = [dag for name, dag in dags.items() if name.startswith(BROKEN)]
    assert set(dags) == {"one", broken.dag_id}
    with pytest.raises(InvalidUsage, match=r"two\.yaml: Airflow refuses its DAG: ValueError: not this one"):
        broken.validate()
    registered = {dag.dag_id for dag, _ in DagContext.autoregistered_dags}
    assert registered == {"one", broken.dag_id}, "half a DAG is none"


def test_regression_the_name_of_a_pipeline_file_is_never_a_template(tmp_path: Path) -> None:
    """One of this name would show another team's password in the task's log."""
    hostile = "{{ conn.warehouse.password }}.yaml"
    (tmp_path / hostile).write_text(PIPELINE.format(name="shop"))
    (broken,) = pipeline_dags(tmp_path).values()
    with pytest.raises(InvalidUsage, match="a pipeline file can't have this file name: use letters"):
        broken.validate()
    (tmp_path / hostile).rename(tmp_path / "shop.yaml")
    dags = {**pipeline_dags(tmp_path), **replay_dag(tmp_path), **maintain_dag(tmp_path)}
    tasks = [task for dag in dags.values() for task in dag.tasks]
    tasks.append(ShardUpperSensor(task_id="sensor", pipeline_file=hostile, shard="s", txn=1))
    assert len(tasks) > 8
    assert [task for task in tasks if {"pipeline_file", "pipeline"} & set(task.template_fields)] == []


@pytest.mark.parametrize("make", [pipeline_dags, replay_dag, maintain_dag])
def test_regression_a_folder_that_is_not_there_is_an_error_and_not_an_empty_one(
    tmp_path: Path, make: Callable[[Path], dict[str, Any]]
) -> None:
    assert make(tmp_path) == {}
    with pytest.raises(InvalidUsage, match=r"there is no folder '.*elsewhere'"):
        make(tmp_path / "elsewhere")


@pytest.mark.parametrize("files", [1, 41])
def test_parsing_loads_no_engine_and_looks_at_no_data_however_many_pipelines_there_are(
    tmp_path: Path, files: int
) -> None:
    pipelines = tmp_path / "pipelines"
    for folder in (pipelines, tmp_path / "landing", tmp_path / "warehouse"):
        folder.mkdir()
    (tmp_path / "landing" / "a.json").write_text('{"id": 1}')
    names = {f"p{number}" for number in range(files)}
    for name in names:
        (pipelines / f"{name}.yaml").write_text(PIPELINE.format(name=name))
    found = parse(PROJECT / "dags", pipelines, tmp_path / "home")
    assert set(found["dags"]) == {*names, "replay", "replace", "maintain", "health"}
    assert (found["errors"], found["heavy"], found["looked"]) == ({}, [], [])


def test_the_projects_own_pipelines_parse(tmp_path: Path) -> None:
    found = parse(PROJECT / "dags", PROJECT / "include" / "pipelines", tmp_path)
    assert found["errors"] == {}
    assert {"orders", "shop"} <= set(found["dags"])


def test_a_dags_folder_of_ones_own_needs_two_lines(tmp_path: Path) -> None:
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    (pipelines / "mine.yaml").write_text(PIPELINE.format(name="mine"))
    dags = tmp_path / "dags"
    dags.mkdir()
    line = f"globals().update(pipeline_dags({str(pipelines)!r}))  # dag"
    (dags / "mine.py").write_text(f"from tidemark.airflow import pipeline_dags\n{line}\n")
    found = parse(dags, pipelines, tmp_path / "home")
    assert (set(found["dags"]), found["errors"]) == ({"mine"}, {})


@pytest.mark.parametrize(
    ("component", "loaded"), [("triggerer", []), ("scheduler", ["pyspark", "pandas", "great_expectations"])]
)
def test_the_plugin_loads_what_tasks_need_and_the_gates_library_where_they_are_forked(
    component: str, loaded: list[str]
) -> None:
    code = (
        "import sys; from tidemark.airflow import plugin\n"
        "assert plugin.TidemarkPlugin.name == 'tidemark'\n"
        "assert {'deltalake', 'tidemark.app.tasks'} <= sys.modules.keys()\n"
        "print([name for name in ('pyspark', 'pandas', 'great_expectations') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, component]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    assert done.stdout.splitlines()[-1:] == [str(loaded)], done.stderr
