"""Which DAG is which pipeline's, as Airflow's database has it.

The API server has no DAG files. A `reclock` task carries its pipeline file and environment in its serialized
form (`marked`); whoever may view the DAG may view what that file describes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidemark.core.errors import InvalidUsage

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

TAG: Final = "tidemark"
_MARK: Final = "tidemark"


@dataclass(frozen=True, slots=True)
class PipelineDag:
    """A DAG that runs a pipeline."""

    dag_id: str
    pipeline_file: str
    environment: str | None


def marked(pipeline_file: str, environment: str | None) -> str:
    """What a task's `doc_json` says, for `pipeline_in`."""
    return json.dumps({_MARK: {"pipeline_file": pipeline_file, "environment": environment}})


def pipeline_in(dag_id: str, serialized: Mapping[str, Any]) -> PipelineDag | None:
    """The pipeline of a serialized DAG; None for a DAG of another kind."""
    for task in serialized.get("dag", {}).get("tasks", ()):
        fields = task.get("__var", task)
        try:
            mark = json.loads(fields.get("doc_json") or "null")
        except (TypeError, ValueError):
            continue
        if isinstance(mark, dict) and isinstance(mark.get(_MARK), dict):
            found = mark[_MARK]
            return PipelineDag(dag_id, str(found["pipeline_file"]), found.get("environment"))
    return None


def known_pipelines(session: Session, dag_ids: Collection[str]) -> list[PipelineDag]:
    """The pipelines among these DAGs, in order of their names."""
    from airflow.models.dag import DagModel, DagTag
    from airflow.models.serialized_dag import SerializedDagModel
    from sqlalchemy import select

    tagged = select(DagTag.dag_id).join(DagModel, DagModel.dag_id == DagTag.dag_id)
    named = session.scalars(tagged.where(DagTag.name == TAG, DagModel.is_stale.is_(False))).all()
    wanted = sorted(set(named) & set(dag_ids))
    if not wanted:
        return []
    rows = SerializedDagModel.get_latest_serialized_dags(dag_ids=wanted, session=session)
    found = [pipeline_in(row.dag_id, row.data or {}) for row in rows]
    return sorted((one for one in found if one is not None), key=lambda one: one.dag_id)


def pipeline_of(session: Session, dag_id: str) -> PipelineDag | None:
    """The pipeline of one DAG; None when there is no such DAG, or it is of another kind."""
    from airflow.models.serialized_dag import SerializedDagModel

    row = SerializedDagModel.get(dag_id, session=session)
    return pipeline_in(dag_id, row.data or {}) if row is not None else None


def environment_of(one: PipelineDag) -> str | None:
    """The environment to read the file with; `InvalidUsage` where only a task can know it."""
    if one.environment and "{{" in one.environment:
        raise InvalidUsage(
            f"the environment of {one.dag_id!r} is a template", hint="name it, or use `tidemark status`"
        )
    return one.environment
