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
import json, os, sys
from airflow.dag_processing.dagbag import DagBag
looked = []
def look(event, arguments):
    if event in ("open", "os.scandir", "os.listdir"):
        looked.append(str(arguments[0]))
sys.addaudithook(look)

def parsed(folder, pipelines):
    os.environ["TIDEMARK_PIPELINES"] = pipelines
    looked.clear()
    bag = DagBag(folder, bundle_path=None, bundle_name="test")
    seen = sorted({path for path in looked if any(name in path for name in ("landing", "warehouse"))})
    dags = {
        dag_id: {
            "tasks": {
                one.task_id: [type(one).__name__, sorted(one.downstream_task_ids)] for one in dag.tasks
            },
            "params": {name: dag.params.get_param(name).schema for name in dag.params},
            "pools": {task.task_id: task.pool for task in dag.tasks},
            "schedule": str(dag.schedule),
        }
        for dag_id, dag in bag.dags.items()
    }
    heavy = [name for name in sys.argv[2].split() if name in sys.modules]
    return {"dags": dags, "errors": bag.import_errors, "heavy": heavy, "looked": seen}

print("RESULT" + json.dumps({name: parsed(*folders) for name, folders in json.loads(sys.argv[1]).items()}))
"""
"""Parses DAG folders, given by name with their pipelines, as the DAG processor does."""
Bags = dict[str, Any]


def parse(folders: dict[str, tuple[Path, Path]], home: Path) -> Bags:
    """Parse DAG folders in one process of their own: to load Airflow takes longer than all of them."""
    named = {name: [str(dags), str(pipelines)] for name, (dags, pipelines) in folders.items()}
    done = subprocess.run(
        [sys.executable, "-c", BAG, json.dumps(named), " ".join(HEAVY)],
        env={
            **os.environ,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "RESULT" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]
    found: Bags = json.loads(done.stdout.rpartition("RESULT")[2])
    return found


FILES = {"few": 1, "many": 41}


@pytest.fixture(scope="module")
def bags(tmp_path_factory: pytest.TempPathFactory) -> Bags:
    """The project's own DAGs over several folders of pipelines, and a folder of a user's own."""
    root, dags = tmp_path_factory.mktemp("bags"), PROJECT / "dags"
    folders = {"own": (dags, PROJECT / "include" / "pipelines"), "broken": (dags, broken_files(root))}
    for name, files in FILES.items():
        for part in ("pipelines", "landing", "warehouse"):
            (root / name / part).mkdir(parents=True)
        (root / name / "landing" / "a.json").write_text('{"id": 1}')
        for number in range(files):
            (root / name / "pipelines" / f"p{number}.yaml").write_text(PIPELINE.format(name=f"p{number}"))
        folders[name] = (dags, root / name / "pipelines")
    for part in ("pipelines", "dags"):
        (root / "mine" / part).mkdir(parents=True)
    (root / "mine" / "pipelines" / "mine.yaml").write_text(PIPELINE.format(name="mine"))
    line = f"globals().update(pipeline_dags({str(root / 'mine' / 'pipelines')!r}))  # dag"
    (root / "mine" / "dags" / "mine.py").write_text(f"from tidemark.airflow import pipeline_dags\n{line}\n")
    folders["mine"] = (root / "mine" / "dags", root / "mine" / "pipelines")
    return parse(folders, root / "home")


def broken_files(root: Path) -> Path:
    """Two good pipeline files and three that are not."""
    folder = root / "broken"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(PIPELINE.format(name=name))
    (folder / "broken.yaml").write_text(PIPELINE.format(name="broken").replace("keys:", "keyz:"))
    (folder / "worse.yaml").write_text("name: [")
    (folder / "taken.yaml").write_text(PIPELINE.format(name="maintain"))
    return folder


@pytest.fixture(scope="module")
def parsed(bags: Bags) -> dict[str, Any]:
    """The project's own DAGs over a folder with two good pipeline files and three that are not."""
    found: dict[str, Any] = bags["broken"]
    return found


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


@pytest.mark.parametrize("name", FILES)
def test_parsing_loads_no_engine_and_looks_at_no_data_however_many_pipelines_there_are(
    bags: Bags, name: str
) -> None:
    names = {f"p{number}" for number in range(FILES[name])}
    assert set(bags[name]["dags"]) == {*names, "replay", "replace", "maintain", "health"}
    assert (bags[name]["errors"], bags[name]["heavy"], bags[name]["looked"]) == ({}, [], [])


def test_the_projects_own_pipelines_parse(bags: Bags) -> None:
    assert bags["own"]["errors"] == {}
    assert {"orders", "shop"} <= set(bags["own"]["dags"])


def test_a_dags_folder_of_ones_own_needs_two_lines(bags: Bags) -> None:
    assert (set(bags["mine"]["dags"]), bags["mine"]["errors"]) == ({"mine"}, {})


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
