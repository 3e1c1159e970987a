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
        "Binds new input to new transactions before it is read. Starts no Spark. A cleared run finds the "
        "transactions that it bound and binds nothing new.",
    ),
    "ingest": (
        "Stage",
        "Stages the parts of every open transaction, invisible to readers. In a cleared run it reads the "
        "recorded input again and writes nothing.",
    ),
    "validate": (
        "Gate",
        "Compares recorded and found digests, then the expectations of the pipeline file. If they "
        "differ, the task is red: its log names the transaction, the endpoint and what you can do, and"
        " no later "
        "task runs. The transaction's page shows both digests and lets you accept or skip it.",
    ),
    "upsert": (
        "Seal and publish",
        "Seals the transactions that passed the gate, appends them to the logs, and publishes the states"
        " that "
        "are due. If another run sealed a transaction first, this attempt is dropped and the winner"
        " recorded.",
    ),
    "checkpoint": (
        "Checkpoint",
        "Advances to the highest complete transaction, acknowledges the source, and emits an event for each "
        "shard with new transactions. A replay with unchanged results emits none.",
    ),
    "plan": (
        "List the input",
        "Lists the transactions of the range, and whether their input still exists. Reads no data.",
    ),
    "replay": (
        "Replay",
        "Reads the recorded input of the range again and compares; `repair` also restores lost parts.",
    ),
    "plan_generation": (
        "Show what would change",
        "Compares the pipeline file with the settings in charge: settings, shards, what is read again, and "
        "what can't be done. Reads no data.",
    ),
    "generation": (
        "",
        "A part of a replacement: the candidate catches up from the recorded input, in tables of its own; "
        "the rows that would change are counted; the promotion changes all shards at one transaction.",
    ),
    "approve": (
        "Ask",
        "Waits for a person: promote the candidate, abort it, or leave it as it is.",
    ),
    "report": ("Report the verdicts", "Red unless every transaction of the range is identical."),
    "maintain": (
        "",
        "Publishes what is due, merges small files, and deletes files that no reader, no lease and no "
        "retention setting needs. Warns of transactions that soon can't be replayed.",
    ),
    "health": (
        "",
        "Checks for alarms with the limits of the pipeline file. Red once for each new alarm, with its "
        "remedy; skipped while reported alarms continue; green without alarms.",
    ),
}
DAGS: Final[Mapping[str, tuple[str, str]]] = {
    "replay": (
        "Replay transactions",
        "Choose a pipeline and a range of transactions. `verify` reads their recorded input again and "
        "proves that the tables hold exactly that; it writes nothing. `repair` also restores lost or "
        "damaged parts. `dry_run` only lists what would be read.",
    ),
    "replace": (
        "Replace a pipeline's settings",
        "Deploy the pipeline file with a higher `generation`: runs keep the settings in charge. Then choose "
        "the pipeline here. A candidate reads the recorded input again with the new file, in tables of its "
        "own, while the pipeline goes on; you see which rows would change; the promotion changes them all "
        "at one transaction. `txn_from` and `txn_to` choose a range, `from_now` reads nothing again.",
    ),
    "maintain": (
        "Maintain pipelines",
        "A task per pipeline: publish what is due, merge small files, delete unneeded ones. "
        "`tidemark maintain PIPELINE --dry-run` lists what it would do, and what holds files back.",
    ),
    "health": (
        "Health of pipelines",
        "A task per pipeline, red once for each new alarm, skipped while reported alarms "
        "continue. To be notified, set `on_failure_callback` in `default_args`. The limits are in the"
        " pipeline files, under "
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


def _ends(report: Mapping[str, Any]) -> list[int]:
    """The ends of the ranges in a report: enough to see whether it covers one transaction."""
    return [txn for ends in report["ranges"] for txn in ends]


def txns_of(step: str, report: Mapping[str, Any]) -> list[int]:
    """The transactions in a step's report; if there are many, only some of them."""
    match step:
        case "reclock":
            return _ends(report["owned"]) or list(report["open"])
        case "ingest":
            return [*(one["txn"] for one in report["staged"]), *report["replayed"], *map(int, report["gone"])]
        case "validate":
            return [one["txn"] for one in report["verdicts"]]
        case "upsert":
            return [*_ends(report["sealed"]), *_ends(report["lost"])]
        case "replay":
            return [one["txn"] for one in report["findings"]]
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
