"""A shard as an Airflow asset: `x-tidemark://pipeline/shard`.

An event is a wake-up. Airflow may merge several into one run of a consumer, so a consumer reads the
transactions above its own frontier, and takes nothing from the event but the hint to look.

A run emits events through the pipeline's alias, for the shards that its transactions touched and no others:
a run that found nothing wakes nobody.
"""

from __future__ import annotations

from airflow.sdk import Asset, AssetAlias

from tidemark.core.ids import checked_name


def shard_asset(pipeline: str, shard: str) -> Asset:
    """The asset to schedule a downstream DAG on: `schedule=[shard_asset("shop", "orders")]`."""
    pipeline, shard = checked_name(pipeline, what="pipeline"), checked_name(shard, what="shard")
    return Asset(uri=f"x-tidemark://{pipeline}/{shard}", name=f"{pipeline}.{shard}")


def pipeline_alias(pipeline: str) -> AssetAlias:
    """What a pipeline's runs emit through."""
    return AssetAlias(f"tidemark.{checked_name(pipeline, what='pipeline')}")
