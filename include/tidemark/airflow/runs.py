"""From Airflow's idea of a run to Tidemark's: who owns what, and what a try asks for.

A retry keeps the run's `clear_number`, so it finishes what is missing. A clear, or a backfill over the same
date, raises it, so what the run owns is proven again. The run itself is named by its partition key, else its
logical date, else its run id; `conf`, task instance ids and try numbers decide nothing. When it began tells
it from a run of the same date that this Airflow has forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tidemark.core.errors import Determinate, Indeterminate, TidemarkError
from tidemark.job import Order

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

WHY_CHARACTERS_MAX: Final = 8_000


def order_of(context: Context, *, pipeline_file: str, environment: str | None, **more: Any) -> Order:
    """What one try of a task of this run is asked to do."""
    from tidemark.assemble import new_token

    run = context["dag_run"]
    rounds = run.clear_number or 0
    return Order(
        pipeline_file=pipeline_file,
        environment=environment or "",
        run_id=run.run_id,
        logical_date=run.logical_date.isoformat() if run.logical_date is not None else "",
        partition_key=getattr(run, "partition_key", None) or "",
        begun=run.start_date.isoformat() if run.start_date is not None else "",
        round=rounds,
        cleared=rounds > 0,
        token=new_token(),
        **more,
    )


def failure(error: TidemarkError) -> AirflowException:
    """The error as Airflow takes it: one that a retry can't mend ends the task at once."""
    retries = isinstance(error, Determinate | Indeterminate)
    return AirflowException(str(error)) if retries else AirflowFailException(str(error))


def end_with_reason(operator: BaseOperator) -> None:
    """Let the log of a task that fails end with the reason."""
    operator.on_failure_callback = [*operator.on_failure_callback, say_why]
    operator.on_retry_callback = [*operator.on_retry_callback, say_why]


def say_why(context: Context) -> None:
    """Repeat why a task has failed below Airflow's stack trace, where a log is read first. The group that
    Airflow has open at that point is folded in its UI, so it is closed before."""
    why = context.get("exception")
    if why is not None:
        log = context["ti"].task.log
        log.info("::endgroup::")
        log.error("%s", str(why)[:WHY_CHARACTERS_MAX])
