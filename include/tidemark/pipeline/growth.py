"""Growth: columns that are new in a transaction's records, and that their shards get from them.

They go on record in the shards' logs before anything is staged with them, by put-if-absent, and then the
transaction is staged again by whoever has opened the pipeline with them. Transactions are staged in order and
the same records tell the same columns, so it doesn't matter who finds them, how often, or who dies after it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from tidemark.core.binding import Binding
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, WriterToken
from tidemark.core.seal import Fenced, Staged
from tidemark.core.shape import NewColumns, Shapes
from tidemark.pipeline.context import Pipeline, stage_open
from tidemark.ports.control import Control

logger = logging.getLogger(__name__)


def recorded_columns(control: Control, shapes: Shapes) -> dict[ShardId, Mapping[str, str]]:
    """The columns that the logs of growing shards have on record, each with its type as DDL."""
    growing = [shard for shard, shape in shapes.items() if shape.grows]
    found = {shard: control.log(shard).shape() for shard in growing}
    return {shard: shape.columns for shard, shape in found.items() if shape is not None}


def stage_growing(pipeline: Pipeline, binding: Binding, token: WriterToken) -> Staged:
    """Stage an open transaction; `NewColumns` once those that came up are on record."""
    try:
        return stage_open(pipeline, binding, token)
    except NewColumns as new:
        put_on_record(pipeline, new)
        raise


def put_on_record(pipeline: Pipeline, new: NewColumns) -> None:
    """Give the logs the columns, unless somebody has decided the transaction. One that a log has in another
    type stays as it is: its values are judged by that."""
    head = pipeline.control.seals.head()
    if pipeline.generation < head.generation:
        raise Fenced(new.txn, generation=pipeline.generation, newest=head.generation)
    shapes = pipeline.shapes_of(pipeline.configuration)
    for shard in new.columns if new.txn >= head.upper else ():
        log = pipeline.control.log(shard)
        base = log.shape() or shapes.get(shard)
        if base is not None:
            log.declare(replace(base, columns={**new.columns[shard], **base.columns}, grows=True))
            logger.info("shard %s gets columns of its records: %s", shard, dict(new.columns[shard]))


def not_taken(new: NewColumns) -> InvalidUsage:
    """Why a transaction can't have columns that are on record for it."""
    hint = "put its shards back as they were, run, and change them then; or skip it with a reason"
    return InvalidUsage(f"{new.fact}, and was bound for other shards than the pipeline file has", hint=hint)
