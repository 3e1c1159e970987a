"""Alarms by notifiers and late runs by deadline alerts, with the example of docs/airflow.md as it is."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from tests.airflow.test_health import Looks, looks  # noqa: F401

pytestmark = pytest.mark.airflow

DOCUMENT = Path(__file__).parents[2] / "docs" / "airflow.md"


@pytest.fixture
def dags(looks: Looks) -> dict[str, Any]:  # noqa: F811
    """What the example makes of a folder with one pipeline."""
    section = DOCUMENT.read_text().split("## `health`", 1)[1].split("\n## ", 1)[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(example.replace("/path/to/pipelines", str(looks.folder)), names)
    return names


def test_an_alarm_is_mailed_once_with_its_remedy_and_as_text(
    looks: Looks,  # noqa: F811
    dags: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mails: list[tuple[str, str]] = []
    monkeypatch.setattr(
        SmtpNotifier, "notify", lambda self, _: mails.append((self.subject, self.html_content))
    )
    hostile = looks.folder / "landing" / "1.json"
    hostile.write_text('{"id": 1}\n')
    task = dags["health"].get_task("shop")
    run = SimpleNamespace(run_id="<b>r</b>", logical_date=None, clear_number=0, start_date=None)
    ti = SimpleNamespace(task=task, task_id=task.task_id)
    context: Any = {"dag_run": run, "ti": ti, "dag": dags["health"]}
    with pytest.raises(AirflowFailException) as red:
        task.execute(context)
    context["exception"] = AirflowFailException(f"{red.value} <script>")
    for callback in task.on_failure_callback:
        callback(context)
    ((subject, text),) = mails
    assert subject == "shop needs somebody"
    assert "behind: 1 file waits" in text
    assert "tidemark journal shop" in text, "what to do about it"
    assert "&lt;script&gt;" in text
    assert looks.look().startswith("skipped: "), "nobody is told twice"


def test_a_run_that_takes_too_long_has_a_deadline_that_airflow_keeps(dags: dict[str, Any]) -> None:
    (alert,) = dags["shop"].deadline
    assert alert.interval == timedelta(minutes=30)
    assert alert.callback.path == "airflow.providers.smtp.notifications.smtp.SmtpNotifier"
    kept = DagSerialization.to_dict(dags["shop"])["dag"]["deadline"]
    assert "DagRunQueuedAtDeadline" in str(kept)
    assert "a run takes too long" in str(kept)
    assert dags["health"].deadline is None
