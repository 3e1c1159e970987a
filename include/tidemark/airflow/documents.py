"""What Airflow shows of tasks and DAGs besides their ids: a name for people, and what they do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
    """A task's arguments with its name and text, unless they are given. One without a name is one of many,
    each named for its pipeline."""
    name, text = TASKS[step]
    return {**({"task_display_name": name} if name else {}), "doc_md": text, **given}


def of_dag(kind: str) -> dict[str, str]:
    """A DAG's name and text."""
    name, text = DAGS[kind]
    return {"dag_display_name": name, "doc_md": text}
