"""The health task: red once for an alarm, skipped while it goes on, green when there is none. The control
plane is real; no Airflow and no Spark run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tests.airflow.conftest import PIPELINE
from tidemark.airflow import HealthOperator, health_dag
from tidemark.app.tasks import open_pipeline
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import TXN_NONE

pytestmark = pytest.mark.airflow


class Looks:
    """A pipeline whose input waits too long once a file is there, and the looks of its health task at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "landing").mkdir()
        self.file = folder / "shop.yaml"
        self.file.write_text(PIPELINE.format(name="shop") + "alarms: {behind: 0s}\n")
        self.runs = 0

    def look(self, *, told: bool = True) -> str:
        """One run of the task; `told` is whether Airflow comes to call what follows a failure."""
        self.runs += 1
        task = HealthOperator(task_id="shop", pipeline_file=str(self.file))
        run = SimpleNamespace(run_id=f"r{self.runs}", logical_date=None, clear_number=0, start_date=None)
        context: Any = {"dag_run": run, "ti": SimpleNamespace(task=task)}
        try:
            return str(task.execute(context))
        except AirflowSkipException as error:
            return f"skipped: {error}"
        except AirflowFailException as error:
            context["exception"] = error
            for callback in task.on_failure_callback if told else ():
                callback(context)
            return f"red: {error}"

    def noted(self) -> list[tuple[str, str]]:
        journal = open_pipeline(self.file, None).control.journal
        journal.head()
        return [(str(one.event), one.detail["alarm"]) for one in journal.find(str(TXN_NONE))]


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looks:
    monkeypatch.setattr("tidemark.airflow.steps.provide_connection", lambda *args: None)
    return Looks(tmp_path)


def test_an_alarm_is_red_once_and_skipped_while_it_goes_on_and_green_when_it_is_over(looks: Looks) -> None:
    assert looks.look() == "{'alarms': 0}"
    waits = looks.folder / "landing" / "1.json"
    waits.write_text('{"id": 1}\n')
    red = looks.look()
    assert red.startswith("red: 1 alarm:\nbehind: 1 file waits, for ")
    assert "tidemark journal shop" in red, "it says what to do"
    assert [looks.look() for _ in range(3)] == ["skipped: reported before and not over: 1 alarm"] * 3
    waits.unlink()
    assert [looks.look() for _ in range(2)] == ["{'alarms': 0}"] * 2
    assert looks.noted() == [("alarm", "behind: input"), ("alarm over", "behind: input")]
    waits.write_text('{"id": 1}\n')
    assert looks.look().startswith("red: ")


def test_an_alarm_whose_failure_never_came_through_is_told_again(looks: Looks) -> None:
    (looks.folder / "landing" / "1.json").write_text('{"id": 1}\n')
    for told in (False, False, True):
        assert looks.look(told=told).startswith("red: ")
    assert looks.look().startswith("skipped: ")


def test_a_pipeline_without_a_warehouse_is_looked_at_and_nothing_is_made(looks: Looks) -> None:
    looks.look()
    assert not (looks.folder / "warehouse").exists()


def test_the_health_dag_has_a_task_per_pipeline_and_takes_a_notifier(looks: Looks) -> None:
    told: list[str] = []
    args = {"on_failure_callback": lambda context: told.append("x"), "retries": 7}
    (dag,) = health_dag(looks.folder, default_args=args).values()
    task = dag.get_task("shop")
    assert (dag.dag_id, dag.catchup, task.retries, task.owner) == ("health", False, 7, "tidemark")
    assert len(task.on_failure_callback) == 3, "the notifier, the last line of the log, the journal"
    with pytest.raises(InvalidUsage, match="the DAG id 'shop' is used by another DAG"):
        health_dag(looks.folder, dag_id="shop")
