"""Running a step: without Spark when it needs none, else by `spark-submit` or over Spark Connect.

Which of the two is decided by the type of the task's connection. `spark` (`spark_default`) submits one of
the files of `jobs/` through the Spark provider. `spark_connect` (`spark_connect_default`) runs the same step
in the worker, on a server that is warm already.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, BaseOperatorLink
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tidemark.airflow.connections import provide_connection
from tidemark.airflow.documents import of_task
from tidemark.airflow.links import SparkLink, TransactionLink, txns_of
from tidemark.airflow.masters import CONNECT_TYPE, connect_url, master_of
from tidemark.airflow.runs import end_with_reason, failure, order_of
from tidemark.core.errors import Determinate, TidemarkError
from tidemark.core.sentence import step_sentence
from tidemark.job import Order, connected, failure_in, perform, submission, told_once

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.telling import Told


class SparkStepOperator(SparkSubmitOperator):
    """One step of a run, on Spark where it needs it.

    :param pipeline_file: the pipeline file; not a template, whatever its name looks like
    :param environment: which of the file's environments, `$TIDEMARK_ENVIRONMENT` by default (templated)
    :param conn_id: a Spark connection, or a Spark Connect one for warm, low-latency runs

    All parameters of `SparkSubmitOperator` may be given too; `conf` wins over what Tidemark sets.

    A job whose driver runs beside the task ends when the task is gone, however that died. Known limitation:
    a driver elsewhere on a cluster goes on. That is a second writer, and safe: the seal decides, and the one
    that comes second drops its work.
    """

    step: ClassVar[str]
    operator_extra_links: Collection[BaseOperatorLink] = (TransactionLink(), SparkLink())
    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "environment")
    ui_color = "#d6ecf2"

    def __init__(
        self,
        *,
        pipeline_file: str | Path,
        environment: str | None = None,
        conn_id: str = "spark_default",
        **kwargs: Any,
    ) -> None:
        # A retry is a new try with a token of its own, and reads the verdicts of that token: it must not
        # wait for the driver that an earlier try has left on a cluster.
        super().__init__(conn_id=conn_id, **{**of_task(self.step, kwargs), "durable": False})
        self.pipeline_file = str(pipeline_file)
        self.pipeline_shown, self.txns_shown = "", list[int]()
        self.environment = environment
        self._connected: Any = None
        end_with_reason(self)

    def order(self, context: Context, **more: Any) -> Order:
        return order_of(context, pipeline_file=self.pipeline_file, environment=self.environment, **more)

    def execute(self, context: Context) -> Told:  # type: ignore[override]
        """Do the step, and end its log with what it has done."""
        told = self.performed(context, self.order(context))
        self.txns_shown = txns_of(self.step, told)
        self.log.info("%s", step_sentence(self.step, told))
        return told

    def performed(self, context: Context, order: Order) -> Told:
        """Try without Spark; if the step asks for it, go on with Spark."""
        from tidemark.tasks import SparkNeeded

        try:
            provide_connection(order.pipeline_file, order.environment)
            return self.without_spark(order)
        except SparkNeeded:
            pass
        except TidemarkError as error:
            raise failure(error) from error
        try:
            return self.with_spark(context, order)
        except SparkNeeded:
            # Somebody has committed since the job ended, so that a state is due again.
            again = Determinate(f"there is more for {self.step} than its job has done", hint="retry")
            raise failure(again) from None
        except TidemarkError as error:
            raise failure(error) from error

    def without_spark(self, order: Order) -> Told:
        """The step, as far as the control plane goes."""
        from tidemark.tasks import open_pipeline

        deployment = open_pipeline(order.pipeline_file, order.environment or None)
        with told_once() as progress:
            return perform(self.step, deployment, order, progress)

    def with_spark(self, context: Context, order: Order) -> Told:
        if self.connects:
            return self.over_connection(order)
        self.submit(context, order)
        return self.after_submit(order)

    def after_submit(self, order: Order) -> Told:
        """What the job has done, from the durable facts that it left."""
        return self.without_spark(order)

    @cached_property
    def connects(self) -> bool:
        """Whether the connection is a Spark Connect one."""
        return bool(BaseHook.get_connection(self._conn_id).conn_type == CONNECT_TYPE)

    def submit(self, context: Context, order: Order) -> None:
        """Run the step's job through the provider's own operator."""
        found = BaseHook.get_connection(self._conn_id)
        deploy_mode = self._deploy_mode or found.extra_dejson.get("deploy-mode")
        how = submission(self.step, master=master_of(found), deploy_mode=deploy_mode)
        self.application = how.application
        self.jars = self.jars or how.jars
        self.conf = {**how.confs, **(self.conf or {})}
        self.name = f"tidemark {self.step} {Path(order.pipeline_file).stem}"
        self.application_args = order.arguments()
        self.env_vars = {**how.environment, **(self.env_vars or {})}
        try:
            super().execute(context)
        except AirflowException as error:
            told = failure_in(str(error))
            if told is None:
                raise
            kind = AirflowException if told["retry"] else AirflowFailException
            raise kind(told["message"]) from None

    def over_connection(self, order: Order) -> Told:
        """Run the step here, on the server that the connection names."""
        from tidemark.tasks import open_pipeline

        def session() -> Any:
            if self._connected is None:
                found = BaseHook.get_connection(self._conn_id)
                self._connected = connected(connect_url(found), found.password or None)
            return self._connected

        deployment = open_pipeline(order.pipeline_file, order.environment or None, session)
        try:
            return perform(self.step, deployment, order)
        finally:
            deployment.close()
            self.disconnect()

    def disconnect(self) -> None:
        if self._connected is not None:
            self._connected.stop()
            self._connected = None

    def on_kill(self) -> None:
        """End the Spark work: what runs on a server is interrupted, what was submitted is the provider's to
        end, a process here or a driver on a cluster."""
        if self._connected is not None:
            self._connected.interruptAll()
            self.disconnect()
        elif self._hook is not None:
            super().on_kill()
