"""DAGs made from a folder of pipeline files: one per file, and one each for replays, maintenance and alarms.

Invalid pipeline files become one import error of the DAG file, with each pipeline file, the line and the
remedy. The DAGs of all other files are not affected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param, chain
from airflow.sdk.definitions._internal.contextmanager import DagContext

from tidemark.airflow.display import of_dag
from tidemark.airflow.operators import (
    CheckpointOperator,
    HealthOperator,
    IngestOperator,
    MaintainOperator,
    ReclockOperator,
    UpsertOperator,
    ValidateOperator,
)
from tidemark.airflow.pages.registry import PUBLISH, TAG
from tidemark.airflow.replace import ApproveOperator, GenerationOperator, ReplacePlanOperator
from tidemark.airflow.replay import ReplayOperator, ReplayPlanOperator, ReplayReportOperator
from tidemark.config import LoadedPipelines, PipelineConfig, load_pipelines
from tidemark.core.errors import InvalidUsage
from tidemark.core.generation import GRACE_SECONDS
from tidemark.core.ids import QUARANTINE
from tidemark.pipeline.replay import MODES, VERIFY

START = datetime(2026, 1, 1, tzinfo=UTC)
REPLAY, REPLACE, MAINTAIN, HEALTH = "replay", "replace", "maintain", "health"
BROKEN = "tidemark_broken_pipelines"
RESERVED: Mapping[str, str] = {
    name: f"{name!r} is the id of a DAG" for name in (REPLAY, REPLACE, MAINTAIN, HEALTH, BROKEN)
}
CONTINUOUS = "@continuous"
DEFAULT_ARGS: Mapping[str, Any] = {
    "owner": TAG,
    "retries": 5,
    "retry_delay": timedelta(seconds=10),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=2),
}
"""The first retry comes after 10 seconds, and each next delay is twice as long, up to two minutes. The
retries span more than four minutes, enough for a server to restart."""


class BrokenPipelines(DAG):
    """A placeholder for invalid pipeline files: its validation fails, so that Airflow shows an import error.

    Airflow keeps one error per DAG file, so each placeholder lists the problems of all."""

    problems: tuple[str, ...] = ()

    def validate(self) -> None:
        raise InvalidUsage("\n".join(self.problems))


def pipeline_dags(
    folder: str | Path,
    *,
    environment: str | None = None,
    conn_id: str = "spark_default",
    publisher_pool: str = "default_pool",
    default_args: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> dict[str, DAG]:
    """A DAG for each pipeline file of a folder, by DAG id; register them with `globals().update(...)`.

    :param environment: which of the files' environments; `$TIDEMARK_ENVIRONMENT` by default
    :param conn_id: a Spark connection (jobs are submitted) or a Spark Connect one (they run on a warm server)
    :param publisher_pool: the pool of the upsert tasks, since they publish: one slot per pipeline
    :param default_args: for all tasks; they override Tidemark's own
    :param dag_kwargs: for all DAGs: `max_active_runs`, `catchup`, `start_date`, `tags` …
    """
    found = loaded(folder, environment)
    problems = [str(error) for error in found.errors.values()]
    taken = {dag.dag_id for dag in made_by_this_file()}
    dags: dict[str, DAG] = {}
    for file, config in found.pipelines.items():
        if config.name in RESERVED:
            problems.append(f"{Path(folder) / file}: {RESERVED[config.name]}; give the pipeline another name")
            continue
        if config.name in taken:
            there = f"{Path(folder) / file}: this DAG file has a DAG {config.name!r} already"
            problems.append(f"{there}; give the pipeline another name")
            continue
        try:
            dags[config.name] = _pipeline_dag(
                config,
                Path(folder).absolute() / file,
                environment=environment,
                conn_id=conn_id,
                publisher_pool=publisher_pool,
                default_args={**DEFAULT_ARGS, **(default_args or {})},
                dag_kwargs=dag_kwargs,
            )
        except Exception as error:  # An error in one DAG must not remove the others.
            problems.append(
                f"{Path(folder) / file}: Airflow refuses its DAG: {type(error).__name__}: {error}"
            )
    if problems:
        broken = _broken(f"{Path(folder).absolute()}\n{environment or ''}", tuple(problems))
        dags[broken.dag_id] = broken
    return dags


def made_by_this_file() -> list[DAG]:
    """The DAGs that the DAG file has made so far; Airflow registers them while it parses the file."""
    return [dag for dag, _ in DagContext.autoregistered_dags]


def _broken(where: str, problems: tuple[str, ...]) -> DAG:
    """The placeholder for the invalid files of one call, with an id that is unique to the call."""
    number = hashlib.blake2b(where.encode(), digest_size=4).hexdigest()
    with BrokenPipelines(f"{BROKEN}_{number}", schedule=None) as broken:
        broken.problems = problems
    others = [dag for dag in made_by_this_file() if isinstance(dag, BrokenPipelines) and dag is not broken]
    for one in (broken, *others):
        one.problems = tuple(dict.fromkeys(problem for dag in (*others, broken) for problem in dag.problems))
    return broken


def loaded(folder: str | Path, environment: str | None) -> LoadedPipelines:
    """The pipelines of a folder. A missing folder is `InvalidUsage`: Airflow would take a DAG file without
    DAGs and without an error for one whose DAGs were deleted."""
    if not Path(folder).is_dir():
        raise InvalidUsage(
            f"there is no folder {str(folder)!r}", hint="give the folder of the pipeline files"
        )
    return load_pipelines(folder, environment)


def _pipeline_dag(
    config: PipelineConfig,
    file: Path,
    *,
    environment: str | None,
    conn_id: str,
    publisher_pool: str,
    default_args: Mapping[str, Any],
    dag_kwargs: Mapping[str, Any],
) -> DAG:
    named = ", ".join(shard.name for shard in config.shards) or "the shards of its tables"
    settings: dict[str, Any] = {
        "schedule": config.schedule,
        "start_date": START,
        "catchup": False,
        "max_active_runs": 1,
        "description": f"Upserts changes into {named}"[:200],
        "doc_md": _doc_of(config, file),
        **dag_kwargs,
        "params": {PUBLISH: _publish_param(), **dag_kwargs.get("params", {})},
        "tags": sorted({TAG, *dag_kwargs.get("tags", ())}),  # The pages find pipelines by this tag.
    }
    if settings["schedule"] == CONTINUOUS:
        settings["max_active_runs"] = 1  # Airflow allows no more for a continuous schedule.
    common: dict[str, Any] = {"pipeline_file": str(file), "environment": environment}
    with DAG(config.name, default_args=dict(default_args), **settings) as dag:
        # Airflow registers the DAG when its block ends, even by an exception: never register half a DAG.
        wanted, dag.auto_register = dag.auto_register, False
        reclock = ReclockOperator(task_id="reclock", **common)
        ingest = IngestOperator(task_id="ingest", conn_id=conn_id, **common)
        validate = ValidateOperator(task_id="validate", conn_id=conn_id, on_red=config.on_red, **common)
        # One publisher at a time: a second run's upsert waits in the scheduler, without a worker slot.
        upsert = UpsertOperator(
            task_id="upsert", conn_id=conn_id, pool=publisher_pool, max_active_tis_per_dag=1, **common
        )
        shards = [*(shard.name for shard in config.shards), QUARANTINE]
        checkpoint = CheckpointOperator(task_id="checkpoint", pipeline=config.name, shards=shards, **common)
        chain(reclock, ingest, validate, upsert, checkpoint)
        dag.auto_register = wanted
    return dag


def _publish_param() -> Param:
    return Param(
        False,
        type="boolean",
        description="Publish every state up to its log, whatever the publish policies say",
    )


def _doc_of(config: PipelineConfig, file: Path) -> str:
    shards = "\n".join(
        f"- `x-tidemark://{config.name}/{shard.name}`, keys {', '.join(shard.keys) or 'none'}"
        for shard in config.shards
    )
    return f"""\
**{config.name}** upserts the changes of its source into Delta tables. Made from `{file.name}`.

{shards}

Records that could not be applied are in `x-tidemark://{config.name}/quarantine`.

*Retry* finishes what is missing. *Clear*, or a backfill over the same date, reads the recorded input again
and proves that the tables hold exactly that; it writes nothing. If **validate** is red, its log names what
differs and what you can do.
"""


def _files(folder: str | Path, environment: str | None, dag_id: str) -> dict[str, str]:
    """The valid pipelines and their files; `pipeline_dags` reports the others. `InvalidUsage` if `dag_id` is
    already the id of a pipeline's DAG or of another DAG in the file."""
    found = loaded(folder, environment)
    files = {
        config.name: str(Path(folder).absolute() / file) for file, config in sorted(found.pipelines.items())
    }
    if dag_id in files and dag_id not in RESERVED:
        raise InvalidUsage(
            f"{files[dag_id]}: the DAG id {dag_id!r} is used by another DAG",
            hint="give one of them another id",
        )
    if dag_id in {dag.dag_id for dag in made_by_this_file()}:
        raise InvalidUsage(f"this DAG file already has a DAG {dag_id!r}", hint="give this one its own dag_id")
    return {name: file for name, file in files.items() if name not in RESERVED}


def replay_dag(
    folder: str | Path,
    *,
    environment: str | None = None,
    conn_id: str = "spark_default",
    dag_id: str = REPLAY,
    default_args: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> dict[str, DAG]:
    """A DAG to start by hand: it proves, or repairs, a chosen range of a chosen pipeline's transactions."""
    files = _files(folder, environment, dag_id)
    if not files:
        return {}
    params = {
        "pipeline": Param(
            next(iter(files)), type="string", enum=list(files), description="The pipeline to replay"
        ),
        "txn_from": Param(1, type="integer", minimum=1, description="The first transaction"),
        "txn_to": Param(
            None, type=["integer", "null"], minimum=1, description="The last transaction; all by default"
        ),
        "mode": Param(
            VERIFY,
            type="string",
            enum=list(MODES),
            description="verify writes nothing; repair restores lost parts from identical input",
        ),
        "dry_run": Param(False, type="boolean", description="Only list what would be read"),
    }
    settings: dict[str, Any] = {
        "schedule": None,
        "catchup": False,
        "tags": [TAG],
        "description": "Read recorded input again and compare it with what was written, or repair that",
        "default_args": {"owner": TAG, **(default_args or {})},
        **of_dag(REPLAY),
        **dag_kwargs,
    }
    with DAG(dag_id, params=params, **settings) as dag:
        plan = ReplayPlanOperator(task_id="plan", pipeline_files=files, environment=environment)
        replay = ReplayOperator(
            task_id="replay", pipeline_files=files, environment=environment, conn_id=conn_id
        )
        report = ReplayReportOperator(task_id="report", report=replay.output)
        chain(plan, replay, report)
    return {dag.dag_id: dag}


def replace_dag(
    folder: str | Path,
    *,
    environment: str | None = None,
    conn_id: str = "spark_default",
    publisher_pool: str = "default_pool",
    dag_id: str = REPLACE,
    default_args: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> dict[str, DAG]:
    """A DAG to start by hand: it replaces a pipeline's settings by those of its file, as a new generation."""
    files = _files(folder, environment, dag_id)
    if not files:
        return {}
    settings: dict[str, Any] = {
        "schedule": None,
        "catchup": False,
        "max_active_runs": 1,
        "tags": [TAG],
        "description": "Replace a pipeline's settings without downtime",
        "default_args": {**DEFAULT_ARGS, **(default_args or {})},
        **of_dag(REPLACE),
        **dag_kwargs,
    }
    common: dict[str, Any] = {"pipeline_files": files, "environment": environment}
    with DAG(dag_id, params=_replace_form(files), **settings) as dag:
        plan = ReplacePlanOperator(task_id="plan", **common)
        spark: dict[str, Any] = {"conn_id": conn_id, **common}
        follow = GenerationOperator(task_id="follow", part="follow", task_display_name="Catch up", **spark)
        compare = GenerationOperator(task_id="compare", part="compare", task_display_name="Compare", **spark)
        promote = GenerationOperator(
            task_id="promote",
            part="promote",
            task_display_name="Promote",
            pool=publisher_pool,
            trigger_rule="none_failed",
            **spark,
        )
        approve = ApproveOperator(
            task_id="approve", compared=compare.output, trigger_rule="none_failed", **common
        )
        chain(plan, follow, compare, approve, promote)
    return {dag.dag_id: dag}


def _replace_form(files: Mapping[str, str]) -> dict[str, Param]:
    return {
        "pipeline": Param(next(iter(files)), type="string", enum=list(files), description="The pipeline"),
        "reason": Param("", type="string", minLength=1, description="Why; it stays on record"),
        "txn_from": Param(
            1, type="integer", minimum=1, description="The first transaction to read with the new settings"
        ),
        "txn_to": Param(
            None, type=["integer", "null"], minimum=1, description="The last one; all by default"
        ),
        "from_now": Param(
            False, type="boolean", description="Read nothing again: later input gets the new settings"
        ),
        "replace": Param(
            [],
            type=["array", "null"],
            items={"type": "string"},
            description="The shards that may get another key, type or order: their consumers stop until they"
            " agree",
        ),
        "promote": Param(False, type="boolean", description="Promote without asking"),
        "wait_seconds": Param(
            int(GRACE_SECONDS), type="integer", minimum=1, description="How long runs wait for the promotion"
        ),
        "candidate": Param(None, type=["string", "null"], description="Work on this candidate or fail"),
    }


def _regular(
    kind: str,
    schedule: str,
    description: str,
    default_args: Mapping[str, Any] | None,
    dag_kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """The settings of a scheduled DAG; the caller's override them."""
    return {
        "schedule": schedule,
        "start_date": START,
        "catchup": False,
        "max_active_runs": 1,
        "tags": [TAG],
        "description": description,
        "default_args": {**DEFAULT_ARGS, **(default_args or {})},
        **of_dag(kind),
        **dag_kwargs,
    }


def maintain_dag(
    folder: str | Path,
    *,
    environment: str | None = None,
    conn_id: str = "spark_default",
    publisher_pool: str = "default_pool",
    dag_id: str = MAINTAIN,
    default_args: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> dict[str, DAG]:
    """A DAG that maintains all pipelines: it publishes due states, compacts, and deletes expired files.

    Its tasks log a warning for transactions that soon stop being replayable."""
    files = _files(folder, environment, dag_id)
    what = "Publish what is due, merge small files, delete unneeded files"
    settings = _regular(MAINTAIN, "@daily", what, default_args, dag_kwargs)
    task = partial(MaintainOperator, environment=environment, conn_id=conn_id, pool=publisher_pool)
    return _task_per_pipeline(dag_id, settings, files, task)


def health_dag(
    folder: str | Path,
    *,
    environment: str | None = None,
    dag_id: str = HEALTH,
    default_args: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> dict[str, DAG]:
    """A DAG that checks for alarms, a task per pipeline. A task fails once for each alarm, with the remedy.

    `default_args={"on_failure_callback": ...}` takes a notifier. The DAG needs no Spark."""
    files = _files(folder, environment, dag_id)
    what = "Look for alarms: blocked, stalled, behind, quarantine, retained WAL"
    settings = _regular(HEALTH, "*/10 * * * *", what, default_args, dag_kwargs)
    return _task_per_pipeline(dag_id, settings, files, partial(HealthOperator, environment=environment))


def _task_per_pipeline(
    dag_id: str, settings: Mapping[str, Any], files: Mapping[str, str], task: Callable[..., object]
) -> dict[str, DAG]:
    if not files:
        return {}
    with DAG(dag_id, **settings) as dag:
        for name, file in files.items():
            task(task_id=name, pipeline_file=file)
    return {dag.dag_id: dag}
