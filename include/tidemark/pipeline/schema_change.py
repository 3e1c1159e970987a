"""Schema changes: whether a pipeline file fits the warehouse, and columns that records add to a shard.

*Fit*: the pipeline file is compared with the shapes on record before anything is bound, before a
transaction is staged, and by commands that only report. The seal checks once more, in its own decision, for
the shards that it touches (Invariant 17).

*Growth*: columns that are new in a transaction's records go on record in the shards' logs, by
put-if-absent, before anything is staged with them. Then the transaction is staged again by a pipeline that
was opened with them. Transactions are staged in order and the same records give the same columns, so it
does not matter which process finds them, how often, or whether it dies afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from tidemark.core.binding import Binding, Configuration, settings_of
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import QUARANTINE, ShardId, Txn, WriterToken
from tidemark.core.seal import TOUCHED, Decision, Fenced, Staged, is_fenced
from tidemark.core.shape import Misfit, NewColumns, Shapes, misfit, new_columns
from tidemark.pipeline.context import Pipeline, last_binding, sealed_binding, stage_open
from tidemark.ports.control import Control

NAME_AGAIN = (
    "restore it, and run again; to continue without it, raise `generation`, then `tidemark generation start"
    " PIPELINE --from-now` and `promote`: its table does not change, and a shard with another name starts"
    " without its rows"
)


# Fit.


@dataclass(frozen=True, slots=True)
class Fit:
    """The comparison of the pipeline file with the warehouse: the reasons to refuse a run, if any; the shards
    that have rows and are not in the file, each with its last transaction; and the shards and columns that
    the next run would add."""

    refused: tuple[Misfit, ...] = ()
    left_out: Mapping[ShardId, Txn] = field(default_factory=dict)
    begun: tuple[ShardId, ...] = ()
    added: Mapping[ShardId, tuple[str, ...]] = field(default_factory=dict)


def fit_of(pipeline: Pipeline, *, looks_ahead: bool = True) -> Fit:
    """Compare the pipeline file with the warehouse. Writes nothing. Without `looks_ahead`, the shards that
    the next run would add are left out."""
    declared = pipeline.shapes_of(pipeline.configuration)
    if not declared:
        return Fit()
    changed = _changed(pipeline, declared)
    refused = [found for shard in changed if (found := _misfit(pipeline, shard, declared)) is not None]
    others = left_out(pipeline)
    refused += _given_up(pipeline, declared, others)
    there = frozenset(pipeline.control.shards()) if looks_ahead else frozenset()
    begun = tuple(shard for shard in declared if shard not in there) if there else ()
    return Fit(tuple(refused), others, begun, {} if refused else _added(pipeline, changed, declared))


def require_shapes(pipeline: Pipeline, configuration: Configuration) -> None:
    """Raise `Misfit` where rows made with this configuration would not fit their logs."""
    declared = pipeline.shapes_of(configuration)
    changed = _changed(pipeline, declared) if declared else ()
    _raise([found for shard in changed if (found := _misfit(pipeline, shard, declared)) is not None])


def require_named(pipeline: Pipeline) -> None:
    """Raise `Misfit` where the pipeline file leaves out shards that have rows, or that a transaction is bound
    for."""
    declared = pipeline.shapes_of(pipeline.configuration)
    last = last_binding(pipeline, pipeline.control.bindings.head())
    if declared and last is not None and last.configuration != pipeline.configuration:
        _raise(_given_up(pipeline, declared, left_out(pipeline)))


def fits(pipeline: Pipeline, configuration: Configuration) -> bool:
    """Whether rows made with this configuration fit their logs."""
    try:
        require_shapes(pipeline, configuration)
    except Misfit:
        return False
    return True


def configuration_of(pipeline: Pipeline, binding: Binding) -> Configuration:
    """The configuration that an open transaction is staged with (`context.stage_open`)."""
    return settings_of(binding, pipeline.configuration) or binding.configuration


def _raise(refused: Collection[Misfit]) -> None:
    if refused:
        hints = dict.fromkeys(one.hint for one in refused)
        raise Misfit("; ".join(one.fact for one in refused), hint="; ".join(hints))


def _changed(pipeline: Pipeline, declared: Shapes) -> list[ShardId]:
    """The shards whose shape has to be compared with their log: all that have one but those whose shape is
    that of the newest sealed transaction, which was compared itself. Ten thousand unchanged shards cost
    nothing."""
    upper = pipeline.control.seals.head().upper
    before: Shapes = {}
    for seal in pipeline.control.seals.read(upper - 1, upper):
        if seal.decision not in (Decision.SKIPPED, Decision.LOST):
            before = _readable_shapes(pipeline, sealed_binding(pipeline, seal).configuration)
    if before is declared:
        return []
    changed = [shard for shard in declared if before.get(shard) != declared[shard]]
    there = frozenset(pipeline.control.shards()) if changed else frozenset()
    return [shard for shard in changed if shard in there]


def _readable_shapes(pipeline: Pipeline, configuration: Configuration) -> Shapes:
    try:
        return pipeline.shapes_of(configuration)
    except InvalidUsage:
        return {}  # Another version of Tidemark recorded settings that this one can't read.


def _misfit(pipeline: Pipeline, shard: ShardId, declared: Shapes) -> Misfit | None:
    return misfit(shard, recorded=pipeline.control.log(shard).shape(), declared=declared[shard])


def _added(
    pipeline: Pipeline, shards: Collection[ShardId], declared: Shapes
) -> dict[ShardId, tuple[str, ...]]:
    shapes = {shard: pipeline.control.log(shard).shape() for shard in shards}
    found = {
        shard: new_columns(recorded=recorded, declared=declared[shard])
        for shard, recorded in shapes.items()
        if recorded is not None
    }
    return {shard: columns for shard, columns in found.items() if columns}


def left_out(pipeline: Pipeline) -> dict[ShardId, Txn]:
    """The shards that rows were sealed for and that are not in the file, each with its last transaction."""
    declared = pipeline.shapes_of(pipeline.configuration)
    pipeline.control.seals.head()
    touched = pipeline.control.seals.marked(TOUCHED) if declared else {}
    return {
        ShardId(shard): Txn(txn)
        for shard, txn in touched.items()
        if shard not in declared and shard != QUARANTINE
    }


def _given_up(pipeline: Pipeline, declared: Shapes, others: Mapping[ShardId, Txn]) -> list[Misfit]:
    """A misfit for each shard that the newest binding was made for and the file leaves out. Empty if the file
    has a higher generation: then leaving them out was a decision."""
    last = last_binding(pipeline, pipeline.control.bindings.head())
    if last is None or last.configuration == pipeline.configuration:
        return []  # It was made for the shards of this file.
    if pipeline.generation > last.configuration.generation:
        return []
    is_open = last.txn >= pipeline.control.seals.head().upper
    found: list[Misfit] = []
    for name in last.configuration.shards:
        shard = ShardId(name)
        if shard in declared or not (is_open or shard in others):
            continue
        has = (
            f"has rows up to transaction {others[shard]}"
            if shard in others
            else (f"has transaction {last.txn} bound for it")
        )
        fact = f"shard {shard} {has}, but is not in the pipeline file"
        found.append(Misfit(fact, hint=NAME_AGAIN))
    return found


# Growth.

logger = logging.getLogger(__name__)


def recorded_columns(control: Control, shapes: Shapes) -> dict[ShardId, Mapping[str, str]]:
    """The columns that the logs of growing shards have on record, each with its type as DDL."""
    growing = [shard for shard, shape in shapes.items() if shape.grows]
    found = {shard: control.log(shard).shape() for shard in growing}
    return {shard: shape.columns for shard, shape in found.items() if shape is not None}


def stage_growing(pipeline: Pipeline, binding: Binding, token: WriterToken) -> Staged:
    """Stage an open transaction. Where it has new columns, put them on record and raise `NewColumns`."""
    try:
        return stage_open(pipeline, binding, token)
    except NewColumns as new:
        put_on_record(pipeline, new)
        raise


def put_on_record(pipeline: Pipeline, new: NewColumns) -> None:
    """Add the columns to the logs' shapes, unless the transaction is decided. A column that a log has in
    another type stays as it is: values are judged by that type."""
    head = pipeline.control.seals.head()
    if is_fenced(pipeline.generation, newest=head.generation, sealed_upper=head.upper):
        raise Fenced(new.txn, generation=pipeline.generation, newest=head.generation)
    shapes = pipeline.shapes_of(pipeline.configuration)
    for shard in new.columns if new.txn >= head.upper else ():
        log = pipeline.control.log(shard)
        base = log.shape() or shapes.get(shard)
        if base is not None:
            log.declare(replace(base, columns={**new.columns[shard], **base.columns}, grows=True))
            logger.info("shard %s gets new columns from its records: %s", shard, dict(new.columns[shard]))


def not_taken(new: NewColumns) -> InvalidUsage:
    """The error for a transaction that can't get the columns that are on record for it."""
    hint = "restore its shards, run, then change them; or skip the transaction with a reason"
    return InvalidUsage(f"{new.fact}, but was bound for other shards than the pipeline file has", hint=hint)
