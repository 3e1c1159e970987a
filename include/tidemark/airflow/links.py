"""Links from a task to what it is about: its transaction's page, the gate's Data Docs, the Spark UI.

Airflow asks for them in the worker when the task has ended, however it did, and keeps them for its pages. A
link that is empty is not shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from airflow.sdk import BaseHook, BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

UI: Final = "ui"
"""The key in a Spark connection's extra that has the address of its UI."""


def page_url(page: str, **parameters: Any) -> str:
    """The address of a page of Tidemark's, wherever Airflow's pages are."""
    from airflow.sdk.configuration import conf

    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return f"{base}/tidemark/{page}" + (f"?{urlencode(parameters)}" if parameters else "")


def txns_of(step: str, told: Mapping[str, Any]) -> list[int]:
    """The transactions that a step was about, from what it tells."""
    match step:
        case "reclock":
            return list(told["owned"] or told["open"])
        case "ingest":
            return [*(one["txn"] for one in told["staged"]), *told["replayed"], *map(int, told["gone"])]
        case "validate":
            return [one["txn"] for one in told["verdicts"]]
        case "upsert":
            return [*told["sealed"], *map(int, told["lost"])]
        case "replay":
            return [one["txn"] for one in told["findings"]]
        case _:
            return []


class TransactionLink(BaseOperatorLink):
    """The page of the transaction that the task was about; of several, or none, that of the run. A task of a
    DAG for many pipelines leads to the page of the one that it was about."""

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
    """What Great Expectations has documented of the pipeline."""

    name = "Data Docs"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        return page_url(f"docs/{quote(ti_key.dag_id, safe='')}/index.html")


class SparkLink(BaseOperatorLink):
    """The UI of the Spark that the connection names, where its extra has the address under `ui`."""

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        found = BaseHook.get_connection(operator._conn_id)  # type: ignore[attr-defined]
        address = str(found.extra_dejson.get(UI, ""))
        return address if address.startswith(("http://", "https://")) else ""
