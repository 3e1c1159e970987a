"""A submitted job ends when the task that waits for it is gone.

A task that is killed with SIGKILL can't end the job that it has submitted; the job would go on beside the
task's next try. So the job is told which process waits for it, where that runs on the same machine, and looks
after it.

A step as a Spark application: what the files of `jobs/` run when they are submitted.

The arguments name the pipeline file, the run and the try; everything else is read from there. They are in
the process list for everybody to see, and hold no secret. When the step fails, the last line of output says
why in a form that the worker picks up (`failure_in`).
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


SUBMITTER: Final = "TIDEMARK_SUBMITTER"
LOOK_SECONDS: Final = 1.0
GONE: Final = 75
"""The exit code of a job that nobody waits for."""


def started_at(pid: int) -> str:
    """When a process began, so that a pid that was given to another one is not taken for it; empty for one
    that is not there, or has ended and waits to be collected."""
    try:
        state, *facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else facts[18]


def this_submitter() -> dict[str, str]:
    """What a job that this process submits finds in its environment; nothing where processes can't be told
    apart."""
    began = started_at(os.getpid())
    return {SUBMITTER: f"{os.getpid()}:{began}"} if began else {}


def is_gone(submitter: str) -> bool:
    """Whether the process that a job was told of has ended."""
    pid, _, began = submitter.partition(":")
    return started_at(int(pid)) != began


def end_with_submitter(environ: Mapping[str, str] = os.environ) -> None:
    """From now on, end this process when the one that has submitted it is gone. Spark's process ends with
    its driver."""
    submitter = environ.get(SUBMITTER)
    if submitter:
        threading.Thread(target=_watch, args=(submitter,), name="submitter", daemon=True).start()


def _watch(submitter: str) -> None:
    while not is_gone(submitter):
        time.sleep(LOOK_SECONDS)
    sys.stderr.write("the task that submitted this job is gone: ending\n")
    sys.stderr.flush()
    os._exit(GONE)


KINDS: Final[Mapping[str, Callable[[str], Any]]] = {"int": int, "bool": lambda text: text == "1"}
ERROR_MARK: Final = "tidemark-error "


@dataclass(frozen=True, slots=True)
class Order:
    """One step of one try of one run, as it is handed to a job."""

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

    @property
    def attempt(self) -> Attempt:
        owner = Owner(self.run_id, self.logical_date, self.partition_key, self.begun)
        return Attempt(owner, WriterToken(self.token), self.cleared, self.round)

    def arguments(self) -> list[str]:
        """The order as command-line arguments; what is empty or a default is left out."""
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
    """Where a step's job lies: in the installed package, or in the project's own `jobs` folder."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_jobs", package.parents[1] / "jobs"):
        if (folder / f"{step}.py").is_file():
            return folder / f"{step}.py"
    raise Determinate(f"the job {step}.py is not installed", hint="install the tidemark package again")


def perform(
    step: str, deployment: Deployment, order: Order, progress: Progress | None = None
) -> dict[str, Any]:
    """Do one step; the same function in a worker, in a job and over a connection."""
    from tidemark.app import reports, tasks

    attempt, progress = order.attempt, progress or print_progress
    match step:
        case "ingest":
            return tasks.ingest(deployment, attempt, progress=progress)
        case "validate":
            return tasks.validate(deployment, attempt, progress=progress)
        case "upsert":
            return tasks.upsert(deployment, attempt, progress=progress, publishes_all=order.publish)
        case "replay":
            tasks.replay_range(
                deployment,
                attempt,
                txn_from=order.txn_from,
                txn_to=order.txn_to or None,
                mode=order.mode,
                progress=progress,
            )
            return reports.replay_report(deployment, attempt, txn_from=order.txn_from, txn_to=order.txn_to)
        case _:
            return tasks.maintain(deployment, attempt, progress=progress)


@contextmanager
def progress_once() -> Iterator[Progress]:
    """Progress for a try that ends in `SparkNeeded` where it needs Spark: the line of the work that it could
    not do is left to the try that can."""
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
    """What `spark-submit` needs to run a step."""

    application: str
    jars: str
    confs: Mapping[str, str]
    environment: Mapping[str, str]


def submission(step: str, *, master: str, deploy_mode: str | None = None) -> Submission:
    """How a step is submitted with this interpreter and its `spark-submit`, offline, with Delta on board."""
    if deploy_mode == "cluster" and master.startswith("spark://"):
        raise InvalidUsage(
            f"Spark can't run a driver in Python on the standalone cluster {master}",
            hint="set the connection's deploy-mode to client, or use a Spark Connect server on that cluster",
        )
    from tidemark.runtime.jars import jar_paths
    from tidemark.runtime.java import use_java
    from tidemark.spark.session import quiet_options, session_confs

    use_java()
    confs = session_confs(master=master, jars=jar_paths())
    if is_driven_here(master, deploy_mode):
        # Spark tells of everything that it does until the job has a session, which is too late.
        options = f"{confs['spark.driver.defaultJavaOptions']} {quiet_options()}"
        confs["spark.driver.defaultJavaOptions"] = options
    environment = submit_environment(master=master, deploy_mode=deploy_mode)
    application, jars = str(job_file(step)), confs.pop("spark.jars").split(",")
    if deploy_mode == "cluster" and master.startswith("k8s://"):
        # A driver in a container of its own has these files from its image, and nobody uploads them.
        application, jars = f"local://{application}", [f"local://{jar}" for jar in jars]
    return Submission(application, ",".join(jars), confs, environment)


def is_driven_here(master: str, deploy_mode: str | None) -> bool:
    """Whether a submitted job's driver is a process of this machine that inherits this environment. The
    provider hands it to drivers elsewhere as well, for other kinds of masters."""
    return deploy_mode != "cluster" and master.startswith(("local", "spark://"))


def submit_environment(*, master: str, deploy_mode: str | None) -> dict[str, str]:
    """What `spark-submit` finds in its environment, over the worker's own. Nothing for a driver elsewhere:
    the provider would hand it over, and that machine has a Python and a path of its own."""
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
    # Only here: executors on other machines could not call back to this address.
    environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    # Without a home the scripts ask the interpreter for one, and call it unquoted.
    home = os.environ.get("SPARK_HOME") or _spark_home()
    return {**environment, "SPARK_HOME": home} if home else environment


def _spark_home() -> str | None:
    """Where the installed PySpark has its Spark; it is not loaded for that."""
    found = find_spec("pyspark")
    home = Path(found.origin).parent if found is not None and found.origin else None
    return str(home) if home is not None and (home / "jars").is_dir() else None


def connected(url: str, token: str | None) -> SparkSession:
    """A session on a warm server."""
    # What Airflow has loaded stays; collections that look through it again make the imports a fifth slower.
    gc.freeze()
    from tidemark.spark.session import connect_session

    return connect_session(url, token=token)


def driven(name: str, master: str) -> SparkSession:
    """A session whose driver is this process."""
    from tidemark.spark.session import build_session

    return build_session(name, master=master)


def start_spark(port: int, token: str, *, folder: Path, confs: Mapping[str, str]) -> int:
    """Start a warm server on this machine; returns its process id."""
    from tidemark.spark.connect_server import start_server

    return start_server(port, token, folder=folder, confs=confs).process.pid


def print_progress(txn: Txn, phase: str) -> None:
    """A line for whoever watches the task's log."""
    sys.stdout.write(f"transaction {txn}: {phase}\n")
    sys.stdout.flush()


def main(step: str, arguments: Sequence[str] | None = None) -> int:
    """The body of a submitted application."""
    from tidemark.app.tasks import open_pipeline

    end_with_submitter()
    order = Order.parsed(sys.argv[1:] if arguments is None else arguments)
    try:
        deployment = open_pipeline(order.pipeline_file, order.environment or None, submitted_session)
        told = perform(step, deployment, order)
    except TidemarkError as error:
        sys.stdout.write(f"{error}\n{error_line(error)}\n")
        return 1
    sys.stdout.write(f"{json.dumps(told)}\n")
    return 0


def submitted_session() -> SparkSession:
    """The session of the application that this process was submitted as."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def error_line(error: TidemarkError) -> str:
    """An error as a line for `failure_in`: what it says, and whether trying again can help."""
    told = {"message": str(error), "retry": isinstance(error, Determinate | Indeterminate)}
    # The provider hides whatever follows a word with `password` or `secret` in it, in an error's text too.
    return ERROR_MARK + base64.b64encode(json.dumps(told).encode()).decode()


def failure_in(output: str) -> Mapping[str, Any] | None:
    """What a failed job's output says about why, as `message` and `retry`; None when the job did not come so
    far, or what it says can't be read."""
    for line in reversed(output.splitlines()):
        _, mark, text = line.partition(ERROR_MARK)
        if mark:
            try:
                found = json.loads(base64.b64decode(text.strip(), validate=True))
            except ValueError:
                return None
            return found if isinstance(found, dict) and {"message", "retry"} <= found.keys() else None
    return None
