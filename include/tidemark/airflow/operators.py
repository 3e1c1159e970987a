"""The operators of a run's steps, of maintenance and of alarms. Each wraps a function of `app.tasks`.

With `on_red: ask`, a red gate waits for a person through Airflow's human-in-the-loop input. The question
names each transaction with the number of its verdict in the journal. If a transaction was judged again
meanwhile, the person has not seen that verdict, and the answer does not decide the transaction.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.airflow.assets import Announcing, note_events
from tidemark.airflow.display import DataDocsLink, txns_of
from tidemark.airflow.pages.registry import PUBLISH, marked
from tidemark.airflow.steps import ControlOperator, SparkStepOperator, failure, provide_connection
from tidemark.app.job import Order
from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.status import Alarm
from tidemark.core.text import amount, named, named_in, short, step_sentence

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.app.decisions import Decider
    from tidemark.app.deployment import Deployment
    from tidemark.app.lineage import Lineage
    from tidemark.app.metrics import Measure, Sink
    from tidemark.app.reports import Report
    from tidemark.pipeline.context import Attempt
    from tidemark.pipeline.validate import Judged


# The question of a red gate.

ASK, RAISE = "ask", "fail"
"""The values of `on_red` in a pipeline file."""
ACCEPT, QUARANTINE, SKIP, FAIL = "Accept", "Quarantine", "Skip", "Fail"
REASON: Final = "reason"
ANSWER_WITHIN: Final = timedelta(days=7)
METHOD: Final = "answered"


def can_ask(red: Sequence[Judged]) -> bool:
    """Whether a person can decide: a committed transaction can be neither accepted nor skipped."""
    return bool(red) and not any(one.replayed for one in red)


def options_of(red: Sequence[Judged], *, sets_aside: bool = False) -> list[str]:
    """The possible answers. Accepting and quarantining are only possible if every transaction's digests
    passed the gate; quarantining also needs an expectation that single rows break (`sets_aside`)."""
    whole = all(one.gated.finding.passed for one in red)
    return [*([ACCEPT] if whole else []), *([QUARANTINE] if whole and sets_aside else []), SKIP, FAIL]


def ask(
    context: Context,
    red: Sequence[Judged],
    why: str,
    asked: Mapping[str, int],
    within: timedelta,
    *,
    sets_aside: bool,
) -> NoReturn:
    """Ask for a decision, and suspend the task without a worker slot until the answer."""
    subject = f"The gate is red: {named(one.txn for one in red)}"
    options = options_of(red, sets_aside=sets_aside)
    wait(context, options, subject, f"```\n{why}\n```", asked, within)


def wait(
    context: Context,
    options: Sequence[str],
    subject: str,
    body: str,
    asked: Mapping[str, Any],
    within: timedelta,
) -> NoReturn:
    """Suspend the task until the answer. Airflow keeps the first question of a try: a repeated question has
    the subject and body of the first."""
    from airflow.sdk import Param
    from airflow.sdk.exceptions import TaskAwaitingInput
    from airflow.sdk.execution_time.hitl import upsert_hitl_detail

    reason = Param(
        "", type="string", title="Reason", description="The reason, which the journal records with your name"
    )
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
    """The choice, the user's name and the reason. `AirflowFailException` without a valid answer in time;
    `InvalidUsage` if the decision has no user."""
    if "error" in event:
        raise AirflowFailException(
            f"no decision was made in time: {event['error']}; clear this task to decide again"
        )
    choice = (event.get("chosen_options") or [""])[0]
    if choice not in options:
        raise AirflowFailException(
            f"{choice!r} is none of {', '.join(options)}; clear this task to decide again"
        )
    user = (event.get("responded_by_user") or {}).get("name") or ""
    if not user:
        raise InvalidUsage("the decision has no user", hint="clear this task and decide again")
    return choice, user, str((event.get("params_input") or {}).get(REASON) or "").strip()


# The operators.

log = logging.getLogger(__name__)
PLACES = ("TIDEMARK_ROOT", "TIDEMARK_WAREHOUSE")
"""The environment variables of a worker that locate a pipeline's tables."""


class ReclockOperator(ControlOperator):
    """Find the run's transactions, or bind new input to new ones. The pages find a pipeline through this
    task's `doc_json`."""

    step = "reclock"

    def __init__(self, *, pipeline_file: str | Path, environment: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("doc_json", marked(str(pipeline_file), environment))
        super().__init__(pipeline_file=pipeline_file, environment=environment, **kwargs)

    def opened(self, order: Order) -> Deployment:
        from tidemark.app import tasks

        return tasks.open_to_bind(self.pipeline_file, self.environment, order.attempt)

    def work(self, context: Context, deployment: Deployment, order: Order) -> Any:
        from tidemark.app import tasks

        report = tasks.reclock(deployment, order.attempt)
        self.txns_shown = txns_of(self.step, report)
        if report["recognised"]:
            self.log.warning(
                "%s was already done by run %s, which this Airflow does not know as a clear or a retry. "
                "It has %s, which this run replays; nothing new is bound.",
                order.attempt.owner.identity,
                report["recorded_run_id"],
                named_in(report["owned"]),
            )
        if report["proposal"]:
            self.log.warning("%s", report["proposal"])
        self.log.info("%s", step_sentence("reclock", report))
        return report


class IngestOperator(SparkStepOperator):
    """Stage the open transactions, or replay those that a clear proves again. Nothing becomes visible."""

    step = "ingest"


class ValidateOperator(SparkStepOperator):
    """The gate: Great Expectations compares recorded and found digests, then checks the user's suite.

    It is red if a verdict is not `identical` or an expectation with action `fail` does not hold. The message
    names the transaction and endpoint, both counts and digests, and the possible decisions.

    :param on_red: `fail`, or `ask`: the task waits until a person chooses to accept the transaction, to
        quarantine the rows that don't meet an expectation, to skip it, or to fail. A red
        proof always fails: a committed transaction can't be decided again
    :param answer_within: how long it waits before it fails
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
        """Judge by ingest's measurements. Spark is needed only if they no longer apply: this task was cleared
        alone, or the pipeline file has changed. The gate also fails if a transaction that the run must prove
        has no verdict of this try."""
        from tidemark.app import reports, tasks
        from tidemark.pipeline.reclock import known_plan

        deployment = tasks.open_pipeline(order.pipeline_file, order.environment or None)
        asked = known_plan(deployment.pipeline, order.attempt).prove
        super().worked(context, order)
        judged = self.judged(context, order, deployment)
        reports.require_verdicts(asked, {one.txn for one in judged if one.replayed})
        return reports.verdicts_report(judged)

    def judged(self, context: Context, order: Order, deployment: Deployment) -> Sequence[Judged]:
        """The verdicts of this try; if one is red, the task waits for a person, or fails."""
        from tidemark.app import reports
        from tidemark.pipeline.validate import verdicts_of

        judged = verdicts_of(deployment.pipeline, order.attempt)
        red = [one for one in judged if not one.gated.passed]
        if red:
            self.txns_shown = [one.txn for one in red]
            # The message has commands for a person's shell, which lacks the worker's settings.
            environment = order.environment or os.environ.get("TIDEMARK_ENVIRONMENT")
            settings = {name: os.environ[name] for name in PLACES if os.environ.get(name)}
            why = reports.explained(red, order.pipeline_file, environment, settings)
            if self.on_red == ASK and can_ask(red):
                from tidemark.app.decisions import verdict_number

                self.log.error("%s", why)
                seen = {str(one.txn): verdict_number(deployment, one.txn) for one in red}
                sets_aside = deployment.setting_aside() is not None
                ask(context, red, why, seen, self.answer_within, sets_aside=sets_aside)
            raise AirflowFailException(why)
        return judged

    def after_submit(self, order: Order) -> Report:
        """No report: `worked` reads the verdicts from the journal."""
        return {}

    def quarantined(
        self, context: Context, deployment: Deployment, by: Decider, asked: Mapping[str, int]
    ) -> Report:
        """Stage and judge the transactions again, with the rows in quarantine that made them red."""
        from tidemark.app import decisions, reports

        if not decisions.request_quarantine(deployment, by, asked):
            self.log.info("already decided by another person or run")
            return reports.verdicts_report(())
        order = self.order(context, quarantine=True)
        super().worked(context, order)
        judged = self.judged(context, order, deployment)
        outcome = f"quarantined by {by.user}: {short(by.reason)}"
        self.log.info("%s: rows that don't meet an expectation %s", named(one.txn for one in judged), outcome)
        return reports.verdicts_report(judged)

    def answered(
        self, context: Context, asked: dict[str, int], options: list[str], event: dict[str, Any]
    ) -> Report:
        """Resume with a person's answer; ask again if a decision has no reason."""
        from tidemark.app import decisions, reports, tasks

        self.txns_shown = [int(txn) for txn in asked]
        try:
            choice, user, reason = answer_in(event, options)
            if choice == FAIL:
                raise AirflowFailException(f"{user} leaves the gate red: {reason or 'no reason given'}")
            if not reason:
                self.log.warning("%s chose %s without a reason, and is asked again", user, choice)
                wait(context, options, "", "", asked, self.answer_within)
            order = self.order(context)
            provide_connection(order.pipeline_file, order.environment)
            deployment = tasks.open_pipeline(order.pipeline_file, order.environment or None)
            by, accepts = decisions.Decider.of(user, reason), choice == ACCEPT
            if choice == QUARANTINE:
                return self.quarantined(context, deployment, by, asked)
            done = decisions.decide_red(deployment, order.attempt, by, asked, accepts=accepts)
        except tasks.SparkNeeded:
            raise AirflowFailException(
                "the validated attempt is gone; clear the run's tasks from ingest on"
            ) from None
        except TidemarkError as error:
            raise failure(error) from error
        word = "accepted" if accepts else "skipped"
        outcome = (
            f"{named(done)} {word} by {user}: {short(reason)}" if done else "already decided by another user"
        )
        self.log.info("%s", outcome)
        return reports.verdicts_report(())


class UpsertOperator(SparkStepOperator):
    """Seal the transactions that passed the gate, append them to the logs, and publish the states that are
    due, or all states if the run's conf has `publish`."""

    step = "upsert"
    ui_color = "#d9e8d0"

    def order(self, context: Context, **more: Any) -> Order:
        return super().order(context, publish=bool(context.get("params", {}).get(PUBLISH)), **more)


class CheckpointOperator(ControlOperator, Announcing):
    """Advance the checkpoint, acknowledge the source, and emit events for the shards.

    An event has the gate's last verdict and whether a person overruled it. A transaction that was announced
    before and is unchanged emits no event again.

    :param pipeline: the pipeline's name, for its assets
    :param shards: the shards that are known before any run, shown as the task's outlets
    """

    step = "checkpoint"

    def __init__(self, *, pipeline: str, shards: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(pipelines=[pipeline], shards=shards, **kwargs)
        self.lineage: Lineage | None = None
        self.on_success_callback = [*self.on_success_callback, note_events]

    def work(self, context: Context, deployment: Deployment, order: Order) -> Any:
        from tidemark.app import metrics, tasks

        report, announcements = tasks.checkpoint(deployment, order.attempt)
        metrics.send(airflow_sink(), lambda: metrics.of_run(deployment, order.attempt))
        self.lineage = lineage_for_provider(deployment, order.attempt)
        self.txns_shown = [one.seal.txn for one in announcements]
        self.announce(context, deployment, order, report["shards"], announcements)
        for one in announcements:
            if one.overruled:
                self.log.warning(
                    "transaction %s: the gate said %s and was overruled: %s",
                    *(one.seal.txn, one.gate, one.overruled),
                )
        self.log.info("shards with events: %s", ", ".join(sorted(report["shards"])) or "none")
        if report["unchanged"]:
            self.log.info("announced before and unchanged: transactions %s", report["unchanged"])
        self.log.info("%s", step_sentence("checkpoint", report))
        return report

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """The run's inputs and outputs. Airflow's OpenLineage provider calls this when the task has
        succeeded."""
        from airflow.providers.openlineage.extractors import OperatorLineage

        found = self.lineage
        return OperatorLineage(inputs=found.inputs, outputs=found.outputs) if found is not None else None


def lineage_for_provider(deployment: Deployment, attempt: Attempt) -> Lineage | None:
    """A run's inputs and outputs; None if Airflow's OpenLineage provider is missing or disabled. The task
    reads them, because the provider runs in a forked process, which must not use the warehouse's handles."""
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return None
    if conf.is_disabled():
        return None
    from tidemark.app.lineage import lineage_of
    from tidemark.app.reports import decided_by

    try:
        return lineage_of(deployment, decided_by(deployment, attempt)[0])
    except Exception as error:  # A failure of lineage must not fail the task.
        log.warning("lineage events are not sent: %s", error)
        return None


class MaintainOperator(SparkStepOperator):
    """Publish states that are due, compact small files, and delete expired ones; warn about transactions that
    soon stop being replayable."""

    step = "maintain"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline_shown = self.task_id

    def execute(self, context: Context) -> Report:  # type: ignore[override]
        report = super().execute(context)
        for warning in report["warnings"]:
            self.log.warning("%s", warning)
        return report

    def after_submit(self, order: Order) -> Report:
        """Report the maintenance that is still to do, and why; the job's log has what it did."""
        from tidemark.app import tasks

        return tasks.maintenance_plan(tasks.open_pipeline(order.pipeline_file, order.environment or None))


class HealthOperator(ControlOperator):
    """Check for alarms (`tidemark.core.status`). The task fails with the alarms that are not reported yet and
    the remedy for each. It is skipped while reported alarms continue, and succeeds if there is none.

    Airflow notifies people of failures: give `on_failure_callback` a notifier. The journal records reported
    alarms once the task has failed. An alarm that ends and comes back is reported again."""

    step = "health"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline_shown = self.task_id
        self.note_alarms: Callable[[], None] = _nothing
        self.on_failure_callback = [*self.on_failure_callback, note_alarms]

    def work(self, context: Context, deployment: Deployment, order: Order) -> Any:
        from tidemark.app import metrics
        from tidemark.app import status as health
        from tidemark.app.status import status_of

        now = time.time()
        status = status_of(deployment, now_seconds=now, every_shard=True)
        found = health.check_alarms(deployment, status)
        ringing = (*found.new, *found.still)
        metrics.send(airflow_sink(), lambda: metrics.of_status(status, ringing, now_seconds=now))
        for name in found.over:
            self.log.info("over: %s", name)
            health.note_alarm_over(deployment, order.attempt, name)
        for alarm in found.still:
            self.log.warning("reported before: %s", alarm)
        if found.new:
            self.note_alarms = lambda: _note(deployment, order, found.new)
            heading = f"{amount(len(found.new), 'alarm')}:"
            raise AirflowFailException("\n".join([heading, *map(str, found.new)]))
        if found.still:
            raise AirflowSkipException(f"reported before and not over: {amount(len(found.still), 'alarm')}")
        self.log.info("no alarm")
        return {"alarms": 0}


def _note(deployment: Deployment, order: Order, alarms: tuple[Alarm, ...]) -> None:
    from tidemark.app import status as health

    for alarm in alarms:
        health.note_alarm(deployment, order.attempt, alarm)


def _nothing() -> None:
    """The callback if there is no new alarm."""


def note_alarms(context: Context) -> None:
    """Record in the journal the alarms that a task has reported by failing."""
    cast("HealthOperator", context["ti"].task).note_alarms()


SETTINGS: Final = ("statsd_on", "statsd_datadog_enabled", "otel_on")
"""The settings of `[metrics]` that turn Airflow's metrics on."""


class AirflowStats:
    """Airflow's counters, gauges and timings. Airflow's prefix, allow list and tags apply to them too."""

    def record(self, measure: Measure) -> None:
        from airflow.sdk.observability import stats

        from tidemark.app.metrics import Kind

        name, tags = measure.metric.name, dict(measure.tags)
        match measure.metric.kind:
            case Kind.COUNTER:
                # A count of 0 is not sent.
                if measure.value:
                    stats.incr(name, int(measure.value), tags=tags)
            case Kind.GAUGE:
                stats.gauge(name, measure.value, tags=tags)
            case Kind.TIMING:
                stats.timing(name, timedelta(seconds=measure.value), tags=tags)


def airflow_sink() -> Sink | None:
    """A sink into Airflow's metrics; None if they are off."""
    from airflow.sdk.configuration import conf

    return AirflowStats() if any(conf.getboolean("metrics", one) for one in SETTINGS) else None
