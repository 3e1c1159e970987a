"""Whether a pipeline needs somebody, and whether that was told before: for the health task in Airflow.

What was told is in the pipeline's journal, under transaction 0, since it is about none: so the account
outlasts the scheduler. An alarm goes on record when it has been told: one whose telling was lost is told
again, and none is lost.
"""

from __future__ import annotations

from tidemark.assemble import Deployment
from tidemark.core.alarms import Alarm, Told, alarms_of, decide_told
from tidemark.core.ids import TXN_NONE
from tidemark.core.journal import Event
from tidemark.pipeline.context import Attempt, note
from tidemark.status import status_of


def look(deployment: Deployment, *, now_seconds: float) -> Told:
    """The alarms of now, by the pipeline file's limits, against those that were told; asks the source."""
    found = status_of(deployment, now_seconds=now_seconds)
    journal = deployment.unchecked.control.journal
    journal.head()
    return decide_told(alarms_of(found, deployment.config.alarms.limits), journal.find(str(TXN_NONE)))


def note_told(deployment: Deployment, attempt: Attempt, alarm: Alarm) -> None:
    """Put on record that somebody was told of an alarm."""
    detail = {"alarm": alarm.identity, "fact": alarm.fact, "run": attempt.owner.run_id}
    note(deployment.unchecked, Event.ALARM, txn=TXN_NONE, token=attempt.token, detail=detail)


def note_over(deployment: Deployment, attempt: Attempt, alarm: str) -> None:
    """Put on record that an alarm is over: if it comes again, it is told again."""
    detail = {"alarm": alarm, "run": attempt.owner.run_id}
    note(deployment.unchecked, Event.ALARM_OVER, txn=TXN_NONE, token=attempt.token, detail=detail)
