"""The command's verbs as Python calls, by one import:

    import tidemark

    done = tidemark.run("pipelines/orders.yaml")
    print(done.run_id, done.report.checkpoint, done.published)
    tidemark.publish("pipelines/orders.yaml", shard="orders")
    bad = tidemark.quarantine("pipelines/orders.yaml", txn=3)

Each does what the command of its name does. Errors are of the four families, which say whether a retry helps.
A pipeline is what `load_pipeline` returned, its file's path, or its name as to the command. Without a `spark`
session the call finds or starts one as the command does: the warm Spark, or one of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.app import lineage, metrics
from tidemark.app.bad_records import quarantined_records
from tidemark.app.publish import RunResult, publish_now, run_and_publish
from tidemark.app.workspace import chosen_shards, new_attempt, open_deployment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.app.workspace import AnyPipeline
    from tidemark.core.ids import ShardId
    from tidemark.core.publish import Published, UpToDate
    from tidemark.pipeline.publish import NotDue

__all__ = ["publish", "quarantine", "run"]


def run(
    pipeline: AnyPipeline,
    *,
    environment: str | None = None,
    spark: SparkSession | None = None,
    run_id: str | None = None,
    transactions_max: int | None = None,
    publishes: bool = True,
) -> RunResult:
    """Bind new input, bring every open transaction to its logs, and publish what is due."""
    deployment = open_deployment(pipeline, environment, spark=spark, binds=True)
    try:
        attempt = new_attempt(run_id)
        with lineage.emitted(deployment, attempt.owner.run_id) as told_lineage:
            worked = run_and_publish(
                deployment, attempt, transactions_max=transactions_max, publishes=publishes
            )
            told_lineage(worked.report)
        metrics.send(metrics.opentelemetry_sink(), lambda: metrics.of_report(deployment, worked.report))
        return worked
    finally:
        deployment.close()


def publish(
    pipeline: AnyPipeline,
    *,
    shard: str | None = None,
    environment: str | None = None,
    spark: SparkSession | None = None,
) -> dict[ShardId, Published | UpToDate | NotDue]:
    """Bring the states, or one, up to their logs now, whatever the publish policy says."""
    deployment = open_deployment(pipeline, environment, spark=spark)
    try:
        return publish_now(deployment, new_attempt(), chosen_shards(deployment, shard))
    finally:
        deployment.close()


def quarantine(
    pipeline: AnyPipeline,
    *,
    txn: int | None = None,
    only_open: bool = False,
    limit: int = 1_000,
    environment: str | None = None,
    spark: SparkSession | None = None,
) -> list[dict[str, Any]]:
    """The records that could not be applied, the newest first, each with its place and the reason; with
    `only_open`, those whose key has had no good record since, which takes Spark. Values of masked columns are
    shown as ***."""
    deployment = open_deployment(pipeline, environment, spark=spark)
    return quarantined_records(deployment, txn=txn, only_open=only_open, limit=limit)
