"""The actions that a person can take on the pages: decide a transaction, or start a run of a DAG.

A decision commits at once. A run does all other work, and is started as Airflow's REST API starts one. Every
action needs a reason, and the pipeline's journal records it with the user's name.

An action needs the right to edit the pipeline's DAG, and starting a run also the right to start runs of the
DAG in question. The login is a cookie, which a browser also sends with requests of other sites' pages. So
a request must prove that it comes from these pages, or carry a token (`from_here`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.configuration import conf
from fastapi import APIRouter, Depends, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from tidemark.airflow.pages import registry
from tidemark.airflow.pages.answers import opened
from tidemark.airflow.pages.registry import PUBLISH, REPLACES, REPLAYS
from tidemark.app import decisions
from tidemark.app.decisions import REASON_CHARACTERS_MAX, Decider
from tidemark.app.deployment import Deployment
from tidemark.app.generation import Generations
from tidemark.app.tasks import SparkNeeded
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import TXN_NONE, Txn
from tidemark.pipeline.replay import REPAIR, VERIFY, bound_range


@cache
def _dags() -> Any:
    from airflow.api_fastapi.common.dagbag import create_dag_bag

    return create_dag_bag()


def start(dag_id: str, asked: dict[str, Any], *, note: str, user: Any, session: Any, request: Request) -> str:
    """Start a run with this conf and note; returns its id."""
    from airflow.api_fastapi.core_api.datamodels.dag_run import TriggerDAGRunPostBody
    from airflow.api_fastapi.core_api.routes.public.dag_run import trigger_dag_run

    body = TriggerDAGRunPostBody(logical_date=None, conf=asked, note=note)
    made = trigger_dag_run(dag_id, body, _dags(), user, session, request)
    return str(made.run_id if hasattr(made, "run_id") else made.dag_run_id)


TXN_MAX: Final = 2**53
JSON: Final = "application/json"


def from_here(request: Request) -> None:
    """Reject requests of other sites' pages. A browser states a request's origin in one of two headers that
    no page can set. A client that is no browser sends neither, and must send a token."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise HTTPException(415, f"an action is {JSON}")
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site != "same-origin":
        raise HTTPException(403, "this request comes from another site")
    if origin is not None and origin_of(origin) not in own_origins(request):
        raise HTTPException(403, "this request comes from another origin; is [api] base_url set right?")
    if site is None and origin is None and not request.headers.get("authorization"):
        raise HTTPException(403, "this request does not name its origin")


def own_origins(request: Request) -> set[tuple[str, str]]:
    """The origins of these pages: the request's host, and `[api] base_url`."""
    addressed = {(scheme, request.headers.get("host", "")) for scheme in ("http", "https")}
    configured = origin_of(conf.get("api", "base_url", fallback="") or "")
    return {one for one in (*addressed, configured) if all(one)}


def origin_of(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


acting = APIRouter(
    prefix="/api/pipelines/{dag_id}/actions",
    dependencies=[Depends(from_here), Depends(requires_access_dag(method="PUT"))],
)


class ReasonGiven(BaseModel):
    """The reason, which every action needs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str = Field(min_length=1, max_length=REASON_CHARACTERS_MAX)


Number = Annotated[int, Field(ge=1, le=TXN_MAX)]


class OfTransaction(ReasonGiven):
    txn: Number


class OfShard(ReasonGiven):
    shard: str = Field(min_length=1, max_length=200)


class OfCandidate(ReasonGiven):
    candidate: str = Field(min_length=1, max_length=200)
    """The identity of the candidate that the page has shown."""


class OfRange(ReasonGiven):
    txn_from: Number
    txn_to: Number


def chosen(dag_id: str, session: SessionDep) -> registry.PipelineDag:
    """The pipeline of the DAG in the path; 404 if the DAG is not a pipeline's."""
    found = registry.pipeline_of(session, dag_id)
    if found is None:
        raise HTTPException(404, f"DAG {dag_id!r} runs no pipeline of Tidemark's")
    return found


Chosen = Annotated[registry.PipelineDag, Depends(chosen)]


def may(user: Any, dag_id: str, *, runs: bool = False) -> bool:
    """Whether a user may edit a DAG, or start its runs."""
    from airflow.models.dag import DagModel

    entity = {"method": "POST", "access_entity": DagAccessEntity.RUN} if runs else {"method": "PUT"}
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return bool(get_auth_manager().is_authorized_dag(user=user, details=details, **entity))


@dataclass
class Actor:
    """The user who acts, and the pipeline that they act on."""

    one: Chosen
    user: GetUserDep
    session: SessionDep
    request: Request

    def by(self, body: ReasonGiven) -> Decider:
        return Decider.of(self.user.get_name(), body.reason)

    def dag_for(self, work: str) -> str:
        """The DAG that replays or replaces this pipeline; `InvalidUsage` if there is none."""
        found = registry.dag_for(work, self.session, self.one)
        if found is None:
            made_by = "replay_dag" if work == REPLAYS else "replace_dag"
            fact = f"no DAG {work} the pipeline of {self.one.dag_id!r}"
            raise InvalidUsage(fact, hint=f"add one with `{made_by}` (docs/airflow.md)")
        return found

    def start(
        self, body: ReasonGiven, what: str, dag_id: str, asked: dict[str, Any], *, txn: int
    ) -> dict[str, Any]:
        """Record the request in the journal, then start the run. If the start fails, the record remains."""
        if not may(self.user, dag_id, runs=True):
            raise HTTPException(403, f"you may not start runs of DAG {dag_id!r}")
        by = self.by(body)
        detail = {"dag": dag_id, **{name: str(value) for name, value in asked.items()}}
        decisions.request(opened(self.one), by, what, detail, txn=txn)
        run_id = start(
            dag_id, asked, note=by.reason, user=self.user, session=self.session, request=self.request
        )
        waits = registry.is_paused(self.session, dag_id)
        how = f"waits until DAG {dag_id} is unpaused" if waits else f"of DAG {dag_id} does it"
        return {"done": f"{what}: run {run_id} {how}", "dag_id": dag_id, "run_id": run_id}


Acting = Annotated[Actor, Depends()]


@acting.post("/skip")
def skip(actor: Acting, body: OfTransaction) -> dict[str, Any]:
    return _decided(actor, body, decisions.skip, "skipped")


@acting.post("/accept")
def accept(actor: Acting, body: OfTransaction) -> dict[str, Any]:
    return _decided(actor, body, decisions.accept, "accepted")


def _decided(
    actor: Actor, body: OfTransaction, decide: Callable[[Deployment, Decider, int], Txn], word: str
) -> dict[str, Any]:
    """Apply a person's decision to an open transaction."""
    try:
        checkpoint = decide(opened(actor.one), actor.by(body), body.txn)
    except SparkNeeded:
        raise InvalidUsage(
            f"no staged attempt of transaction {body.txn} has passed the comparison of digests",
            hint="clear the run's tasks from ingest on, then decide about the new verdict",
        ) from None
    return {"done": f"transaction {body.txn} is {word}; the checkpoint is {checkpoint}"}


@acting.post("/release")
def release(actor: Acting, body: OfShard) -> dict[str, Any]:
    report = decisions.release(opened(actor.one), actor.by(body), body.shard)
    return {"done": f"shard {body.shard} {decisions.released(report)}"}


@acting.post("/replay")
def replay(actor: Acting, body: OfRange) -> dict[str, Any]:
    return _replayed(actor, body, VERIFY)


@acting.post("/repair")
def repair(actor: Acting, body: OfRange) -> dict[str, Any]:
    return _replayed(actor, body, REPAIR)


def _replayed(actor: Actor, body: OfRange, mode: str) -> dict[str, Any]:
    """Start a run of the DAG that replays this pipeline; `InvalidUsage` if there is none."""
    found = actor.dag_for(REPLAYS)
    deployment = opened(actor.one)
    bound_range(deployment.pipeline, txn_from=body.txn_from, txn_to=body.txn_to)
    txns = {"txn_from": body.txn_from, "txn_to": body.txn_to}
    asked = {"pipeline": deployment.config.name, **txns, "mode": mode, "dry_run": False}
    what = "repair" if mode == REPAIR else "replay"
    return actor.start(body, what, found, asked, txn=body.txn_from)


@acting.post("/publish")
def publish(actor: Acting, body: ReasonGiven) -> dict[str, Any]:
    """Start a run of the pipeline's DAG that publishes all states, regardless of their policies."""
    return actor.start(body, "publish", actor.one.dag_id, {PUBLISH: True}, txn=TXN_NONE)


@acting.post("/promote")
def promote(actor: Acting, body: OfCandidate) -> dict[str, Any]:
    """Start a run of the DAG that replaces settings, to promote this very candidate.

    A promotion is never made here: it decides open transactions first and corrects rows, which needs Spark
    and the source's credentials."""
    found = actor.dag_for(REPLACES)
    deployment = opened(actor.one)
    candidate = Generations(deployment).required(body.candidate)
    asked = {
        "pipeline": deployment.config.name,
        "reason": body.reason,
        "txn_from": candidate.since,
        "txn_to": candidate.until or None,
        "from_now": candidate.from_now,
        "candidate": candidate.identity,
        "promote": True,
    }
    return actor.start(body, "promote", found, asked, txn=TXN_NONE)


@acting.post("/abort")
def abort(actor: Acting, body: OfCandidate) -> dict[str, Any]:
    """End this very candidate and remove its tables; the pipeline's own are not touched."""
    ended = decisions.abort(opened(actor.one), actor.by(body), body.candidate)
    return {"done": f"the candidate of generation {ended.generation} is aborted; its tables are removed"}
