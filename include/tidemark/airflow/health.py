"""The task of the `health` DAG: it fails once for each alarm, and is skipped while reported ones continue."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.airflow.operators import ControlOperator
from tidemark.core.status import Alarm

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.app.deployment import Deployment
    from tidemark.app.job import Order


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
        from tidemark.airflow.stats import airflow_sink
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
            counted = "1 alarm" if len(found.new) == 1 else f"{len(found.new)} alarms"
            raise AirflowFailException("\n".join([f"{counted}:", *map(str, found.new)]))
        if found.still:
            raise AirflowSkipException(f"{len(found.still)} alarms continue, all of them reported before")
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
