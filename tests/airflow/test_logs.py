"""What a task's log shows: each line once, no noise of a library, and retries that outlast a restart."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.airflow.conftest import PIPELINE
from tests.airflow.test_truth import Airflow
from tests.support.memory.world import rec
from tidemark.airflow import pipeline_dags
from tidemark.airflow.steps import SparkStepOperator
from tidemark.app.job import perform, progress_once
from tidemark.app.tasks import SparkNeeded
from tidemark.core.ids import Txn
from tidemark.spark import session

pytestmark = pytest.mark.airflow


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    found = Airflow(monkeypatch)
    monkeypatch.setattr("tidemark.app.tasks.publish_due", lambda *args, **kwargs: {})
    found.world.feed(rec("k", 1))
    return found


def lines_of(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("transaction ")]


@pytest.mark.parametrize("connects", [True, False])
def test_regression_a_line_of_progress_is_in_the_log_once(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], connects: bool
) -> None:
    """The step is tried without Spark, done with it, and after a submit looked at once more."""
    without = SparkStepOperator.without_spark
    needed = [True]

    def once(operator: SparkStepOperator, order: object) -> object:
        if not needed:
            return without(operator, order)  # type: ignore[arg-type]
        needed.clear()
        with progress_once() as progress:
            progress(Txn(1), "ingest")
            raise SparkNeeded
        return None

    def over(operator: SparkStepOperator, order: object) -> object:
        return perform(operator.step, airflow.deployment(), order)  # type: ignore[arg-type]

    monkeypatch.setattr(SparkStepOperator, "without_spark", once)
    monkeypatch.setattr(SparkStepOperator, "connects", connects)
    monkeypatch.setattr(SparkStepOperator, "over_connection", over)
    airflow.task("reclock")
    airflow.task("ingest")
    assert lines_of(capsys.readouterr().out) == ["transaction 1: ingest", "transaction 1: read back"]
    airflow.task("ingest")
    assert lines_of(capsys.readouterr().out) == [], "a retry finds it done"


def test_what_was_done_without_spark_is_told_and_so_is_where_it_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def attempt(error: Exception | None) -> list[str]:
        with progress_once() as progress:
            progress(Txn(1), "seal")
            progress(Txn(2), "seal")
            if error is not None:
                raise error
        return lines_of(capsys.readouterr().out)

    assert attempt(None) == ["transaction 1: seal", "transaction 2: seal"]
    with pytest.raises(SparkNeeded):
        attempt(SparkNeeded())
    assert lines_of(capsys.readouterr().out) == ["transaction 1: seal"]
    with pytest.raises(OSError, match="full"):
        attempt(OSError("full"))
    assert lines_of(capsys.readouterr().out) == ["transaction 1: seal", "transaction 2: seal"]


def test_regression_a_server_that_is_gone_is_one_exception_and_no_page_of_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Airflow sets logging up anew in its tasks, which brings the client's own logger to life."""
    from pyspark.sql.connect.logging import logger

    monkeypatch.delenv("SPARK_CONNECT_LOG_LEVEL", raising=False)
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    session._silence_client()
    try:
        raise ConnectionRefusedError("nobody there")
    except ConnectionRefusedError:
        logger.exception("GRPC Error received")
    assert caplog.records == []


def test_regression_retries_last_until_a_server_is_back(tmp_path: Path) -> None:

    folder = tmp_path
    (folder / "one.yaml").write_text(PIPELINE.format(name="one"))
    (dag,) = pipeline_dags(folder).values()
    ingest = dag.get_task("ingest")
    delays = [
        min(ingest.retry_delay.total_seconds() * ingest.retry_exponential_backoff**number, 120.0)
        for number in range(ingest.retries)
    ]
    assert ingest.max_retry_delay is not None
    assert ingest.max_retry_delay.total_seconds() == 120.0
    assert (delays[0], sum(delays)) == (10.0, 270.0)
