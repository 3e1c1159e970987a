"""The app that Airflow mounts at `/tidemark`: the pages, the API that they read, and their actions.

Airflow mounts a plugin's app without authentication. So the app itself has a dependency that requires a user
on every route, including routes that are added later. The routes of one pipeline also require the right to
view its DAG, which Airflow's auth manager checks. The list has only the pipelines that the user may view.

An action decides a transaction, or starts a run of a DAG.

A decision commits at once. A run does all other work, and is started as Airflow's REST API starts one. Every
action needs a reason, and the pipeline's journal records it with the user's name.

An action needs the right to edit the pipeline's DAG, and starting a run also the right to start runs of the
DAG in question. The login is a cookie, which a browser also sends with requests of other sites' pages. So
a request must prove that it comes from these pages, or carry a token (`from_here`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from airflow.configuration import conf
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from tidemark.airflow.pages import answers, registry
from tidemark.airflow.pages.answers import opened
from tidemark.airflow.pages.registry import PUBLISH, REPLACES, REPLAYS
from tidemark.app import decisions
from tidemark.app.decisions import REASON_CHARACTERS_MAX, Decider
from tidemark.app.deployment import Deployment
from tidemark.app.generation import Generations
from tidemark.app.tasks import SparkNeeded
from tidemark.core.binding import Owner
from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.ids import TXN_NONE, Txn, WriterToken
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.replay import REPAIR, VERIFY, bound_range

FILES: Final = Path(__file__).with_name("files")
PAGES: Final = ("pipelines", "pipeline", "transaction", "run")
SCRIPTS: Final = ("page.js", "actions.js", "elements.js", "frontiers.js", "requests.js", "transaction.js")
STATIC: Final = {**dict.fromkeys(SCRIPTS, "text/javascript"), "page.css": "text/css"}
POLICY: Final = "Content-Security-Policy"
SANDBOXED: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'"
"""The policy for pages made by other software: they can't run scripts and don't share this origin."""
HEADERS: Final = {
    POLICY: "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

router = APIRouter()
of_pipeline = APIRouter(
    prefix="/api/pipelines/{dag_id}", dependencies=[Depends(requires_access_dag(method="GET"))]
)


@router.get("/api/pipelines")
def pipelines(user: GetUserDep, session: SessionDep) -> dict[str, Any]:
    """The pipelines whose DAG the user may view."""
    allowed = get_auth_manager().get_authorized_dag_ids(user=user, method="GET", session=session)
    return {"pipelines": [one.dag_id for one in registry.known_pipelines(session, allowed)]}


@of_pipeline.get("")
def pipeline(one: Chosen, user: GetUserDep) -> dict[str, Any]:
    return {**answers.pipeline_body(one), "may_act": may(user, one.dag_id)}


@of_pipeline.get("/maintenance")
def maintenance(one: Chosen) -> dict[str, Any]:
    return answers.maintenance_body(one)


@of_pipeline.get("/transactions")
def transactions(
    one: Chosen,
    before: Annotated[int | None, Query(ge=1)] = None,
    limit: Annotated[int, Query(ge=1, le=answers.PAGE_MAX)] = 50,
    search: Annotated[str, Query(max_length=200)] = "",
) -> dict[str, Any]:
    return answers.transactions_body(one, before=before, limit=limit, search=search)


@of_pipeline.get("/transactions/{txn}")
def transaction(one: Chosen, txn: int, user: GetUserDep) -> dict[str, Any]:
    edits = may(user, one.dag_id)
    return {**answers.transaction_body(one, txn, shows_keys=edits), "may_act": edits}


@of_pipeline.get("/run")
def run(one: Chosen, run_id: str, session: SessionDep) -> dict[str, Any]:
    """One run of the pipeline's DAG."""
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    found = session.scalar(select(DagRun).where(DagRun.dag_id == one.dag_id, DagRun.run_id == run_id))
    if found is None:
        raise HTTPException(404, f"DAG {one.dag_id!r} has no run {run_id!r}")
    owner = Owner(
        run_id,
        _text(found.logical_date),
        getattr(found, "partition_key", None) or "",
        _text(found.start_date),
    )
    rounds = found.clear_number or 0
    body = answers.run_body(one, Attempt(owner, WriterToken("page"), rounds > 0, rounds))
    state = str(found.state)
    if not body["transactions"] and state != "success":
        # Only a run that has succeeded has looked for input.
        body["sentence"] = f"the run is {state}, and has no transaction on record"
    return {**body, "run_id": run_id, "dag_id": one.dag_id, "state": state}


def _text(at: datetime | None) -> str:
    return at.isoformat() if at is not None else ""


@router.get("/docs/{dag_id}/{path:path}", dependencies=[Depends(requires_access_dag(method="GET"))])
def docs(one: Chosen, path: str) -> Response:
    """A page of the pipeline's Data Docs, served with a policy that forbids scripts."""
    site = answers.opened(one).data_docs.resolve()
    file = (site / path).resolve()
    if not (file.is_relative_to(site) and file.suffix == ".html" and file.is_file()):
        raise HTTPException(404, "there is no such page in the Data Docs that this server can see")
    return FileResponse(file, media_type="text/html", headers={POLICY: SANDBOXED})


@router.get("/{page}")
def page(page: str) -> Response:
    """A page: the same HTML for each, which its script fills."""
    if page not in PAGES:
        raise HTTPException(404, "no such page")
    return FileResponse(FILES / "page.html", media_type="text/html")


@router.get("/static/{name}")
def static(name: str) -> Response:
    if name not in STATIC:
        raise HTTPException(404, "no such file")
    return FileResponse(FILES / name, media_type=STATIC[name])


async def error_response(request: Request, error: Exception) -> Response:
    """A Tidemark error as a response with its message: 400 for `InvalidUsage`, else 503."""
    return JSONResponse({"detail": str(error)}, 400 if isinstance(error, InvalidUsage) else 503)


async def guarded(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add headers that forbid content from other origins and caching."""
    response = await call_next(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def pages_app() -> FastAPI:
    """The app. It serves no OpenAPI description: that route would not require a user."""
    app = FastAPI(
        title="Tidemark",
        dependencies=[Depends(get_user)],
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        exception_handlers={TidemarkError: error_response},
    )
    app.middleware("http")(guarded)
    app.include_router(acting)
    app.include_router(of_pipeline)
    app.include_router(router)
    return app


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
        "replace": list(candidate.replaces),
        "candidate": candidate.identity,
        "promote": True,
    }
    return actor.start(body, "promote", found, asked, txn=TXN_NONE)


@acting.post("/abort")
def abort(actor: Acting, body: OfCandidate) -> dict[str, Any]:
    """End this very candidate and remove its tables; the pipeline's own are not touched."""
    ended = decisions.abort(opened(actor.one), actor.by(body), body.candidate)
    return {"done": f"the candidate of generation {ended.generation} is aborted; its tables are removed"}
