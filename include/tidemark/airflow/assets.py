"""A shard as an Airflow asset: `x-tidemark://pipeline/shard`.

An event is a wake-up. Airflow may merge several into one run of a consumer, so a consumer reads the
transactions above its own frontier, and takes nothing from the event but the hint to look.

A run emits events through the pipeline's alias, for the shards that its transactions touched and no others:
a run that found nothing wakes nobody.
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
    """What a pipeline's runs emit through."""
    return AssetAlias(f"tidemark.{checked_name(pipeline, what='pipeline')}")


class Announcing(BaseOperator):
    """A task that emits events of shards, and puts on record what it has announced.

    Airflow emits an event of every asset among a task's outlets whenever the task succeeds. So the shards'
    assets are outlets for the DAG's graph only, where they have a producer before the first run: when the
    task runs they are taken out, and what has something new is emitted through the alias.

    :param pipelines: the names of the pipelines that it may speak of
    :param shards: the shards of the pipeline, if it is one, that are known before any run
    """

    def __init__(self, *, pipelines: Sequence[str], shards: Sequence[str] = (), **kwargs: Any) -> None:
        self.aliases = {name: pipeline_alias(name) for name in pipelines}
        self.shown_assets = [shard_asset(name, shard) for name in pipelines for shard in shards]
        outlets = [*kwargs.get("outlets", ()), *self.aliases.values(), *self.shown_assets]
        super().__init__(**{**kwargs, "outlets": outlets})
        self.note_announced: Callable[[], None] = _nothing

    def pre_execute(self, context: Context) -> None:
        """Leave nothing among the outlets that would be emitted whether or not there is something new."""
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
        """Emit what is told of each shard."""
        from tidemark.pipeline.announce import note_announced

        pipeline = deployment.config.name
        events = context["outlet_events"][self.aliases[pipeline]]
        for shard, facts in shards.items():
            events.add(shard_asset(pipeline, shard), extra={**facts, "run_id": order.run_id})
        self.note_announced = lambda: note_announced(deployment.pipeline, order.attempt, announcements)


def _nothing() -> None:
    """Nothing was announced yet."""


def note_events(context: Context) -> None:
    """Put on record what a task has announced: for its `on_success_callback`, since Airflow takes in events
    when the task has succeeded."""
    cast("Announcing", context["ti"].task).note_announced()
