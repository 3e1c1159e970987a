"""The operators of the `replace` DAG: plan a new generation, let it catch up, compare, ask, promote.

The pipeline's own DAG keeps its schedule meanwhile. Each task can be repeated: a candidate that is there
already goes on, and a promotion that has happened is found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from tidemark.airflow.display import of_task
from tidemark.airflow.operators import ANSWER_WITHIN, answer_in, wait
from tidemark.airflow.pages.registry import REPLACES, marked_work
from tidemark.airflow.replay import chosen_file
from tidemark.airflow.steps import SparkStepOperator, end_with_reason, failure, provide_connection
from tidemark.app.job import Order
from tidemark.core.errors import TidemarkError

if TYPE_CHECKING:
    from airflow.sdk import Context


PROMOTE, ABORT, LEAVE = "Promote", "Abort", "Leave it"
NONE = "none"
"""The identity of no candidate."""


class ReplacePlanOperator(BaseOperator):
    """Show what the pipeline file would change as a new generation; fail if it can't be started, or if the
    run is for a candidate that is no more.

    :param pipeline_files: pipeline names and their files
    """

    template_fields: Sequence[str] = ("environment",)
    ui_color = "#eef4e2"

    def __init__(
        self, *, pipeline_files: Mapping[str, str], environment: str | None = None, **kwargs: Any
    ) -> None:
        # The pages read it.
        kwargs.setdefault("doc_json", marked_work(REPLACES, pipeline_files, environment))
        super().__init__(**of_task("plan_generation", kwargs))
        self.pipeline_files = dict(pipeline_files)
        self.environment = environment
        end_with_reason(self)

    def execute(self, context: Context) -> Any:
        from tidemark.app import generation, tasks
        from tidemark.app.generation_plan import TOO_SHORT, plan

        params = context["params"]
        try:
            file = chosen_file(self.pipeline_files, params["pipeline"])
            provide_connection(file, self.environment)
            deployment = tasks.open_pipeline(file, self.environment)
            generations = generation.Generations(deployment)
            if params["candidate"]:
                generations.required(params["candidate"])
            replaces = params["replace"] or ()
            there = generations.going_on(
                since=params["txn_from"],
                until=params["txn_to"] or 0,
                from_now=params["from_now"],
                replaces=replaces,
            )
            if there is not None:
                self.log.info("there is a candidate already, %s: it goes on", there.identity)
                return {"started": True}
            found = plan(deployment, from_now=params["from_now"])
        except TidemarkError as error:
            raise failure(error) from error
        for one in found.settings:
            self.log.info("setting %s: %s now, %s then", one.name, one.before, one.after)
        for shard, what in found.shards.items():
            self.log.info("shard %s: %s", shard, what)
        self.log.info("%s", found.effort)
        if found.expires_first:
            self.log.warning("%s", TOO_SHORT)
        if found.caveat:
            self.log.warning("input may be gone sooner: %s", found.caveat)
        if found.refused:
            raise AirflowFailException("\n".join(["this generation can't be started:", *found.refused]))
        return {"started": False, "transactions": found.transactions, "records": found.records}


class GenerationOperator(SparkStepOperator):
    """One part of a replacement, on Spark if it needs Spark.

    :param pipeline_files: pipeline names and their files; the run's params choose the pipeline
    :param part: `follow` starts the candidate and lets it catch up, `compare` counts the rows that would
        change, `promote` puts it in charge
    """

    step = "generation"

    def __init__(self, *, pipeline_files: Mapping[str, str], part: str, **kwargs: Any) -> None:
        super().__init__(pipeline_file="", **kwargs)
        self.pipeline_files = dict(pipeline_files)
        self.part = part

    def order(self, context: Context, **more: Any) -> Order:
        params = context["params"]
        self.pipeline_file = chosen_file(self.pipeline_files, params["pipeline"])
        self.pipeline_shown = params["pipeline"]
        return super().order(
            context,
            mode=f"{self.part} from now" if params["from_now"] else self.part,
            txn_from=params["txn_from"],
            txn_to=params["txn_to"] or 0,
            reason=params["reason"],
            replace=",".join(params["replace"] or ()),
            wait_seconds=params["wait_seconds"],
            **self._answer(context),
            **more,
        )

    def _answer(self, context: Context) -> dict[str, str]:
        """Which candidate the run is about, and the user who has said to promote it, for the journal: in the
        answer, or by starting a run that does not ask. A candidate that was not compared is not promoted."""
        if self.part != "promote":
            return {"candidate": context["params"]["candidate"] or ""}
        answer = context["ti"].xcom_pull(task_ids="approve") or {}
        user = answer.get("user") or getattr(context["dag_run"], "triggering_user_name", None) or ""
        candidate = context["params"]["candidate"] or answer.get("candidate") or NONE
        return {"user": str(user), "candidate": str(candidate)}


class ApproveOperator(BaseOperator):
    """Wait for a person to promote or abort the candidate, unless the run says to promote at once.

    :param answer_within: how long it waits before it fails; the candidate stays
    """

    template_fields: Sequence[str] = ("environment", "compared")
    ui_color = "#f7e9c9"

    def __init__(
        self,
        *,
        pipeline_files: Mapping[str, str],
        compared: Any,
        environment: str | None = None,
        answer_within: timedelta = ANSWER_WITHIN,
        **kwargs: Any,
    ) -> None:
        super().__init__(**of_task("approve", kwargs))
        self.pipeline_files = dict(pipeline_files)
        self.compared = compared
        self.environment = environment
        self.answer_within = answer_within
        end_with_reason(self)

    def execute(self, context: Context) -> Any:
        params = context["params"]
        found = self.compared or {}
        candidate = str(found.get("candidate") or NONE)
        if params["promote"]:
            return {"choice": PROMOTE, "user": "", "candidate": candidate}
        self._ask(context, *question(params["pipeline"], found), candidate)
        return None

    def _ask(self, context: Context, subject: str, body: str, candidate: str) -> None:
        options, asked = [PROMOTE, ABORT, LEAVE], {"candidate": candidate}
        wait(context, options, subject, body, asked, self.answer_within)

    def answered(
        self, context: Context, asked: dict[str, str], options: list[str], event: dict[str, Any]
    ) -> Any:
        """Resume with a person's answer. It is about the candidate that the question was about."""
        from tidemark.app import generation, tasks

        try:
            choice, user, reason = answer_in(event, options)
            if choice == LEAVE:
                raise AirflowFailException(
                    f"{user} leaves the candidate as it is: clear this task to be asked"
                )
            if choice == ABORT:
                if not reason:
                    self.log.warning("%s has chosen %s without a reason, and is asked again", user, choice)
                    self._ask(context, "", "", asked["candidate"])
                file = chosen_file(self.pipeline_files, context["params"]["pipeline"])
                deployment = tasks.open_pipeline(file, self.environment)
                works = generation.Generations(deployment)
                works.abort(reason=f"{reason} ({user})", identity=asked["candidate"])
                raise AirflowFailException(f"{user} has aborted the candidate: {reason}")
        except TidemarkError as error:
            raise failure(error) from error
        self.log.info("%s promotes candidate %s", user, asked["candidate"])
        return {"choice": choice, "user": user, "candidate": asked["candidate"]}


def question(pipeline: str, found: Mapping[str, Any]) -> tuple[str, str]:
    """The subject and body of the question whether to promote a candidate, given what `compare` has
    found."""
    lines = [
        f"{shard}: {one['new']} new, {one['changed']} changed, {one['gone']} gone"
        for shard, one in (found.get("compared") or {}).items()
    ]
    others = found.get("others") or {"shards": 0}
    if others["shards"]:
        lines.append(
            f"and {others['shards']} more shards: {others['new']} new, {others['changed']} changed,"
            f" {others['gone']} gone"
        )
    if not lines:
        lines = ["No row changes: the new settings hold from now on."]
    name = f"generation {found.get('generation')}"
    if found.get("undoes"):
        name += f", which takes back generation {found['undoes']},"
    return f"Promote {name} of {pipeline}?", "```\n{}\n```".format("\n".join(lines))
