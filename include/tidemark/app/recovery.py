"""The recovery of a pipeline that has lost commits, for `tidemark recover`.

Entries that were never completely written are set aside first. Then the history and the logs are brought
forward (`pipeline.recover`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemark.core.ids import ShardId, Txn
from tidemark.core.publish import Published, StateStatus
from tidemark.delta.damage import DamagedEntry, damaged_entries, set_aside
from tidemark.pipeline.ingest import Progress, no_progress
from tidemark.pipeline.recover import plan as planned
from tidemark.pipeline.recover import recover as recovered

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.app.deployment import Deployment
    from tidemark.config import PipelineConfig
    from tidemark.pipeline.context import Attempt


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a recovery, for people and machines. `entries` are damaged; while there are any, the rest
    is not known, because nothing above a damaged entry can be read."""

    pipeline: str
    needed: bool
    epoch: int | None = None
    entries: Sequence[DamagedEntry] = ()
    proven_by: Sequence[str] = ()
    read_again: Sequence[Txn] = ()
    lost: Sequence[Txn] = ()
    open: Sequence[Txn] = ()
    next_txn: Txn | None = None
    logs: Mapping[ShardId, Sequence[Txn]] = field(default_factory=dict)
    damaged: Mapping[ShardId, Sequence[Txn]] = field(default_factory=dict)
    resumes: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a recovery."""

    pipeline: str
    epoch: int
    entries: Sequence[DamagedEntry]
    read_again: Sequence[Txn]
    lost: Mapping[Txn, str]
    logs: Mapping[ShardId, Sequence[Txn]]
    damaged: Mapping[ShardId, Sequence[Txn]]


def root_of(config: PipelineConfig) -> str:
    return f"{config.warehouse_location}/{config.name}"


class States:
    """The status of a deployment's states, without Spark; an empty status for a shard without a state."""

    def __init__(self, deployment: Deployment) -> None:
        self._shards, self._keeper = deployment.shards, deployment.keeper()

    def standing(self, shard: ShardId, since: Published | None) -> StateStatus:
        return self._keeper.standing(shard, since) if shard in self._shards else StateStatus()


def plan(config: PipelineConfig, opened: Callable[[], Deployment]) -> Planned:
    """Plan a recovery. Changes nothing."""
    entries = damaged_entries(root_of(config))
    if entries:
        return Planned(config.name, needed=True, entries=entries)
    deployment = opened()
    found = planned(deployment.unchecked, States(deployment))
    made = found.plan
    return Planned(
        config.name,
        needed=found.is_needed,
        epoch=found.epoch + int(made.is_needed and not found.resumes),
        proven_by=tuple(str(one) for one in made.witnesses) if made.is_needed else (),
        read_again=made.again,
        lost=made.lost,
        open=made.open if made.is_needed else (),
        next_txn=made.first,
        logs=found.logs,
        damaged=found.damaged,
        resumes=found.resumes,
    )


def recover(
    config: PipelineConfig,
    opened: Callable[[], Deployment],
    attempt: Attempt,
    *,
    restored: bool = False,
    progress: Progress = no_progress,
) -> Report:
    """Recover the pipeline and report the result."""
    entries = damaged_entries(root_of(config))
    set_aside(root_of(config), entries)
    deployment = opened()
    done = recovered(
        deployment.pipeline, attempt, states=States(deployment), restored=restored, progress=progress
    )
    return Report(config.name, done.epoch, entries, done.again, done.lost, done.appended, done.damaged)
