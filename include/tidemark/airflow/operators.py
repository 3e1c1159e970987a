"""A red gate that waits for a person, in Airflow's own way: the question, and what is done with the answer.

What is asked for is what the gate has judged: each transaction with the number of its verdict in the journal.
One that was judged again meanwhile is not what the person has seen, and is not decided by the answer.

The operators: one per step of a run, and maintenance; thin, each around a function of `tidemark.app.tasks`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from tidemark.airflow.assets import Announcing, note_events
from tidemark.airflow.display import DataDocsLink, TransactionLink, of_task, txns_of
from tidemark.airflow.pages.registry import PUBLISH, marked
from tidemark.airflow.steps import SparkStepOperator, end_with_reason, failure, order_of, provide_connection
from tidemark.app.job import Order
from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.summary import named, named_in, short, step_sentence

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.app.deployment import Deployment
    from tidemark.app.lineage import Lineage
    from tidemark.app.reports import Report
    from tidemark.pipeline.context import Attempt
    from tidemark.pipeline.validate import Judged


ASK, RAISE = "ask", "fail"
"""What a pipeline file may say of a red gate."""
ACCEPT, SKIP, FAIL = "Accept", "Skip", "Fail"
REASON: Final = "reason"
ANSWER_WITHIN: Final = timedelta(days=7)
METHOD: Final = "answered"


def can_ask(red: Sequence[Judged]) -> bool:
    """Whether a person could decide: what is committed can be neither accepted nor skipped."""
    return bool(red) and not any(one.replayed for one in red)


def options_of(red: Sequence[Judged]) -> list[str]:
    """The ways out; only what the gate has found whole can be accepted as it is."""
    whole = all(one.gated.finding.passed for one in red)
    return [*([ACCEPT] if whole else []), SKIP, FAIL]


def ask(
    context: Context, red: Sequence[Judged], why: str, asked: Mapping[str, int], within: timedelta
) -> NoReturn:
    """Put the question, and let the task wait for its answer without a worker."""
    subject = f"The gate is red: {named(one.txn for one in red)}"
    wait(context, options_of(red), subject, f"```\n{why}\n```", asked, within)


def wait(
    context: Context,
    options: Sequence[str],
    subject: str,
    body: str,
    asked: Mapping[str, int],
    within: timedelta,
) -> NoReturn:
    """Airflow keeps the first question of a try: asked again, its subject and body stay."""
    from airflow.sdk import Param
    from airflow.sdk.exceptions import TaskAwaitingInput
    from airflow.sdk.execution_time.hitl import upsert_hitl_detail

    reason = Param("", type="string", title="Reason", description="Why; the journal keeps it, with your name")
    upsert_hitl_detail(
        ti_id=context["ti"].id,
        options=list(options),
        subject=subject,
        body=body,
        params={REASON: reason.serialize()},
    )
    kwargs = {"asked": dict(asked), "options": list(options)}
    raise TaskAwaitingInput(method_name=METHOD, kwargs=kwargs, timeout=within)


def answer_in(event: Mapping[str, Any], options: Sequence[str]) -> tuple[str, str, str]:
    """The choice, the user's name and the reason; `AirflowFailException` where nobody answered."""
    if "error" in event:
        raise AirflowFailException(
            f"nobody has decided in time: {event['error']}; clear this task to be asked"
        )
    choice = (event.get("chosen_options") or [""])[0]
    if choice not in options:
        raise AirflowFailException(f"{choice!r} is none of {', '.join(options)}; clear this task to be asked")
    user = (event.get("responded_by_user") or {}).get("name") or ""
    if not user:
        raise InvalidUsage("the answer has no user", hint="clear this task to be asked again")
    return choice, user, str((event.get("params_input") or {}).get(REASON) or "").strip()


log = logging.getLogger(__name__)
PLACES = ("TIDEMARK_ROOT", "TIDEMARK_WAREHOUSE")
"""The settings of a worker's environment that say where a pipeline's tables are."""


class ControlOperator(BaseOperator):
    """A step that needs the control plane only, and so takes milliseconds.

    :param pipeline_file: the pipeline file; not a template, whatever its name looks like
    :param environment: which of the file's environments, `$TIDEMARK_ENVIRONMENT` by default (templated)
    """

    step: ClassVar[str]
    template_fields: Sequence[str] = ("environment",)
    operator_extra_links = (TransactionLink(),)
    ui_color = "#eef4e2"

    def __init__(self, *, pipeline_file: str | Path, environment: str | None = None, **kwargs: Any) -> None:
        super().__init__(**of_task(self.step, kwargs))
        self.pipeline_shown, self.txns_shown = "", list[int]()
        self.pipeline_file = str(pipeline_file)
        self.environment = environment
        end_with_reason(self)

    def execute(self, context: Context) -> Any:
        order = order_of(context, pipeline_file=self.pipeline_file, environment=self.environment)
        try:
            provide_connection(self.pipeline_file, self.environment)
            return self.work(context, self.opened(order), order)
        except TidemarkError as error:
            raise failure(error) from error

    def opened(self, order: Order) -> Deployment:
        from tidemark.app import tasks

        return tasks.open_pipeline(self.pipeline_file, self.environment)

    def work(self, context: Context, deployment: Deployment, order: Order) -> Any:
        raise NotImplementedError


class ReclockOperator(ControlOperator):
    """Find the run's transactions, or bind new input to new ones. The pages find a pipeline by this task."""

    step = "reclock"

    def __init__(self, *, pipeline_file: str | Path, environment: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("doc_json", marked(str(pipeline_file), environment))
        super().__init__(pipeline_file=pipeline_file, environment=environment, **kwargs)

    def opened(self, order: Order) -> Deployment:
        from tidemark.app import tasks

        return tasks.open_to_bind(self.pipeline_file, self.environment, order.attempt)

    def work(self, context: Context, deployment: Deployment, order: Order) -> Any:
        from tidemark.app import tasks

        told = tasks.reclock(deployment, order.attempt)
        self.txns_shown = txns_of(self.step, told)
        if told["recognised"]:
            self.log.warning(
                "%s was done before, by run %s, which this Airflow does not know as a clear or a retry. "
                "It has %s, and that is proven again; nothing is bound to it anew.",
                order.attempt.owner.identity,
                told["recorded_run_id"],
                named_in(told["owned"]),
            )
        self.log.info("%s", step_sentence("reclock", told))
        return told


class IngestOperator(SparkStepOperator):
    """Stage what is open, or replay what a clear asks to prove. Nothing of it is visible yet."""

    step = "ingest"


class ValidateOperator(SparkStepOperator):
    """The gate: Great Expectations over recorded and found checksums, then the user's own suite.

    Red when a verdict is not `identical` or an expectation with action `fail` does not hold. The message says
    which transaction and endpoint, both counts and digests, and the ways out.

    :param on_red: `fail`, or `ask`: the task waits for a person, who accepts, skips or lets it fail, in
        Airflow's own way. A proof that is red always fails: what is committed can't be decided again
    :param answer_within: for how long it waits; then it fails
    """

    def __init__(
        self, *, on_red: str = RAISE, answer_within: timedelta = ANSWER_WITHIN, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.on_red = on_red
        self.answer_within = answer_within

    step = "validate"
    operator_extra_links = (*SparkStepOperator.operator_extra_links, DataDocsLink())
    ui_color = "#f7e9c9"

    def worked(self, context: Context, order: Order) -> Report:
        """Judge by what ingest has measured. Spark is needed only where that does not count any more: this
        task was cleared alone, or the pipeline file was changed. Red, too, when a transaction that was to be
        proven has no verdict of this try."""
        from tidemark.app import reports, tasks
        from tidemark.pipeline.reclock import known_plan
        from tidemark.pipeline.validate import verdicts_of

        deployment = tasks.open_pipeline(order.pipeline_file, order.environment or None)
        asked = known_plan(deployment.pipeline, order.attempt).prove
        super().worked(context, order)
        judged = verdicts_of(deployment.pipeline, order.attempt)
        red = [one for one in judged if not one.gated.passed]
        if red:
            self.txns_shown = [one.txn for one in red]
            # Whoever reads this has a shell of their own, without the worker's settings.
            environment = order.environment or os.environ.get("TIDEMARK_ENVIRONMENT")
            settings = {name: os.environ[name] for name in PLACES if os.environ.get(name)}
            why = reports.explained(red, order.pipeline_file, environment, settings)
            if self.on_red == ASK and can_ask(red):
                from tidemark.app.decisions import verdict_number

                self.log.error("%s", why)
                seen = {str(one.txn): verdict_number(deployment, one.txn) for one in red}
                ask(context, red, why, seen, self.answer_within)
            raise AirflowFailException(why)
        reports.require_verdicts(asked, {one.txn for one in judged if one.replayed})
        return reports.verdicts_report(judged)

    def after_submit(self, order: Order) -> Report:
        """The verdicts are in the journal."""
        return {}

    def answered(
        self, context: Context, asked: dict[str, int], options: list[str], event: dict[str, Any]
    ) -> Report:
        """Go on with what a person has answered; without a reason, ask again."""
        from tidemark.app import decisions, reports, tasks

        self.txns_shown = [int(txn) for txn in asked]
        try:
            choice, user, reason = answer_in(event, options)
            if choice == FAIL:
                raise AirflowFailException(f"{user} lets the gate be red: {reason or 'no reason given'}")
            if not reason:
                self.log.warning("%s has chosen %s without a reason, and is asked again", user, choice)
                wait(context, options, "", "", asked, self.answer_within)
            order = self.order(context)
            provide_connection(order.pipeline_file, order.environment)
            deployment = tasks.open_pipeline(order.pipeline_file, order.environment or None)
            by, accepts = decisions.Decider.of(user, reason), choice == ACCEPT
            done = decisions.decide_red(deployment, order.attempt, by, asked, accepts=accepts)
        except tasks.SparkNeeded:
            raise AirflowFailException(
                "what was judged is not there any more; clear from ingest on"
            ) from None
        except TidemarkError as error:
            raise failure(error) from error
        word = "accepted" if accepts else "skipped"
        told = f"{named(done)} {word} by {user}: {short(reason)}" if done else "decided by somebody else"
        self.log.info("%s", told)
        return reports.verdicts_report(())


class UpsertOperator(SparkStepOperator):
    """Seal what passed the gate, append it to the logs, and publish the states that are due; in a run that
    asks for it (`publish` in its conf), all."""

    step = "upsert"
    ui_color = "#d9e8d0"

    def order(self, context: Context, **more: Any) -> Order:
        return super().order(context, publish=bool(context.get("params", {}).get(PUBLISH)), **more)


class CheckpointOperator(ControlOperator, Announcing):
    """Advance the checkpoint, acknowledge the source, and wake who waits for the shards.

    An event says what the gate said last, and whether a person overruled it. What was announced before and
    is as it was wakes nobody again.

    :param pipeline: the pipeline's name, for its assets
    :param shards: the shards that are known before any run, to be shown as what the task makes
    """

    step = "checkpoint"

    def __init__(self, *, pipeline: str, shards: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(pipelines=[pipeline], shards=shards, **kwargs)
        self.lineage: Lineage | None = None
        self.on_success_callback = [*self.on_success_callback, note_events]

    def work(self, context: Context, deployment: Deployment, order: Order) -> Any:
        from tidemark.airflow.stats import airflow_sink
        from tidemark.app import metrics, tasks

        told, announcements = tasks.checkpoint(deployment, order.attempt)
        metrics.send(airflow_sink(), lambda: metrics.of_run(deployment, order.attempt))
        self.lineage = lineage_for_provider(deployment, order.attempt)
        self.txns_shown = [one.seal.txn for one in announcements]
        self.announce(context, deployment, order, told["shards"], announcements)
        for one in announcements:
            if one.overruled:
                self.log.warning(
                    "transaction %s: the gate said %s, and was overruled: %s",
                    *(one.seal.txn, one.gate, one.overruled),
                )
        self.log.info("shards with events: %s", ", ".join(sorted(told["shards"])) or "none")
        if told["unchanged"]:
            self.log.info("announced before, and unchanged: transactions %s", told["unchanged"])
        self.log.info("%s", step_sentence("checkpoint", told))
        return told

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """What the run read and wrote, for Airflow's OpenLineage provider, which asks when the task has
        succeeded."""
        from airflow.providers.openlineage.extractors import OperatorLineage

        found = self.lineage
        return OperatorLineage(inputs=found.inputs, outputs=found.outputs) if found is not None else None


def lineage_for_provider(deployment: Deployment, attempt: Attempt) -> Lineage | None:
    """What a run read and wrote, if Airflow's OpenLineage provider is there and on. It is read here, in the
    task: the provider asks in a process that it has forked, where the warehouse's handles may not be used."""
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return None
    if conf.is_disabled():
        return None
    from tidemark.app.lineage import lineage_of
    from tidemark.app.transactions import decided_by

    try:
        return lineage_of(deployment, decided_by(deployment, attempt)[0])
    except Exception as error:  # Lineage stops nothing.
        log.warning("lineage is left out: %s", error)
        return None


class MaintainOperator(SparkStepOperator):
    """Publish what is due, merge small files, let go and delete what nobody needs; warn of what soon can't be
    proven any more."""

    step = "maintain"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline_shown = self.task_id

    def execute(self, context: Context) -> Report:  # type: ignore[override]
        told = super().execute(context)
        for warning in told["warnings"]:
            self.log.warning("%s", warning)
        return told

    def after_submit(self, order: Order) -> Report:
        """What the job has left to do, and why; what it did is in its own log."""
        from tidemark.app import tasks

        return tasks.maintenance_plan(tasks.open_pipeline(order.pipeline_file, order.environment or None))
