"""A submitted job and the task that waits for it: the job ends when the task is gone, however it died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.waiting import SECONDS_MAX
from tidemark.app.job import (
    GONE,
    SUBMITTER,
    is_gone,
    started_at,
    submission,
    submit_environment,
    this_submitter,
)

WAITER = "import time; print('up', flush=True); time.sleep(600)"
JOB = """
import time
from tidemark.app import job
job.LOOK_SECONDS = 0.05
job.end_with_submitter()
print("up", flush=True)
time.sleep(600)
"""


def start(code: str, **environ: str) -> subprocess.Popen[str]:
    """A process that has said that it is up."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_regression_a_job_ends_when_its_task_was_killed() -> None:
    task = start(WAITER)
    began = started_at(task.pid)
    with start(JOB, **{SUBMITTER: f"{task.pid}:{began}"}) as job:
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(0.5)
        task.send_signal(signal.SIGKILL)
        task.wait()
        assert job.wait(SECONDS_MAX) == GONE


def test_a_job_that_nobody_waits_for_on_this_machine_is_left_alone() -> None:
    with start(JOB, **{SUBMITTER: ""}) as job:
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(0.5)
        job.kill()


def test_another_process_of_the_same_number_is_not_the_task() -> None:
    told = this_submitter()[SUBMITTER]
    assert not is_gone(told)
    assert is_gone(f"{told}0")


@pytest.mark.parametrize(
    ("master", "deploy_mode", "here"),
    [
        ("local[2]", None, True),
        ("spark://one:7077", "client", True),
        ("yarn", None, False),
        ("yarn", "cluster", False),
        ("k8s://https://one:6443", "cluster", False),
    ],
)
def test_only_a_driver_on_this_machine_looks_after_its_task_and_is_quiet_for_its_log(
    master: str, deploy_mode: str | None, here: bool
) -> None:
    """The provider finds the number of a driver on a cluster in what Spark logs."""
    assert (SUBMITTER in submit_environment(master=master, deploy_mode=deploy_mode)) is here
    confs = submission("ingest", master=master, deploy_mode=deploy_mode).confs
    assert ("log4j2-errors.properties" in confs["spark.driver.defaultJavaOptions"]) is here
