"""Metrics of tasks and of the command: the names of the table, the values of the seals."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.observability import stats

from bench.start import done
from tests.airflow.test_health import Looks, looks  # noqa: F401
from tests.airflow.test_operators import Bench, bench  # noqa: F401
from tests.airflow.test_pages_api import loaded
from tests.support.memory.world import rec
from tests.support.waiting import SECONDS_MAX
from tidemark.airflow.operators import CheckpointOperator, airflow_sink
from tidemark.app import metrics, tasks
from tidemark.app.job import Order, perform
from tidemark.app.tasks import open_pipeline
from tidemark.core.ids import WriterToken

pytestmark = pytest.mark.airflow

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"


class Recorder:
    """A backend of Airflow's metrics that keeps what it is given."""

    def __init__(self) -> None:
        self.got: dict[tuple[str, ...], Any] = {}

    def _keep(self, kind: str, name: str, value: Any, tags: dict[str, str]) -> None:
        at = (kind, name, *sorted(tags.values()))
        self.got[at] = self.got.get(at, 0) + value if kind == "counter" else value

    def incr(self, stat: str, count: int = 1, *, tags: dict[str, str]) -> None:
        self._keep("counter", stat, count, tags)

    def gauge(self, stat: str, value: float, *, tags: dict[str, str]) -> None:
        self._keep("gauge", stat, value, tags)

    def timing(self, stat: str, dt: Any, *, tags: dict[str, str]) -> None:
        self._keep("timing", stat, dt.total_seconds(), tags)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Airflow's metrics, turned on as its settings do it."""
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
    made = Recorder()
    stats.initialize(factory=lambda: made, export_legacy_names=True)  # type: ignore[arg-type, return-value]
    yield made
    monkeypatch.undo()
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    stats.initialize(factory=get_stats_factory(), export_legacy_names=True)


def ended(bench: Bench, *, clear_number: int = 0) -> None:  # noqa: F811
    """The tasks of one run, up to its checkpoint."""
    context = bench.context(clear_number=clear_number)
    tasks.reclock(bench.deployment(), Order("shop.yaml", "r", "w", round=clear_number).attempt)
    for step in ("ingest", "validate", "upsert"):
        token = f"w{step}{clear_number}"
        order = Order("shop.yaml", "r", token, cleared=clear_number > 0, round=clear_number)
        perform(step, bench.deployment(), order)
    context |= {"outlet_events": {}, "ti": SimpleNamespace()}
    task = CheckpointOperator(task_id="checkpoint", pipeline_file="shop.yaml", pipeline="shop")
    task.announce = lambda *args: None  # type: ignore[method-assign]
    task.execute(context)


@pytest.fixture
def steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:  # noqa: F811
    monkeypatch.setattr("tidemark.app.tasks.publish_due", lambda *args, **kwargs: {})
    monkeypatch.setattr("tidemark.app.tasks.shard_report", lambda *args: {})
    monkeypatch.setattr(
        "tidemark.app.metrics.step_seconds", lambda *args: {"ingest": 1.5, "transaction": 2.0}
    )
    return bench


def test_a_run_is_counted_once_and_its_proof_is_not(steps: Bench, recorder: Recorder) -> None:
    steps.world.feed(rec("k", 1), rec("j", 2), rec("k", 3))
    ended(steps)
    seals = steps.world.process().control.seals
    (seal,) = seals.read(1, seals.head().upper)
    size = sum(part.bytes for part in seal.shards["a"].parts)  # type: ignore[index]
    counted = {
        ("counter", "tidemark.transactions", "committed", "shop"): 1,
        ("counter", "tidemark.records.read", "shop"): 3,
        ("counter", "tidemark.rows.written", "a", "shop"): 2,
        ("counter", "tidemark.bytes.written", "a", "shop"): size,
        ("timing", "tidemark.step.duration", "ingest", "shop"): 1.5,
        ("timing", "tidemark.transaction.duration", "shop"): 2.0,
        ("gauge", "tidemark.lag.transactions", "shop"): 0,
    }
    assert recorder.got == counted
    ended(steps, clear_number=1)
    assert recorder.got == counted, "a proof writes nothing, and counts nothing"


def test_a_transaction_that_another_run_sealed_is_a_race_lost(steps: Bench, recorder: Recorder) -> None:
    steps.world.feed(rec("k", 1))
    order = Order("shop.yaml", "r", "wingest0")
    tasks.reclock(steps.deployment(), order.attempt)
    perform("ingest", steps.deployment(), order)
    steps.world.run()
    ended(steps)
    assert recorder.got["counter", "tidemark.races.lost", "shop"] == 1
    assert not [at for at in recorder.got if at[1] == "tidemark.transactions"]


def test_the_seconds_by_step_add_up_to_those_of_the_transaction(tmp_path: Path) -> None:
    deployment = open_pipeline(loaded(tmp_path, "shop"), None)
    seals = deployment.control.seals
    (seal,) = seals.read(1, min(2, seals.head().upper))
    found = list(metrics.of_transactions(deployment, [seal]))
    steps = {one.tags["step"]: one.value for one in found if one.metric is metrics.STEP}
    (whole,) = (one.value for one in found if one.metric is metrics.DURATION)
    assert set(steps) == {"ingest", "validate", "upsert"}
    assert sum(steps.values()) == pytest.approx(whole)
    assert whole > 0


def test_metrics_that_are_off_cost_nothing_and_that_fail_stop_nothing(
    steps: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    assert airflow_sink() is None
    metrics.send(None, lambda: pytest.fail("nothing is read"))

    class Broken:
        def record(self, measure: metrics.Measure) -> None:
            raise OSError("no route to host")

    steps.world.commit(rec("k", 1))
    attempt = Order("shop.yaml", "r", str(WriterToken("w"))).attempt
    metrics.send(Broken(), lambda: metrics.of_run(steps.deployment(), attempt))
    assert "metrics are not sent: no route to host" in caplog.text


def test_the_health_task_tells_lag_and_alarms(looks: Looks, recorder: Recorder) -> None:  # noqa: F811
    looks.look()
    assert recorder.got["gauge", "tidemark.waiting", "shop"] == 0
    assert recorder.got["gauge", "tidemark.lag.seconds", "shop"] == 0.0
    assert recorder.got["gauge", "tidemark.alarms", "shop"] == 0
    file = looks.folder / "landing" / "1.json"
    file.write_text('{"id": 1}\n')
    os.utime(file, (0, 0))
    looks.look()
    assert recorder.got["gauge", "tidemark.waiting", "shop"] == 1
    assert recorder.got["gauge", "tidemark.lag.seconds", "shop"] > 1_000
    assert recorder.got["gauge", "tidemark.alarms", "shop"] == 1


def test_the_documented_table_is_the_table() -> None:
    line = r"^\| `(tidemark\.[a-z.]+)`" + r" \| (.*?)" * 4 + r" \|$"
    lines = re.findall(line, DOCUMENT.read_text(), re.MULTILINE)
    assert [one.name for one in metrics.METRICS] == [line[0] for line in lines]
    for one, (_, kind, unit, tags, meaning) in zip(metrics.METRICS, lines, strict=True):
        told = ", ".join(f"`{tag}`" for tag in ("pipeline", one.tag) if tag)
        assert (kind, unit, tags, meaning) == (one.kind, one.unit, told, one.meaning), one.name


def test_the_command_sends_by_opentelemetrys_own_settings(tmp_path: Path) -> None:
    pipeline = done(tmp_path)
    command = [sys.executable, "-m", "tidemark.cli", "status", pipeline.name]

    def told(**settings: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
        return subprocess.run(
            command, cwd=pipeline.parent, env={**environment, **settings}, text=True, capture_output=True,
            timeout=SECONDS_MAX, check=True,
        )  # fmt: skip

    sent = told(OTEL_METRICS_EXPORTER="console").stdout
    assert '"tidemark.lag.transactions"' in sent
    assert '"pipeline": "idle"' in sent
    for settings in ({}, {"OTEL_METRICS_EXPORTER": "none"}):
        assert "tidemark.lag" not in told(**settings).stdout
    missing = told(OTEL_METRICS_EXPORTER="carrier_pigeon")
    assert "there is no metrics exporter 'carrier_pigeon'" in missing.stderr
