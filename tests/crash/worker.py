"""What one process of the campaign does: one run of the pipeline, then the states, as the command does it.

It ends in one of these ways: killed (by its own fuse, or from the outside), done, asked to be tried again
(a `Determinate` or `Indeterminate` error, which a retry answers), or broken (anything else).
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.crash.feed import ORDERS, PIPELINE, WAREHOUSE, config_at
from tests.support.jvm import Gateway, attach
from tests.support.steps import Fuse, Steps, wrap_control, wrap_planes, wrap_source
from tests.support.workers import BROKEN

if TYPE_CHECKING:
    from tidemark.app.deployment import Deployment
    from tidemark.pipeline.context import Attempt

DONE, RETRY = 0, 1
ALL, DUE, NONE = "all", "due", "none"
TRACES, REPORTS, ACKNOWLEDGED = "traces", "reports", "acknowledged"
ZOMBIE_READY, LATE_READY, GO = "zombie-ready", "late-ready", "go"
MEET_SECONDS_MAX = 300


@dataclass(frozen=True)
class Job:
    """One process's work, as it crosses a pipe. `meet_at_seal` is how many workers wait for each other
    before each seal, so that all of them have staged; `prove` replays everything instead of running. A
    `zombie` makes its state commit when it is told to; with `await_zombie` a worker makes its own only when
    that one has landed."""

    root: str
    name: str
    run_id: str
    gateway: Gateway | None = None
    fuse: Fuse | None = None
    prove: bool = False
    publish: str = ALL
    sweep: bool = False
    meet_at_seal: int = 0
    zombie: bool = False
    await_zombie: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> Job:
        found = dict(job)
        gateway, fuse = found.pop("gateway"), found.pop("fuse")
        return cls(
            **found,
            gateway=Gateway(**gateway) if gateway else None,
            fuse=Fuse(**fuse) if fuse else None,
        )


@dataclass
class Report:
    """What a process that was not killed has to say."""

    token: str = ""
    decided: list[tuple[int, bool]] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    checkpoint: int = 0
    error: str = ""


def preload() -> None:
    """What every worker imports."""
    import deltalake  # noqa: F401
    import pandas  # noqa: F401  # pyarrow imports it, when it first makes an array
    import pyarrow.parquet  # noqa: F401
    import pyspark.sql  # noqa: F401

    import tidemark.app.deployment
    import tidemark.pipeline.maintain
    import tidemark.pipeline.publish
    import tidemark.pipeline.run
    import tidemark.spark.plane
    import tidemark.spark.state  # noqa: F401


def work(given: Mapping[str, Any]) -> int:
    """Do the job, and say how it ended."""
    from tidemark.core.errors import Determinate, Indeterminate

    job = Job.of(given)
    root = Path(job.root)
    report = Report()
    for folder in (TRACES, REPORTS):
        (root / folder).mkdir(exist_ok=True)
    try:
        do(job, root, report)
        code = DONE
    except (Determinate, Indeterminate) as error:
        report.error = f"{type(error).__name__}: {error}"
        code = RETRY
    except BaseException:
        report.error = traceback.format_exc()
        code = BROKEN
    (root / REPORTS / f"{job.name}.json").write_text(json.dumps(asdict(report)), encoding="utf-8")
    return code


def report_of(job: Job) -> Report:
    """What a job's process has left to read."""
    path = Path(job.root) / REPORTS / f"{job.name}.json"
    return Report(**json.loads(path.read_text(encoding="utf-8")))


def do(job: Job, root: Path, report: Report) -> None:
    from tidemark.app.deployment import Deployment, new_token
    from tidemark.core.binding import Owner
    from tidemark.pipeline.context import Attempt
    from tidemark.pipeline.maintain import sweep
    from tidemark.pipeline.run import run

    steps = Steps(root / TRACES / job.name, job.fuse)
    wrap_control(steps)
    wrap_planes(steps)
    wrap_source(steps, root / ACKNOWLEDGED)
    gateway = job.gateway
    deployment = Deployment(config_at(root), session_maker(gateway))
    attempt = Attempt(Owner(job.run_id), new_token())
    report.token = attempt.token
    if job.zombie:
        hold_state_commit(root, ready=ZOMBIE_READY, until=(root / GO).exists)
    if job.await_zombie:
        opened = state_version(root)
        hold_state_commit(root, ready=LATE_READY, until=lambda: state_version(root) > opened)
    if job.meet_at_seal:
        meet_at_seal(deployment, root, job)
    if job.prove:
        prove(deployment, attempt, report)
        return
    with ThreadPoolExecutor(1) as background:
        ran = run(deployment.pipeline, attempt, background=background)
    report.checkpoint = ran.checkpoint
    report.decided = [
        (outcome.winner.txn, False) if hasattr(outcome, "winner") else (outcome.seal.txn, True)  # type: ignore[union-attr]
        for outcome in ran.decided
    ]
    if job.publish != NONE:
        publish_states(deployment, attempt, due_only=job.publish == DUE)
    if job.sweep:
        sweep(deployment.pipeline)


def session_maker(gateway: Gateway | None) -> Callable[[], Any]:
    """Attach when Spark is first needed, and once."""
    found: list[Any] = []

    def session() -> Any:
        if gateway is None:
            raise RuntimeError("this worker was given no JVM")
        if not found:
            found.append(attach(gateway))
        return found[0]

    return session


def publish_states(deployment: Deployment, attempt: Attempt, *, due_only: bool) -> None:
    """Bring the states up to their logs: all of them, or those that their policies ask for."""
    from tidemark.core.publish import Policy
    from tidemark.pipeline.publish import is_due, publish

    for shard in deployment.shards:
        policy = deployment.policy(shard) if due_only else Policy(1)
        if is_due(deployment.control, shard, policy):
            publish(deployment.control, deployment.state(), shard, token=attempt.token)


def prove(deployment: Deployment, attempt: Attempt, report: Report) -> None:
    """Replay every transaction, and read every state against its record."""
    from tidemark.core.ids import Txn
    from tidemark.pipeline.publish import verify_state
    from tidemark.pipeline.run import replay

    last = deployment.control.bindings.head().upper - 1
    findings = replay(deployment.pipeline, attempt, txn_from=Txn(1), txn_to=Txn(last))
    report.verdicts = [str(finding.verdict) for finding in findings]
    for shard in deployment.shards:
        verify_state(deployment.control, deployment.state(), shard)


def meet_at_seal(deployment: Deployment, root: Path, job: Job) -> None:
    """Wait before a transaction's seal until all workers have staged it."""
    from tidemark.core.seal import Seal

    seals = deployment.control.seals
    commit = seals.commit

    def met(head: Any, put: Any) -> Any:
        for record in put.records:
            if isinstance(record, Seal):
                place = root / "meeting" / str(record.txn)
                place.mkdir(parents=True, exist_ok=True)
                (place / job.name).touch()
                deadline = time.monotonic() + MEET_SECONDS_MAX
                while len(list(place.iterdir())) < job.meet_at_seal and time.monotonic() < deadline:
                    time.sleep(0.002)
        return commit(head, put)

    seals.commit = met  # type: ignore[method-assign]


def hold_state_commit(root: Path, *, ready: str, until: Callable[[], bool]) -> None:
    """Let the commit of the first state wait, with all its changes worked out."""
    from tidemark.spark.state import SparkStatePlane

    commit = SparkStatePlane._commit

    def held(plane: Any, shard: Any, *args: Any, **change: Any) -> Any:
        if shard == ORDERS:
            (root / ready).touch()
            deadline = time.monotonic() + MEET_SECONDS_MAX
            while not until() and time.monotonic() < deadline:
                time.sleep(0.02)
        return commit(plane, shard, *args, **change)

    SparkStatePlane._commit = held  # type: ignore[method-assign]


def state_version(root: Path) -> int:
    """How often the first state was committed."""
    return len(list((root / WAREHOUSE / PIPELINE / ORDERS / "state" / "_delta_log").glob("*.json")))
