"""Orders on a command line, what a submitted job is started with, and failures in its output."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.app.job import (
    ERROR_MARK,
    Order,
    error_line,
    failure_in,
    job_file,
    perform,
    submit_environment,
)
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.spark.session import _log_confs

if TYPE_CHECKING:
    from tidemark.app.deployment import Deployment

TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), min_size=1)


@given(
    file=TEXT,
    run_id=TEXT,
    date=st.text(max_size=5).filter(lambda text: "\0" not in text),
    rounds=st.integers(0, 9),
    cleared=st.booleans(),
    txn_to=st.integers(0, 10**9),
)
def test_an_order_survives_its_command_line(
    file: str, run_id: str, date: str, rounds: int, cleared: bool, txn_to: int
) -> None:
    order = Order(
        file, run_id, "token", logical_date=date, round=rounds, cleared=cleared, txn_to=txn_to, mode="repair"
    )
    assert Order.parsed(order.arguments()) == order


def test_the_attempt_of_an_order_is_known_by_its_date_before_its_run() -> None:
    order = Order("p.yaml", "backfill__1", "t", logical_date="2026-01-01", round=2, cleared=True)
    attempt = order.attempt
    assert (attempt.owner.identity, attempt.round, attempt.cleared) == ("date:2026-01-01", 2, True)


@pytest.mark.parametrize(("error", "retry"), [(Determinate("disk full"), True), (InvalidUsage("bad"), False)])
def test_a_failure_is_found_in_the_output_of_a_job(error: Determinate | InvalidUsage, retry: bool) -> None:
    found = failure_in(f"some log\n{error_line(error)}\nJVM says goodbye")
    assert found == {"message": str(error), "retry": retry}
    assert failure_in("killed") is None


@pytest.mark.parametrize("text", ["", "?", '{"message": ', "bm90IEpTT04=", "WzFd", "e30="])
def test_regression_a_failure_that_cant_be_read_is_none(text: str) -> None:
    assert failure_in(f"some log\n{ERROR_MARK}{text}") is None


def test_regression_only_a_local_spark_is_bound_to_the_loopback_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    masters = ("local", "local[2]", "spark://one:7077", "yarn", "k8s://https://one:6443")
    found = {name: submit_environment(master=name, deploy_mode="client") for name in masters}
    bound = {name: told["SPARK_LOCAL_IP"] for name, told in found.items() if "SPARK_LOCAL_IP" in told}
    assert bound == dict.fromkeys(("local", "local[2]"), "127.0.0.1")
    assert {told["PYSPARK_PYTHON"] for told in found.values()} == {sys.executable}


def test_regression_a_local_submit_needs_no_interpreter_to_find_its_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's script calls the interpreter unquoted for that, and fails where its path has a space."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    home = submit_environment(master="local[1]", deploy_mode=None)["SPARK_HOME"]
    assert (Path(home) / "bin" / "spark-submit").is_file()
    assert "SPARK_HOME" not in submit_environment(master="yarn", deploy_mode="cluster")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert submit_environment(master="local[1]", deploy_mode=None)["SPARK_HOME"] == str(tmp_path)


@pytest.mark.parametrize("name", ["plain", "with space", 'with "quotes" and \\ more'])
def test_regression_a_log_file_in_any_folder_is_one_option_of_the_jvm(tmp_path: Path, name: str) -> None:
    file = tmp_path / name / "spark.log"
    (options,) = _log_confs(file).values()
    # A shell splits double quotes as Spark's launcher does.
    settings, place = shlex.split(options)
    assert place == f"-Dtidemark.spark.log={file}"
    assert settings.startswith("-Dlog4j2.configurationFile=file:///")


def test_every_step_has_a_job() -> None:
    for step in ("ingest", "validate", "upsert", "replay", "maintain"):
        assert f'main("{step}")' in Path(job_file(step)).read_text()
    with pytest.raises(Determinate, match="not installed"):
        job_file("nothing")


def test_regression_a_step_that_is_unknown_is_refused_by_name() -> None:
    """It was taken for maintenance, which deletes files."""
    with pytest.raises(InvalidUsage, match="there is no step 'upsrt'"):
        perform("upsrt", cast("Deployment", None), Order("p.yaml", "run", "t"))
