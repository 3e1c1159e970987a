"""The mapping from DAGs to pipelines, read from Airflow's database.

The API server has no DAG files. A `reclock` task carries its pipeline file and environment in its serialized
form (`marked`). A user who may view the DAG may view the pipeline of that file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidemark.core.errors import InvalidUsage

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

TAG: Final = "tidemark"
PUBLISH: Final = "publish"
"""The param of a pipeline's DAG that makes a run publish all states."""
REPLAYS: Final = "replays"
REPLACES: Final = "replaces"
"""The work that a DAG does for several pipelines."""
_MARK: Final = "tidemark"


@dataclass(frozen=True, slots=True)
class PipelineDag:
    """A DAG that runs a pipeline."""

    dag_id: str
    pipeline_file: str
    environment: str | None


def marked(pipeline_file: str, environment: str | None) -> str:
    """A task's `doc_json`, which `pipeline_in` reads."""
    return json.dumps({_MARK: {"pipeline_file": pipeline_file, "environment": environment}})


def marked_work(work: str, pipeline_files: Mapping[str, str], environment: str | None) -> str:
    """The `doc_json` of a task of a DAG that replays or replaces these pipelines, which `does` reads."""
    files = sorted(pipeline_files.values())
    return json.dumps({_MARK: {work: files, "environment": environment}})


def _marks_in(serialized: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for task in serialized.get("dag", {}).get("tasks", ()):
        fields = task.get("__var", task)
        try:
            mark = json.loads(fields.get("doc_json") or "null")
        except (TypeError, ValueError):
            continue
        if isinstance(mark, dict) and isinstance(mark.get(_MARK), dict):
            yield mark[_MARK]


def pipeline_in(dag_id: str, serialized: Mapping[str, Any]) -> PipelineDag | None:
    """The pipeline of a serialized DAG; None if the DAG is not a pipeline's."""
    for mark in _marks_in(serialized):
        if "pipeline_file" in mark:
            return PipelineDag(dag_id, str(mark["pipeline_file"]), mark.get("environment"))
    return None


def does(work: str, serialized: Mapping[str, Any], one: PipelineDag) -> bool:
    """Whether a serialized DAG does this work for this pipeline: the same file in the same environment."""
    return any(
        one.pipeline_file in mark.get(work, ()) and mark.get("environment") == one.environment
        for mark in _marks_in(serialized)
    )


def known_pipelines(session: Session, dag_ids: Collection[str]) -> list[PipelineDag]:
    """The pipelines among these DAGs, sorted by DAG id."""
    found = [pipeline_in(name, data) for name, data in _tagged(session) if name in dag_ids]
    return sorted((one for one in found if one is not None), key=lambda one: one.dag_id)


def dag_for(work: str, session: Session, one: PipelineDag) -> str | None:
    """The id of the DAG that does this work for a pipeline, the first by name; None if there is none."""
    return min((name for name, data in _tagged(session) if does(work, data, one)), default=None)


def _tagged(session: Session) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Tidemark's DAGs that are not stale, with their latest serialized form."""
    from airflow.models.dag import DagModel, DagTag
    from airflow.models.serialized_dag import SerializedDagModel
    from sqlalchemy import select

    tagged = select(DagTag.dag_id).join(DagModel, DagModel.dag_id == DagTag.dag_id)
    named = session.scalars(tagged.where(DagTag.name == TAG, DagModel.is_stale.is_(False))).all()
    if named:
        for row in SerializedDagModel.get_latest_serialized_dags(dag_ids=sorted(set(named)), session=session):
            yield row.dag_id, row.data or {}


def pipeline_of(session: Session, dag_id: str) -> PipelineDag | None:
    """The pipeline of one DAG; None if there is no such DAG or it is not a pipeline's."""
    from airflow.models.serialized_dag import SerializedDagModel

    row = SerializedDagModel.get(dag_id, session=session)
    return pipeline_in(dag_id, row.data or {}) if row is not None else None


def is_paused(session: Session, dag_id: str) -> bool:
    """Whether the runs of a DAG wait until it is unpaused."""
    from airflow.models.dag import DagModel
    from sqlalchemy import select

    return bool(session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == dag_id)))


def environment_of(one: PipelineDag) -> str | None:
    """The environment to load the file with; `InvalidUsage` if it is a template, which needs a task."""
    if one.environment and "{{" in one.environment:
        raise InvalidUsage(
            f"the environment of {one.dag_id!r} is a template",
            hint="set the environment as a plain text in the DAG file, or use `tidemark status`",
        )
    return one.environment
