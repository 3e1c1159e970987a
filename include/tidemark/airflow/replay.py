"""The operators of the `replay` DAG: list what a replay will read, replay it, and report the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.airflow.assets import Announcing, note_events
from tidemark.airflow.display import of_task
from tidemark.airflow.pages.registry import REPLAYS, marked_work
from tidemark.airflow.steps import SparkStepOperator, end_with_reason, failure, provide_connection
from tidemark.app.job import Order
from tidemark.core.errors import TidemarkError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.app.reports import Report


def chosen_file(files: Mapping[str, str], pipeline: str) -> str:
    """The file of the chosen pipeline; `AirflowFailException` if the name is unknown."""
    if pipeline not in files:
        known = ", ".join(sorted(files)) or "none"
        raise AirflowFailException(f"there is no pipeline {pipeline[:80]!r}: there are {known}")
    return files[pipeline]


class ReplayPlanOperator(BaseOperator):
    """List the input that a replay will read again, and whether it is still there. Reads no data.

    :param pipeline_files: pipeline names and their files
    """

    template_fields: Sequence[str] = ("environment",)
    ui_color = "#eef4e2"

    def __init__(
        self, *, pipeline_files: Mapping[str, str], environment: str | None = None, **kwargs: Any
    ) -> None:
        # The pages read it.
        kwargs.setdefault("doc_json", marked_work(REPLAYS, pipeline_files, environment))
        super().__init__(**of_task("plan", kwargs))
        self.pipeline_files = dict(pipeline_files)
        self.environment = environment
        end_with_reason(self)

    def execute(self, context: Context) -> Any:
        from tidemark.app import tasks

        params = context["params"]
        first, last = params["txn_from"], params["txn_to"]
        try:
            file = chosen_file(self.pipeline_files, params["pipeline"])
            provide_connection(file, self.environment)
            deployment = tasks.open_pipeline(file, self.environment)
            steps = tasks.replay_preview(deployment, txn_from=first, txn_to=last)
        except TidemarkError as error:
            raise failure(error) from error
        for step in steps:
            there = f"GONE: {step['gone']}" if step["gone"] else "still there"
            self.log.info("transaction %s: %s, its input is %s", step["txn"], step["action"], there)
        self.log.info("%s transactions to %s; no others are read", len(steps), params["mode"])
        return {"transactions": len(steps), "gone": [step["txn"] for step in steps if step["gone"]]}


class ReplayOperator(SparkStepOperator, Announcing):
    """Replay a range of transactions in one Spark application. `repair` also restores lost parts and emits
    events for their shards.

    :param pipeline_files: pipeline names and their files; the run's params choose the pipeline and the range
    """

    step = "replay"

    def __init__(self, *, pipeline_files: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(pipeline_file="", pipelines=list(pipeline_files), **kwargs)
        self.pipeline_files = dict(pipeline_files)
        self.on_success_callback = [*self.on_success_callback, note_events]

    def order(self, context: Context, **more: Any) -> Order:
        params = context["params"]
        self.pipeline_file = chosen_file(self.pipeline_files, params["pipeline"])
        self.pipeline_shown = params["pipeline"]
        return super().order(
            context, txn_from=params["txn_from"], txn_to=params["txn_to"] or 0, mode=params["mode"], **more
        )

    def execute(self, context: Context) -> Report:  # type: ignore[override]
        if context["params"]["dry_run"]:
            raise AirflowSkipException("dry run: the log of the plan task lists what would be read")
        return super().execute(context)

    def with_spark(self, context: Context, order: Order) -> Report:
        from tidemark.app import tasks

        report = super().with_spark(context, order)
        restored = [(part["txn"], part["shard"]) for part in report["restored"]]
        if restored:
            deployment = tasks.open_pipeline(order.pipeline_file, order.environment or None)
            shards, announcements = tasks.repaired(deployment, order.attempt, restored)
            self.announce(context, deployment, order, shards, announcements)
        return report

    def after_submit(self, order: Order) -> Report:
        """Report the verdicts that the job has written to the journal."""
        from tidemark.app import reports, tasks

        deployment = tasks.open_pipeline(order.pipeline_file, order.environment or None)
        return reports.replay_report(deployment, order.attempt, txn_from=order.txn_from, txn_to=order.txn_to)


class ReplayReportOperator(BaseOperator):
    """Print the verdicts; fail unless all are `identical`.

    :param report: the replay's report (templated)
    """

    template_fields: Sequence[str] = ("report",)
    ui_color = "#f7e9c9"

    def __init__(self, *, report: Any, **kwargs: Any) -> None:
        super().__init__(**of_task("report", kwargs))
        self.report = report
        end_with_reason(self)

    def execute(self, context: Context) -> Any:
        findings = self.report["findings"]
        if not findings:
            raise AirflowFailException("nothing was proven: the replay reported no transaction")
        for finding in findings:
            self.log.info("%s", finding["finding"])
        red = [finding["finding"] for finding in findings if finding["verdict"] != "identical"]
        for part in self.report.get("restored", ()):
            self.log.info("restored part %(part)s of shard %(shard)s, transaction %(txn)s", part)
        if red:
            raise AirflowFailException("\n".join([f"{len(red)} of {len(findings)} are not identical:", *red]))
        return {"identical": len(findings)}
