"""What a task's connection says of Spark: the master of a `spark` one, the address of a `spark_connect` one.

Both as the Spark provider reads them. Its own URL of a server leaves a slash in the token as it is, and
PySpark then refuses the URL and quotes it: here the token is no part of it.

The connection that a pipeline's source names, put where a step looks for it.

Airflow's connections may be in its database or in any secrets backend, and only a task can ask for them. A
step, here or in a Spark job that this task submits, reads the environment: so the connection goes into this
process's own, which a submitted job inherits. It is on no command line.

From Airflow's idea of a run to Tidemark's: who owns what, and what a try asks for.

A retry keeps the run's `clear_number`, so it finishes what is missing. A clear, or a backfill over the same
date, raises it, so what the run owns is proven again. The run itself is named by its partition key, else its
logical date, else its run id; `conf`, task instance ids and try numbers decide nothing. When it began tells
it from a run of the same date that this Airflow has forgotten.

Running a step: without Spark when it needs none, else by `spark-submit` or over Spark Connect.

Which of the two is decided by the type of the task's connection. `spark` (`spark_default`) submits one of
the files of `jobs/` through the Spark provider. `spark_connect` (`spark_connect_default`) runs the same step
in the worker, on a server that is warm already.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, BaseOperatorLink
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException

from tidemark.airflow.display import SparkLink, TransactionLink, of_task, txns_of
from tidemark.app.job import Order, connected, failure_in, perform, progress_once, submission
from tidemark.config import KafkaSource, load_pipeline
from tidemark.config.source import PostgresSource
from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage, TidemarkError
from tidemark.core.summary import step_sentence

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Connection, Context

    from tidemark.app.reports import Report


CONNECT_TYPE = "spark_connect"
LOCAL = "local[*]"


def master_of(found: Connection) -> str:
    """The master: of a connection from a URI its scheme is the type, and host and port stand apart."""
    if not found.host and not found.port:
        return LOCAL
    port = f":{found.port}" if found.port else ""
    if found.conn_type == "spark" and found.host and ("://" in found.host or not port):
        return f"{found.host}{port}"
    return f"{found.conn_type}://{found.host or ''}{port}"


def connect_url(found: Connection) -> str:
    """The server's address, without the token. `InvalidUsage` where the connection has no host."""
    host = (found.host or "").removeprefix("sc://").rstrip("/")
    if not host:
        raise InvalidUsage(f"the connection {found.conn_id!r} has no host", hint="give it the server's name")
    given = {"user_id": found.login, "use_ssl": found.extra_dejson.get("use_ssl")}
    more = ";".join(f"{name}={quote(str(value), safe='')}" for name, value in given.items() if value)
    return f"sc://{host}{f':{found.port}' if found.port else ''}{f'/;{more}' if more else ''}"


def provide_connection(pipeline_file: str, environment: str | None) -> None:
    """Look the source's connection up, if it has one. Whoever needs one that is not there says so itself: a
    replay of captured changes needs none. Any other failure is Airflow's own, and a retry may do."""
    name = _named_by(load_pipeline(pipeline_file, environment or None).source)
    if name is None:
        return
    try:
        found = BaseHook.get_connection(name)
    except AirflowNotFoundException:
        return
    os.environ[f"AIRFLOW_CONN_{name.upper()}"] = found.as_json()


def _named_by(source: object) -> str | None:
    match source:
        case KafkaSource():
            return source.kafka_config_id
        case PostgresSource():
            return source.postgres_conn_id
        case _:
            return None


WHY_CHARACTERS_MAX: Final = 8_000


def order_of(context: Context, *, pipeline_file: str, environment: str | None, **more: Any) -> Order:
    """What one try of a task of this run is asked to do."""
    from tidemark.app.deployment import new_token

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

    def execute(self, context: Context) -> Report:  # type: ignore[override]
        """Do the step, and end its log with what it has done."""
        told = self.performed(context, self.order(context))
        self.txns_shown = txns_of(self.step, told)
        self.log.info("%s", step_sentence(self.step, told))
        return told

    def performed(self, context: Context, order: Order) -> Report:
        """Do the step, with errors as Airflow knows them."""
        try:
            provide_connection(order.pipeline_file, order.environment)
            return self.worked(context, order)
        except TidemarkError as error:
            raise failure(error) from error

    def worked(self, context: Context, order: Order) -> Report:
        """Try without Spark; if the step asks for it, go on with Spark."""
        from tidemark.app.tasks import SparkNeeded

        with suppress(SparkNeeded):
            return self.without_spark(order)
        try:
            return self.with_spark(context, order)
        except SparkNeeded:
            # Somebody has committed since the job ended, so that a state is due again.
            raise Determinate(f"there is more for {self.step} than its job has done", hint="retry") from None

    def without_spark(self, order: Order) -> Report:
        """The step, as far as the control plane goes."""
        from tidemark.app.tasks import open_pipeline

        deployment = open_pipeline(order.pipeline_file, order.environment or None)
        with progress_once() as progress:
            return perform(self.step, deployment, order, progress)

    def with_spark(self, context: Context, order: Order) -> Report:
        if self.connects:
            return self.over_connection(order)
        self.submit(context, order)
        return self.after_submit(order)

    def after_submit(self, order: Order) -> Report:
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

    def over_connection(self, order: Order) -> Report:
        """Run the step here, on the server that the connection names."""
        from tidemark.app.tasks import open_pipeline

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
