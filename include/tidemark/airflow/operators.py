"""The operators: one per step of a run, and maintenance; thin, each around a function of `tidemark.tasks`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from tidemark.airflow.asking import ACCEPT, ANSWER_WITHIN, ASK, FAIL, RAISE, answer_in, ask, can_ask, wait
from tidemark.airflow.assets import Announcing, note_events
from tidemark.airflow.connections import provide_connection
from tidemark.airflow.documents import of_task
from tidemark.airflow.links import DataDocsLink, TransactionLink, txns_of
from tidemark.airflow.pages.registry import PUBLISH, marked
from tidemark.airflow.runs import end_with_reason, failure, order_of
from tidemark.airflow.steps import SparkStepOperator
from tidemark.core.errors import TidemarkError
from tidemark.core.sentence import named, short, step_sentence
from tidemark.job import Order

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.assemble import Deployment
    from tidemark.telling import Told

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
        from tidemark import tasks

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
        from tidemark import tasks

        return tasks.open_to_bind(self.pipeline_file, self.environment, order.attempt)

    def work(self, context: Context, deployment: Deployment, order: Order) -> Any:
        from tidemark import tasks

        told = tasks.reclock(deployment, order.attempt)
        self.txns_shown = txns_of(self.step, told)
        if told["recognised"]:
            self.log.warning(
                "%s was done before, by run %s, which this Airflow does not know as a clear or a retry. "
                "Its transactions %s are proven again; nothing is bound to it anew.",
                order.attempt.owner.identity,
                told["recorded_run_id"],
                told["owned"],
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

    def without_spark(self, order: Order) -> Told:
        from tidemark import tasks, telling
        from tidemark.pipeline.stepwise import known_plan

        deployment = tasks.open_pipeline(order.pipeline_file, order.environment or None)
        plan = known_plan(deployment.pipeline, order.attempt)
        if plan.finish or plan.prove:
            raise tasks.SparkNeeded
        return telling.told_verdicts(())

    def with_spark(self, context: Context, order: Order) -> Told:
        """Judge; red, too, when a transaction that was to be proven has no verdict of this try."""
        from tidemark import tasks, telling
        from tidemark.pipeline.stepwise import known_plan, verdicts_of

        deployment = tasks.open_pipeline(order.pipeline_file, order.environment or None)
        asked = known_plan(deployment.pipeline, order.attempt).prove
        if self.connects:
            self.over_connection(order)
        else:
            self.submit(context, order)
        judged = verdicts_of(deployment.pipeline, order.attempt)
        red = [one for one in judged if not one.gated.passed]
        if red:
            self.txns_shown = [one.txn for one in red]
            # Whoever reads this has a shell of their own, without the worker's settings.
            environment = order.environment or os.environ.get("TIDEMARK_ENVIRONMENT")
            settings = {name: os.environ[name] for name in PLACES if os.environ.get(name)}
            why = telling.explained(red, order.pipeline_file, environment, settings)
            if self.on_red == ASK and can_ask(red):
                from tidemark.decisions import verdict_number

                self.log.error("%s", why)
                seen = {str(one.txn): verdict_number(deployment, one.txn) for one in red}
                ask(context, red, why, seen, self.answer_within)
            raise AirflowFailException(why)
        telling.require_verdicts(asked, {one.txn for one in judged if one.replayed})
        return telling.told_verdicts(judged)

    def answered(
        self, context: Context, asked: dict[str, int], options: list[str], event: dict[str, Any]
    ) -> Told:
        """Go on with what a person has answered; without a reason, ask again."""
        from tidemark import decisions, tasks, telling

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
        return telling.told_verdicts(())


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
        self.on_success_callback = [*self.on_success_callback, note_events]

    def work(self, context: Context, deployment: Deployment, order: Order) -> Any:
        from tidemark import tasks

        told, announcements = tasks.checkpoint(deployment, order.attempt)
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


class MaintainOperator(SparkStepOperator):
    """Publish what is due, merge small files, let go and delete what nobody needs; warn of what soon can't be
    proven any more."""

    step = "maintain"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline_shown = self.task_id

    def execute(self, context: Context) -> Told:  # type: ignore[override]
        told = super().execute(context)
        for warning in told["warnings"]:
            self.log.warning("%s", warning)
        return told

    def after_submit(self, order: Order) -> Told:
        """What the job has left to do, and why; what it did is in its own log."""
        from tidemark import tasks

        return tasks.plan_of_upkeep(tasks.open_pipeline(order.pipeline_file, order.environment or None))
