"""What can't be staged however often it is tried, in the journal, for who did not watch the run.

A schedule tries it again and again, so a reason is noted once until another one takes its place. A note has
no values of rows: an error knows what of itself may be kept (`TidemarkError.kept`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.ids import Txn
from tidemark.core.journal import Event
from tidemark.core.shard import Standing
from tidemark.pipeline.context import Attempt, Pipeline, note
from tidemark.pipeline.ingest import standing

_WHY: Final = "why"


def note_refusal(pipeline: Pipeline, attempt: Attempt, txn: Txn, error: Exception) -> None:
    """Note why a transaction was refused, unless a retry may help or somebody has decided it. A journal that
    can't be written must not hide the error itself."""
    if not isinstance(error, InvalidUsage):
        return
    with suppress(TidemarkError, OSError):
        if standing(pipeline, txn) is Standing.AT and refusal_of(pipeline, txn) != error.kept:
            note(pipeline, Event.REFUSED, txn=txn, token=attempt.token, detail={_WHY: error.kept})


def refusal_of(pipeline: Pipeline, txn: Txn) -> str:
    """Why an open transaction was refused the last time; empty when it was not."""
    journal = pipeline.control.journal
    journal.head()
    found = [entry.detail[_WHY] for entry in journal.find(str(txn)) if entry.event is Event.REFUSED]
    return found[-1] if found else ""
