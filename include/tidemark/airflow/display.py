"""Display names, descriptions and links of tasks and DAGs in Airflow's UI.

The links lead from a task to its transaction's page, the gate's Data Docs and the Spark UI. Airflow computes
them in the worker when the task has ended, in whatever state, and stores them. An empty link is not shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from airflow.sdk import BaseHook, BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator


TASKS: Final[Mapping[str, tuple[str, str]]] = {
    "reclock": (
        "Bind input",
        "Finds the run's transactions, or binds new input to new ones, before anything is read. Needs no "
        "Spark. A cleared run finds what it bound, and asks the source for nothing new.",
    ),
    "ingest": (
        "Stage",
        "Stages the parts of every open transaction, which nobody can see yet. In a cleared run it reads the "
        "recorded input again and writes nothing.",
    ),
    "validate": (
        "Gate",
        "Compares recorded and found digests, then the expectations of the pipeline file. Red says which "
        "transaction and endpoint, and the ways out; nothing after it runs. The transaction's page has the "
        "digests side by side, and lets you accept or skip it.",
    ),
    "upsert": (
        "Seal and publish",
        "Seals what passed the gate, which decides it, appends it to the logs, and publishes the states that "
        "are due. What another run has sealed first is dropped, and recorded with its winner.",
    ),
    "checkpoint": (
        "Checkpoint",
        "Advances to the highest complete transaction, acknowledges the source, and emits an event for each "
        "shard that has something new. A proof that finds what was announced before wakes nobody.",
    ),
    "plan": (
        "Say what will be read",
        "Lists the transactions of the range, and whether their input is still there. Reads no data.",
    ),
    "replay": (
        "Replay",
        "Reads the recorded input of the range again and compares; `repair` also restores lost parts.",
    ),
    "report": ("Report the verdicts", "Red unless every transaction of the range is identical."),
    "maintain": (
        "",
        "Publishes what is due, merges small files, and removes what neither a reader, a lease nor the "
        "retention of the pipeline file needs. Warns of what soon can't be proven any more.",
    ),
    "health": (
        "",
        "Looks for alarms by the limits of the pipeline file. Red once for each new one, with what to do "
        "about it; skipped while told ones go on; green when there is none.",
    ),
}
DAGS: Final[Mapping[str, tuple[str, str]]] = {
    "replay": (
        "Replay transactions",
        "Choose a pipeline and a range of transactions. `verify` reads their recorded input again and "
        "proves that the tables hold exactly that; it writes nothing. `repair` also restores parts that were "
        "lost or damaged. `dry_run` only says what would be read.",
    ),
    "maintain": (
        "Maintain pipelines",
        "A task per pipeline: publish what is due, merge small files, remove what nobody needs. "
        "`tidemark maintain PIPELINE --dry-run` says what it would do, and who holds what back.",
    ),
    "health": (
        "Health of pipelines",
        "A task per pipeline, red once for each new alarm, skipped while told ones go on. Give "
        "`default_args` an `on_failure_callback` to be notified. The limits are in the pipeline files, under "
        "`alarms`.",
    ),
}


def of_task(step: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A task's arguments with display name and description added; given ones win. A step without a name has a
    task per pipeline, and each is named for its pipeline."""
    name, text = TASKS[step]
    return {**({"task_display_name": name} if name else {}), "doc_md": text, **given}


def of_dag(kind: str) -> dict[str, str]:
    """A DAG's display name and description."""
    name, text = DAGS[kind]
    return {"dag_display_name": name, "doc_md": text}


UI: Final = "ui"
"""The key in a Spark connection's extra for the address of its UI."""


def page_url(page: str, **parameters: Any) -> str:
    """The address of one of Tidemark's pages, below Airflow's `[api] base_url`."""
    from airflow.sdk.configuration import conf

    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return f"{base}/tidemark/{page}" + (f"?{urlencode(parameters)}" if parameters else "")


def _ends(told: Mapping[str, Any]) -> list[int]:
    """The ends of the ranges in a report: enough to see whether it covers one transaction."""
    return [txn for ends in told["ranges"] for txn in ends]


def txns_of(step: str, told: Mapping[str, Any]) -> list[int]:
    """The transactions in a step's report; if there are many, only some of them."""
    match step:
        case "reclock":
            return _ends(told["owned"]) or list(told["open"])
        case "ingest":
            return [*(one["txn"] for one in told["staged"]), *told["replayed"], *map(int, told["gone"])]
        case "validate":
            return [one["txn"] for one in told["verdicts"]]
        case "upsert":
            return [*_ends(told["sealed"]), *_ends(told["lost"])]
        case "replay":
            return [one["txn"] for one in told["findings"]]
        case _:
            return []


class TransactionLink(BaseOperatorLink):
    """The page of the task's transaction. If the task had none or several, it is the page of the run, or of
    the pipeline if the DAG serves many pipelines."""

    name = "Tidemark"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        pipeline, txns = getattr(operator, "pipeline_shown", ""), getattr(operator, "txns_shown", ())
        dag_id = pipeline or ti_key.dag_id
        if len(set(txns)) == 1:
            return page_url("transaction", dag_id=dag_id, txn=next(iter(txns)))
        if pipeline:
            return page_url("pipeline", dag_id=pipeline)
        return page_url("run", dag_id=dag_id, run_id=ti_key.run_id)


class DataDocsLink(BaseOperatorLink):
    """The pipeline's Data Docs, made by Great Expectations."""

    name = "Data Docs"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        return page_url(f"docs/{quote(ti_key.dag_id, safe='')}/index.html")


class SparkLink(BaseOperatorLink):
    """The Spark UI, if the connection's extra has its address under `ui`."""

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        found = BaseHook.get_connection(operator._conn_id)  # type: ignore[attr-defined]
        address = str(found.extra_dejson.get(UI, ""))
        return address if address.startswith(("http://", "https://")) else ""
