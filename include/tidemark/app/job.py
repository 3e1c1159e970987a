"""A step as a Spark application: the code that the files of `jobs/` run when they are submitted.

The arguments name the pipeline file, the run and the try; the job reads everything else from the file and the
warehouse. They are visible in the process list, so they contain no secret. If the step fails, the last line
of output has the reason in a form that the worker parses (`failure_in`).

A job ends when the task that submitted it has ended. A task that is killed with SIGKILL can't stop its job,
which would then run beside the task's next try. So a job on the same machine knows the process that submitted
it, and watches that process.
"""

from __future__ import annotations

import argparse
import base64
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidemark.core.binding import Owner
from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage, TidemarkError
from tidemark.core.ids import Txn, WriterToken
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.ingest import Progress
from tidemark.pipeline.replay import VERIFY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.app.deployment import Deployment


# The watch over the process that submitted the job.

SUBMITTER: Final = "TIDEMARK_SUBMITTER"
LOOK_SECONDS: Final = 1.0
GONE: Final = 75
"""The exit code of a job whose submitter has ended."""


def started_at(pid: int) -> str:
    """The start time of a process, which tells a reused pid from the original. Empty if there is no such
    process, or if it is a zombie."""
    try:
        state, *facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else facts[18]


def this_submitter() -> dict[str, str]:
    """The environment variable that identifies this process to a job that it submits; empty without /proc."""
    began = started_at(os.getpid())
    return {SUBMITTER: f"{os.getpid()}:{began}"} if began else {}


def is_gone(submitter: str) -> bool:
    """Whether the process that `this_submitter` identified has ended."""
    pid, _, began = submitter.partition(":")
    return started_at(int(pid)) != began


def end_with_submitter() -> None:
    """Start a thread that ends this process when its submitter ends. Spark's JVM ends with its driver."""
    submitter = os.environ.get(SUBMITTER)
    if submitter:
        threading.Thread(target=_watch, args=(submitter,), name="submitter", daemon=True).start()


def _watch(submitter: str) -> None:
    while not is_gone(submitter):
        time.sleep(LOOK_SECONDS)
    sys.stderr.write("the task that submitted this job is gone: exiting\n")
    sys.stderr.flush()
    os._exit(GONE)


# The job: its arguments, its step, its submission and its result.

KINDS: Final[Mapping[str, Callable[[str], Any]]] = {"int": int, "bool": lambda text: text == "1"}
ERROR_MARK: Final = "tidemark-error "


@dataclass(frozen=True, slots=True)
class Order:
    """The arguments of a job: one step of one try of one run."""

    pipeline_file: str
    run_id: str
    token: str
    environment: str = ""
    logical_date: str = ""
    partition_key: str = ""
    begun: str = ""
    round: int = 0
    cleared: bool = False
    txn_from: int = 1
    txn_to: int = 0
    mode: str = VERIFY
    publish: bool = False
    quarantine: bool = False
    reason: str = ""
    user: str = ""
    candidate: str = ""
    """The candidate that a promotion is about (`Candidate.identity`)."""
    replace: str = ""
    """The shards that a new generation may replace, with commas between them."""
    wait_seconds: int = 0
    """How long runs wait for a promotion; 0 for the default."""

    @property
    def attempt(self) -> Attempt:
        owner = Owner(self.run_id, self.logical_date, self.partition_key, self.begun)
        return Attempt(owner, WriterToken(self.token), self.cleared, self.round)

    def arguments(self) -> list[str]:
        """The order as command-line arguments, without those that have their default."""
        given: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                given.append(f"--{field.name.replace('_', '-')}={int(value) if value is True else value}")
        return given

    @classmethod
    def parsed(cls, arguments: Sequence[str]) -> Order:
        parser = argparse.ArgumentParser(allow_abbrev=False)
        for field in fields(cls):
            kind: Callable[[str], Any] = KINDS.get(str(field.type), str)
            needed = field.name in ("pipeline_file", "run_id", "token")
            parser.add_argument(
                f"--{field.name.replace('_', '-')}", type=kind, required=needed, default=field.default
            )
        return cls(**vars(parser.parse_args(arguments)))


def job_file(step: str) -> Path:
    """The path of a step's job, in the installed package or in the project's `jobs` folder.

    `Determinate` if there is none."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_jobs", package.parents[1] / "jobs"):
        if (folder / f"{step}.py").is_file():
            return folder / f"{step}.py"
    raise Determinate(f"the job {step}.py is not installed", hint="install the tidemark package again")


def perform(
    step: str, deployment: Deployment, order: Order, progress: Progress | None = None
) -> dict[str, Any]:
    """Do one step and return its report. A worker, a submitted job and a Spark Connect client all use it."""
    from tidemark.app import reports, tasks

    attempt, progress = order.attempt, progress or print_progress
    match step:
        case "ingest":
            return tasks.ingest(deployment, attempt, progress=progress)
        case "validate" if order.quarantine:
            return tasks.quarantine_red(deployment, attempt, progress=progress)
        case "validate":
            return tasks.validate(deployment, attempt, progress=progress)
        case "upsert":
            return tasks.upsert(deployment, attempt, progress=progress, publishes_all=order.publish)
        case "replay":
            findings, _ = tasks.replay_range(
                deployment,
                attempt,
                txn_from=order.txn_from,
                txn_to=order.txn_to or None,
                mode=order.mode,
                progress=progress,
            )
            tasks.differing_rows(deployment, attempt, findings, progress=progress)
            return reports.replay_report(deployment, attempt, txn_from=order.txn_from, txn_to=order.txn_to)
        case "generation":
            return tasks.generation(deployment, order, progress=progress)
        case "maintain":
            return tasks.maintain(deployment, attempt, progress=progress)
        case _:
            raise InvalidUsage(f"there is no step {step!r}", hint="use one that `jobs/` has a file for")


@contextmanager
def progress_once() -> Iterator[Progress]:
    """Progress for a try that may end with `SparkNeeded`. The line of the work that needs Spark is dropped:
    the next try, which has Spark, prints it."""
    from tidemark.app.tasks import SparkNeeded

    held: list[tuple[Txn, str]] = []

    def flush() -> None:
        while held:
            print_progress(*held.pop())

    def progress(txn: Txn, phase: str) -> None:
        flush()
        held.append((txn, phase))

    try:
        yield progress
    except SparkNeeded:
        raise
    except BaseException:
        flush()
        raise
    flush()


@dataclass(frozen=True, slots=True)
class Submission:
    """The arguments of `spark-submit` for a step."""

    application: str
    jars: str
    confs: Mapping[str, str]
    environment: Mapping[str, str]


def submission(step: str, *, master: str, deploy_mode: str | None = None) -> Submission:
    """The submission of a step with this interpreter, its `spark-submit` and the local Delta jars."""
    require_python_driver(master=master, deploy_mode=deploy_mode)
    from tidemark.runtime.jars import jar_paths
    from tidemark.runtime.machine import use_java
    from tidemark.spark.session import quiet_options, session_confs

    use_java()
    confs = session_confs(master=master, jars=jar_paths())
    if is_driven_here(master, deploy_mode):
        # The job sets its log level with its session; Spark logs a lot before that.
        options = f"{confs['spark.driver.defaultJavaOptions']} {quiet_options()}"
        confs["spark.driver.defaultJavaOptions"] = options
    environment = submit_environment(master=master, deploy_mode=deploy_mode)
    application, jars = str(job_file(step)), confs.pop("spark.jars").split(",")
    if deploy_mode == "cluster" and master.startswith("k8s://"):
        # A driver in a container has these files in its image; they are not uploaded.
        application, jars = f"local://{application}", [f"local://{jar}" for jar in jars]
    return Submission(application, ",".join(jars), confs, environment)


def require_python_driver(*, master: str, deploy_mode: str | None) -> None:
    """`InvalidUsage` for cluster mode on a standalone cluster: Spark can't run a Python driver there."""
    if deploy_mode == "cluster" and master.startswith("spark://"):
        raise InvalidUsage(
            f"Spark can't run a driver in Python on the standalone cluster {master}",
            hint="set the deploy-mode to client, or use a Spark Connect server on that cluster",
        )


def is_driven_here(master: str, deploy_mode: str | None) -> bool:
    """Whether a submitted job's driver is a process on this machine that inherits this environment. With
    other kinds of masters, Airflow's provider also passes the environment to drivers elsewhere."""
    return deploy_mode != "cluster" and master.startswith(("local", "spark://"))


def submit_environment(*, master: str, deploy_mode: str | None) -> dict[str, str]:
    """The variables that `spark-submit` gets in addition to the worker's environment. Empty in cluster mode:
    the provider would pass them on to a machine that has a different Python and path."""
    if deploy_mode == "cluster":
        return {}
    environment = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if is_driven_here(master, deploy_mode):
        environment |= this_submitter()
    if not master.startswith("local"):
        return environment
    # Only for a local master: executors on other machines could not connect to this address.
    environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    # Without SPARK_HOME, Spark's scripts run the interpreter to find it, and don't quote its path.
    home = os.environ.get("SPARK_HOME") or _spark_home()
    return {**environment, "SPARK_HOME": home} if home else environment


def _spark_home() -> str | None:
    """The Spark home of the installed PySpark, found without importing it; None if it has no jars."""
    found = find_spec("pyspark")
    home = Path(found.origin).parent if found is not None and found.origin else None
    return str(home) if home is not None and (home / "jars").is_dir() else None


def connected(url: str, token: str | None) -> SparkSession:
    """A session on a warm server."""
    # Airflow's modules stay loaded; garbage collections over them make the imports a fifth slower.
    gc.freeze()
    from tidemark.spark.session import connect_session

    return connect_session(url, token=token)


def driven(name: str, master: str) -> SparkSession:
    """A session with its driver in this process."""
    from tidemark.spark.session import build_session

    return build_session(name, master=master)


def print_progress(txn: Txn, phase: str) -> None:
    """Print a progress line to the task's log."""
    sys.stdout.write(f"transaction {txn}: {phase}\n")
    sys.stdout.flush()


def main(step: str, arguments: Sequence[str] | None = None) -> int:
    """Run a submitted job; returns the exit code."""
    from tidemark.app.tasks import open_pipeline

    end_with_submitter()
    order = Order.parsed(sys.argv[1:] if arguments is None else arguments)
    try:
        deployment = open_pipeline(order.pipeline_file, order.environment or None, submitted_session)
        report = perform(step, deployment, order)
    except TidemarkError as error:
        sys.stdout.write(f"{error}\n{error_line(error)}\n")
        return 1
    sys.stdout.write(f"{json.dumps(report)}\n")
    return 0


def submitted_session() -> SparkSession:
    """The session of the application that this process was submitted as."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def error_line(error: TidemarkError) -> str:
    """An error as a line for `failure_in`: its message, and whether a retry can help."""
    failure = {"message": str(error), "retry": isinstance(error, Determinate | Indeterminate)}
    # Encoded, because the provider masks text after words like `password` or `secret`, also in messages.
    return ERROR_MARK + base64.b64encode(json.dumps(failure).encode()).decode()


def failure_in(output: str) -> Mapping[str, Any] | None:
    """The `message` and `retry` of a failed job, from its output; None if there is no readable error."""
    for line in reversed(output.splitlines()):
        _, mark, text = line.partition(ERROR_MARK)
        if mark:
            try:
                found = json.loads(base64.b64decode(text.strip(), validate=True))
            except ValueError:
                return None
            return found if isinstance(found, dict) and {"message", "retry"} <= found.keys() else None
    return None
