"""A shard as an Airflow asset, `x-tidemark://pipeline/shard`, and the tasks of downstream DAGs that read it.

    @dag(schedule=[shard_asset("shop", "orders")])
    def billing():
        @shard_task(pipeline_file="/path/to/shop.yaml", shard="orders", consumer="billing")
        def bill(batch):
            batch.frame.write.format("delta").options(**batch.once).mode("append").save("/path/to/bills")

        bill()

A run emits events through the pipeline's alias, and only for the shards that its transactions touched. A run
without new input emits none. An event only wakes the DAG: Airflow may merge several events into one run. So
a run of a consumer reads every transaction above the consumer's own frontier, and uses nothing from the
event. A run that finds nothing starts no Spark.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from airflow.sdk import Asset, AssetAlias, BaseHook, BaseOperator, BaseSensorOperator
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidemark.airflow.steps import CONNECT_TYPE, connect_url, failure, master_of
from tidemark.app.job import connected, driven
from tidemark.core.errors import Determinate, Indeterminate, TidemarkError
from tidemark.core.ids import ShardId, checked_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.app.consume import Consumer
    from tidemark.app.deployment import Deployment
    from tidemark.app.job import Order
    from tidemark.app.reports import Report
    from tidemark.pipeline.journal import Announcement


def shard_asset(pipeline: str, shard: str) -> Asset:
    """The asset to schedule a downstream DAG on: `schedule=[shard_asset("shop", "orders")]`."""
    pipeline, shard = checked_name(pipeline, what="pipeline"), checked_name(shard, what="shard")
    return Asset(uri=f"x-tidemark://{pipeline}/{shard}", name=f"{pipeline}.{shard}")


def pipeline_alias(pipeline: str) -> AssetAlias:
    """The alias that a pipeline's runs emit events through."""
    return AssetAlias(f"tidemark.{checked_name(pipeline, what='pipeline')}")


class Announcing(BaseOperator):
    """A task that emits events for shards and records them in the journal.

    Whenever a task succeeds, Airflow emits an event for every asset among its outlets. The shards' assets are
    outlets for the DAG's graph only, so that they have a producer before the first run. When the task runs,
    `pre_execute` removes them, and the shards with new transactions are emitted through the alias.

    :param pipelines: the names of the pipelines that the task may emit events for
    :param shards: if there is one pipeline, its shards that are known before any run
    """

    def __init__(self, *, pipelines: Sequence[str], shards: Sequence[str] = (), **kwargs: Any) -> None:
        self.aliases = {name: pipeline_alias(name) for name in pipelines}
        self.shown_assets = [shard_asset(name, shard) for name in pipelines for shard in shards]
        outlets = [*kwargs.get("outlets", ()), *self.aliases.values(), *self.shown_assets]
        super().__init__(**{**kwargs, "outlets": outlets})
        self.note_announced: Callable[[], None] = _nothing

    def pre_execute(self, context: Context) -> None:
        """Remove the outlets that Airflow would emit even if there is nothing new."""
        self.outlets = [one for one in self.outlets if one not in self.shown_assets]
        super().pre_execute(context)

    def announce(
        self,
        context: Context,
        deployment: Deployment,
        order: Order,
        shards: Mapping[str, Report],
        announcements: Sequence[Announcement],
    ) -> None:
        """Emit an event with its report for each shard."""
        from tidemark.pipeline.journal import note_announced

        pipeline = deployment.config.name
        events = context["outlet_events"][self.aliases[pipeline]]
        for shard, facts in shards.items():
            events.add(shard_asset(pipeline, shard), extra={**facts, "run_id": order.run_id})
        self.note_announced = lambda: note_announced(deployment.pipeline, order.attempt, announcements)


def _nothing() -> None:
    """The callback before anything is announced."""


def note_events(context: Context) -> None:
    """Record the announced events in the journal. This is an `on_success_callback`, because Airflow accepts
    the events only when the task has succeeded."""
    cast("Announcing", context["ti"].task).note_announced()


POKE_SECONDS = 10.0


def upper_of(pipeline_file: str, environment: str | None, shard: str) -> int:
    """The shard's upper: the first transaction that can't be read there yet. Transactions that don't touch
    the shard count as readable. Reads a few kilobytes."""
    from tidemark.app.tasks import open_pipeline
    from tidemark.pipeline.listing import readable_upper

    deployment = open_pipeline(pipeline_file, environment)
    name = ShardId(deployment.config.shard(shard).name)
    return int(readable_upper(deployment.control, name))


class ShardUpperTrigger(BaseTrigger):
    """Fires when a shard's upper is above a transaction, or on an error that waiting can't resolve."""

    def __init__(
        self, *, pipeline_file: str, environment: str | None, shard: str, txn: int, poke_seconds: float
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline_file = pipeline_file
        self.environment = environment
        self.shard = shard
        self.txn = txn
        self.poke_seconds = poke_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("pipeline_file", "environment", "shard", "txn", "poke_seconds")
        return f"{__name__}.ShardUpperTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while True:
            upper = 0
            try:
                upper = await asyncio.to_thread(upper_of, self.pipeline_file, self.environment, self.shard)
            except (Determinate, Indeterminate) as error:
                self.log.warning("the source is asked again: %s", error)
            except TidemarkError as error:
                yield TriggerEvent({"error": str(error)})  # type: ignore[no-untyped-call]
                return
            if upper > self.txn:
                yield TriggerEvent({"upper": upper})  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(self.poke_seconds)


class ShardUpperSensor(BaseSensorOperator):
    """Wait until a shard's upper is above a transaction, deferred. Returns the upper.

    :param pipeline_file: the pipeline file; not a template
    :param shard: the shard (templated)
    :param txn: the transaction to wait for (templated)
    :param environment: which of the file's environments (templated)
    :param timeout: seconds after which it fails
    """

    template_fields: Sequence[str] = ("shard", "txn", "environment")
    ui_color = "#eef4e2"

    def __init__(
        self,
        *,
        pipeline_file: str | Path,
        shard: str,
        txn: int | str,
        environment: str | None = None,
        poke_interval: float = POKE_SECONDS,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.pipeline_file = str(pipeline_file)
        self.shard = shard
        self.txn = txn
        self.environment = environment

    def poke(self, context: Context) -> bool:
        return self._upper() > int(self.txn)

    def _upper(self) -> int:
        """The shard's upper; 0 after a transient error, so that the sensor tries again."""
        try:
            return upper_of(self.pipeline_file, self.environment, self.shard)
        except (Determinate, Indeterminate) as error:
            self.log.warning("the source is asked again: %s", error)
            return 0
        except TidemarkError as error:
            raise failure(error) from error

    def execute(self, context: Context) -> Any:
        upper = self._upper()
        if upper > int(self.txn):
            return upper
        trigger = ShardUpperTrigger(
            pipeline_file=self.pipeline_file,
            environment=self.environment,
            shard=self.shard,
            txn=int(self.txn),
            poke_seconds=self.poke_interval,
        )
        self.defer(trigger=trigger, method_name="reached", timeout=timedelta(seconds=self.timeout))
        return None

    def reached(self, context: Context, event: dict[str, Any]) -> int:
        """Return the upper after the trigger has fired; fail if it carries an error."""
        if "error" in event:
            raise AirflowFailException(event["error"])
        self.log.info("shard %s has passed transaction %s: upper %s", self.shard, self.txn, event["upper"])
        return int(event["upper"])


BATCH: Final = "batch"
TTL_SECONDS: Final = 60.0


class ShardConsumerOperator(BaseOperator):
    """Call a function with every batch of a shard above a consumer's frontier.

    The batch counts as delivered when the function returns. If the function raises, the task fails and the
    next try gets the same batch, with the same end. Writes with `batch.once` happen exactly once, all other
    effects at least once.

    :param python_callable: takes the batch (`tidemark.app.consume.Batch`), and `op_kwargs` (templated)
    :param pipeline_file: the pipeline file of the shard; not a template
    :param shard: the shard (templated)
    :param consumer: the consumer's name, which identifies its frontier (templated)
    :param environment: which of the file's environments, `$TIDEMARK_ENVIRONMENT` by default (templated)
    :param snapshot: start a new consumer with the shard's current rows, as one batch; also one that agrees to
        the replacement of its shard (`batch.is_snapshot`)
    :param reading: more parameters of `tidemark.Consumer`: `where`, `limits`, `start`, `accept`,
        `ttl_seconds`
    :param conn_id: a Spark Connect connection, or a Spark connection whose driver can run in this worker

    Known limitation: the function runs in the worker, so with a Spark connection the driver does too.
    """

    template_fields: Sequence[str] = ("environment", "shard", "consumer", "op_kwargs")
    ui_color = "#e6e0f4"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        pipeline_file: str | Path,
        shard: str,
        consumer: str,
        environment: str | None = None,
        snapshot: bool = False,
        reading: Mapping[str, Any] | None = None,
        conn_id: str = "spark_default",
        **kwargs: Any,
    ) -> None:
        self.op_kwargs = kwargs.pop("op_kwargs", None) or {}
        super().__init__(**kwargs)
        self.python_callable = python_callable
        self.pipeline_file = str(pipeline_file)
        self.shard = shard
        self.consumer = consumer
        self.environment = environment
        self.snapshot = snapshot
        self.reading = {"ttl_seconds": TTL_SECONDS, **(reading or {})}
        self.conn_id = conn_id
        self._reader: Consumer | None = None
        self._session: Any = None

    def execute(self, context: Context) -> Any:
        """Deliver all batches; returns the consumer's old and new frontier and the number of batches."""
        from tidemark.app.consume import Consumer
        from tidemark.app.tasks import open_pipeline

        try:
            deployment = open_pipeline(self.pipeline_file, self.environment, self._spark)
            self._reader = Consumer(deployment, self.shard, self.consumer, **self.reading)
            with self._reader as reader:
                return self._deliver(reader)
        except TidemarkError as error:
            raise failure(error) from error
        finally:
            self._disconnect()

    def _deliver(self, reader: Consumer) -> dict[str, int]:
        first, batches = reader.frontier, 0
        if self.snapshot and (reader.is_new or reader.needs_snapshot):
            batches += self._call(reader.snapshot())
        for batch in reader.listen():
            batches += self._call(batch)
        self.log.info("%s batches; %s is at transaction %s", batches, self.consumer, reader.frontier)
        return {"txn_from": first, "upper": reader.frontier, "batches": batches}

    def _call(self, batch: Any) -> int:
        self.log.info("transactions %s to %s", batch.lower, batch.txn)
        for txn, reason in batch.skipped.items():
            self.log.warning("transaction %s is skipped: %s", txn, reason)
        self.python_callable(**{BATCH: batch, **self.op_kwargs})
        return 1

    def _spark(self) -> Any:
        if self._session is None:
            found = BaseHook.get_connection(self.conn_id)
            if found.conn_type == CONNECT_TYPE:
                self._session = connected(connect_url(found), found.password or None)
            else:
                self._session = driven(self.task_id, master_of(found))
        return self._session

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.stop()
            self._session = None

    def on_kill(self) -> None:
        """Stop reading. The lease is released when the task unwinds, and the batch is delivered again."""
        if self._reader is not None:
            self._reader.stop()
        self._disconnect()


class _ShardDecoratedOperator(DecoratedOperator, ShardConsumerOperator):
    """The operator behind `shard_task`."""

    custom_operator_name = "@shard_task"
    template_fields: Sequence[str] = ShardConsumerOperator.template_fields

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        signature = inspect.signature(python_callable)
        if BATCH not in signature.parameters:
            raise TypeError(f"{python_callable.__name__} needs a parameter {BATCH!r}")
        nameless = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
        for one in signature.parameters.values():
            if one.kind in nameless:
                raise TypeError(f"{python_callable.__name__} can't be given {one.name!r} by name")
        # The batch is passed when the task runs; the call in the DAG file passes the other arguments.
        given = [
            one.replace(default=None, kind=inspect.Parameter.KEYWORD_ONLY) if one.name == BATCH else one
            for one in signature.parameters.values()
        ]
        given.sort(key=lambda one: one.kind)
        signature = signature.replace(parameters=given)
        python_callable.__signature__ = signature  # type: ignore[attr-defined]
        # Positional arguments become named ones: one field to render and to find upstream tasks in.
        placed, named = kwargs.pop("op_args", None) or (), kwargs.pop("op_kwargs", None) or {}
        signature.bind_partial(*placed, **named)
        named = {**signature.bind_partial(*placed).arguments, **named}
        upstream = {"python_callable": python_callable, "op_kwargs": named}
        super().__init__(
            python_callable=python_callable, op_kwargs=named, kwargs_to_upstream=upstream, **kwargs
        )

    def execute(self, context: Context) -> Any:
        return ShardConsumerOperator.execute(self, context)


def shard_task(
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Turn a function that takes a `batch` into a task, with the parameters of `ShardConsumerOperator`."""
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_ShardDecoratedOperator,
        **kwargs,
    )
