"""The Python interface to `tidemark run`, `publish` and `quarantine`:

    import tidemark

    done = tidemark.run("pipelines/orders.yaml")
    print(done.run_id, done.report.checkpoint, done.published)
    tidemark.publish("pipelines/orders.yaml", shard="orders")
    bad = tidemark.quarantine("pipelines/orders.yaml", txn=3)

Each function does the same as the command with its name. Every error belongs to one of the four families,
which say whether a retry helps. A pipeline is given as a result of `load_pipeline`, as the path of its file,
or by its name. Without a `spark` session, a call uses the warm Spark or starts its own, as the command does.
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
    """Bind new input, append every open transaction to its logs, and publish the states that are due."""
    deployment = open_deployment(pipeline, environment, spark=spark, binds=True)
    try:
        attempt = new_attempt(run_id)
        with lineage.emitted(deployment, attempt.owner.run_id) as emit:
            worked = run_and_publish(
                deployment, attempt, transactions_max=transactions_max, publishes=publishes
            )
            emit(worked.report)
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
    """Publish all states, or the state of one shard, now, regardless of the publish policy."""
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
    """The records that could not be applied, the newest first, each with its place and the reason.

    `only_open` selects the records whose key has had no good record since; this needs Spark. Values of masked
    columns are shown as ***."""
    deployment = open_deployment(pipeline, environment, spark=spark)
    return quarantined_records(deployment, txn=txn, only_open=only_open, limit=limit)
