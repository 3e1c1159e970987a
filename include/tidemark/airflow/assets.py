"""A shard as an Airflow asset: `x-tidemark://pipeline/shard`.

An event only wakes a consumer. Airflow may merge several events into one run of a consumer, so a consumer
reads all transactions above its own frontier and uses nothing from the event.

A run emits events through the pipeline's alias, and only for the shards that its transactions touched. A run
without new input emits none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import Asset, AssetAlias, BaseOperator

from tidemark.core.ids import checked_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.app.deployment import Deployment
    from tidemark.app.job import Order
    from tidemark.app.reports import Report
    from tidemark.pipeline.announce import Announcement


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
        from tidemark.pipeline.announce import note_announced

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
