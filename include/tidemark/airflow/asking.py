"""A red gate that waits for a person, in Airflow's own way: the question, and what is done with the answer.

What is asked for is what the gate has judged: each transaction with the number of its verdict in the journal.
One that was judged again meanwhile is not what the person has seen, and is not decided by the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.sdk.exceptions import AirflowFailException

from tidemark.core.errors import InvalidUsage
from tidemark.core.sentence import named

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.pipeline.verdicts import Judged

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
