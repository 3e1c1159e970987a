"""The app that Airflow mounts at `/tidemark`: the pages, and the API that they read. The routes that change
something are in `tidemark.airflow.pages.actions`.

Airflow mounts a plugin's app without authentication. So the app itself has a dependency that requires a user
on every route, including routes that are added later. The routes of one pipeline also require the right to
view its DAG, which Airflow's auth manager checks. The list has only the pipelines that the user may view.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from tidemark.airflow.pages import answers, registry
from tidemark.airflow.pages.actions import Chosen, acting, may
from tidemark.core.binding import Owner
from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.ids import WriterToken
from tidemark.pipeline.context import Attempt

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
