"""The base operators of a step: on the control plane alone, or with Spark where the step needs it.

A step that needs Spark runs by `spark-submit` or over Spark Connect.
The type of the task's connection chooses between the two. `spark` (`spark_default`) submits one of the files
of `jobs/` through the Spark provider. `spark_connect` (`spark_connect_default`) runs the same step in the
worker, on a warm server. Both connections are read as the Spark provider reads them, except that the token is
not part of the server's URL: the provider leaves a slash in the token unescaped, and PySpark then rejects the
URL and prints it with the token.

`order_of` maps an Airflow run to an owner. A retry keeps the run's `clear_number`, so it finishes the open
transactions. A clear, or a backfill over the same date, raises it, so the run's transactions are proven
again. A run is identified by its partition key, else its logical date, else its run id; `conf`, task instance
ids and try numbers play no part. The start date distinguishes it from a run of the same date that is no
longer in Airflow's database.

`provide_connection` resolves the source's connection. Airflow's connections may be in its database or in any
secrets backend, and only a task can read them. A step, in this process or in a submitted Spark job, reads the
environment. So the connection goes into this process's environment, which a submitted job inherits; it is on
no command line.
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
from airflow.sdk import BaseHook, BaseOperator, BaseOperatorLink, Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException

from tidemark.airflow.display import SparkLink, TransactionLink, of_task, txns_of
from tidemark.app.job import (
    Order,
    connected,
    failure_in,
    perform,
    progress_once,
    require_python_driver,
    submission,
)
from tidemark.config import KafkaSource, load_pipeline
from tidemark.config.source import PostgresSource
from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage, TidemarkError
from tidemark.core.text import step_sentence

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.app.deployment import Deployment
    from tidemark.app.reports import Report


CONNECT_TYPE = "spark_connect"
LOCAL = "local[*]"


def master_of(found: Connection) -> str:
    """The master's URL. In a connection made from a URI, the type is the scheme, apart from host and port."""
    if not found.host and not found.port:
        return LOCAL
    port = f":{found.port}" if found.port else ""
    if found.conn_type == "spark" and found.host and ("://" in found.host or not port):
        return f"{found.host}{port}"
    return f"{found.conn_type}://{found.host or ''}{port}"


def _variable_of(conn_id: str) -> str:
    """The environment variable that Airflow, and a job, reads a connection from."""
    return f"AIRFLOW_CONN_{conn_id.upper()}"


def connection_in_environment(conn_id: str) -> Connection | None:
    """The connection, if an environment variable has it. A DAG file, which is parsed every few seconds, asks
    no other backend; nor is a variable that can't be read an error before a task needs it."""
    text = os.environ.get(_variable_of(conn_id), "")
    with suppress(Exception):
        made = Connection.from_json if text.lstrip().startswith("{") else Connection.from_uri
        return made(text, conn_id=conn_id) if text else None
    return None


def connect_url(found: Connection) -> str:
    """The server's address, without the token. `InvalidUsage` if the connection has no host."""
    host = (found.host or "").removeprefix("sc://").rstrip("/")
    if not host:
        raise InvalidUsage(
            f"the connection {found.conn_id!r} has no host", hint="set the host of the connection"
        )
    given = {"user_id": found.login, "use_ssl": found.extra_dejson.get("use_ssl")}
    more = ";".join(f"{name}={quote(str(value), safe='')}" for name, value in given.items() if value)
    return f"sc://{host}{f':{found.port}' if found.port else ''}{f'/;{more}' if more else ''}"


def provide_connection(pipeline_file: str, environment: str | None) -> None:
    """Put the source's connection, if it names one, into the environment. A missing connection is no error
    here, since a replay of captured changes needs none; a step that needs it fails itself. Airflow's other
    errors pass through, and a retry may succeed."""
    name = _named_by(load_pipeline(pipeline_file, environment or None).source)
    if name is None:
        return
    try:
        found = BaseHook.get_connection(name)
    except AirflowNotFoundException:
        return
    os.environ[_variable_of(name)] = found.as_json()


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
    """The order for one try of a task of this run, with a new token."""
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
    """The error as an Airflow exception. An error that a retry can't resolve fails the task at once."""
    retries = isinstance(error, Determinate | Indeterminate)
    return AirflowException(str(error)) if retries else AirflowFailException(str(error))


def end_with_reason(operator: BaseOperator) -> None:
    """Make the log of a failed task end with the reason."""
    operator.on_failure_callback = [*operator.on_failure_callback, say_why]
    operator.on_retry_callback = [*operator.on_retry_callback, say_why]


def say_why(context: Context) -> None:
    """Log the reason for a failure again below Airflow's stack trace, where people look first. Airflow's UI
    folds the log group that is open at that point, so this closes it first."""
    why = context.get("exception")
    if why is not None:
        log = context["ti"].task.log
        log.info("::endgroup::")
        log.error("%s", str(why)[:WHY_CHARACTERS_MAX])


class SparkStepOperator(SparkSubmitOperator):
    """One step of a run, on Spark if it needs Spark.

    :param pipeline_file: the pipeline file; never rendered as a template
    :param environment: which of the file's environments, `$TIDEMARK_ENVIRONMENT` by default (templated)
    :param conn_id: a Spark connection, or a Spark Connect one for warm, low-latency runs

    All parameters of `SparkSubmitOperator` may be given too; `conf` overrides Tidemark's settings.

    A job whose driver runs beside the task ends with the task, however the task dies. Known limitation: a
    driver elsewhere on a cluster continues. It is then a second writer, which is safe: the seal decides, and
    the second writer drops its work.
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
        # A retry has its own token and reads the verdicts of that token: it must not wait for a driver that
        # an earlier try left on a cluster.
        super().__init__(conn_id=conn_id, **{**of_task(self.step, kwargs), "durable": False})
        self.pipeline_file = str(pipeline_file)
        self.pipeline_shown, self.txns_shown = "", list[int]()
        self.environment = environment
        self._connected: Any = None
        end_with_reason(self)
        found = connection_in_environment(conn_id)
        if found is not None and found.conn_type != CONNECT_TYPE:
            require_python_driver(master=master_of(found), deploy_mode=self.deploy_mode_with(found))

    def deploy_mode_with(self, found: Connection) -> str | None:
        """Where the driver runs: the operator's argument, the connection's setting, or Spark's own."""
        conf = self.conf if isinstance(self.conf, dict) else {}
        chosen = self._deploy_mode or found.extra_dejson.get("deploy-mode")
        return chosen or conf.get("spark.submit.deployMode")

    def order(self, context: Context, **more: Any) -> Order:
        return order_of(context, pipeline_file=self.pipeline_file, environment=self.environment, **more)

    def execute(self, context: Context) -> Report:  # type: ignore[override]
        """Run the step and log a summary at the end. Returns the step's report."""
        report = self.performed(context, self.order(context))
        self.txns_shown = txns_of(self.step, report)
        self.log.info("%s", step_sentence(self.step, report))
        return report

    def performed(self, context: Context, order: Order) -> Report:
        """Run the step; raises Tidemark's errors as Airflow exceptions."""
        try:
            provide_connection(order.pipeline_file, order.environment)
            return self.worked(context, order)
        except TidemarkError as error:
            raise failure(error) from error

    def worked(self, context: Context, order: Order) -> Report:
        """Try the step without Spark; if it raises `SparkNeeded`, run it with Spark."""
        from tidemark.app.tasks import SparkNeeded

        with suppress(SparkNeeded):
            return self.without_spark(order)
        try:
            return self.with_spark(context, order)
        except SparkNeeded:
            # Another run has committed since the job ended, and a state is due again.
            raise Determinate(
                f"the job of {self.step} has ended, and work is left for it", hint="retry"
            ) from None

    def without_spark(self, order: Order) -> Report:
        """Run the step on the control plane only; `SparkNeeded` if that is not enough."""
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
        """Report what the job has done, from what it has committed."""
        return self.without_spark(order)

    @cached_property
    def connects(self) -> bool:
        """Whether the task has a Spark Connect connection."""
        return bool(BaseHook.get_connection(self._conn_id).conn_type == CONNECT_TYPE)

    def submit(self, context: Context, order: Order) -> None:
        """Run the step's job through the provider's own operator."""
        found = BaseHook.get_connection(self._conn_id)
        how = submission(self.step, master=master_of(found), deploy_mode=self.deploy_mode_with(found))
        self.application = how.application
        self.jars = self.jars or how.jars
        self.conf = {**how.confs, **(self.conf or {})}
        self.name = f"tidemark {self.step} {Path(order.pipeline_file).stem}"
        self.application_args = order.arguments()
        self.env_vars = {**how.environment, **(self.env_vars or {})}
        try:
            super().execute(context)
        except AirflowException as error:
            failure = failure_in(str(error))
            if failure is None:
                raise
            kind = AirflowException if failure["retry"] else AirflowFailException
            raise kind(failure["message"]) from None

    def over_connection(self, order: Order) -> Report:
        """Run the step in this process, on the connection's Spark Connect server."""
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
        """End the Spark work. Operations on a Spark Connect server are interrupted. The Spark provider ends a
        submitted job, whether it is a local process or a driver on a cluster."""
        if self._connected is not None:
            self._connected.interruptAll()
            self.disconnect()
        elif self._hook is not None:
            super().on_kill()


class ControlOperator(BaseOperator):
    """A step that needs only the control plane, and so takes milliseconds.

    :param pipeline_file: the pipeline file; never rendered as a template
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
        from tidemark.app import tasks

        return tasks.open_pipeline(self.pipeline_file, self.environment)

    def work(self, context: Context, deployment: Deployment, order: Order) -> Any:
        raise NotImplementedError
