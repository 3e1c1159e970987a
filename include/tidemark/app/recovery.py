"""The recovery of a pipeline that has lost commits, for `tidemark recover`.

Entries that were never completely written are set aside first. Then the history and the logs are brought
forward (`pipeline.recover`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemark.core.ids import ShardId, Txn
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
    is not known, because nothing above a damaged entry can be read. `copied` says that the warehouse is a
    copy."""

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
    copied: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a recovery. `changed` is false if there was nothing to do."""

    pipeline: str
    changed: bool
    epoch: int
    entries: Sequence[DamagedEntry]
    read_again: Sequence[Txn]
    lost: Mapping[Txn, str]
    logs: Mapping[ShardId, Sequence[Txn]]
    damaged: Mapping[ShardId, Sequence[Txn]]


def root_of(config: PipelineConfig) -> str:
    return f"{config.warehouse_location}/{config.name}"


def plan(config: PipelineConfig, opened: Callable[[], Deployment]) -> Planned:
    """Plan a recovery. Changes nothing."""
    entries = damaged_entries(root_of(config))
    if entries:
        return Planned(config.name, needed=True, entries=entries)
    deployment = opened()
    found = planned(deployment.unchecked)
    made = found.plan
    return Planned(
        config.name,
        needed=found.is_needed,
        epoch=found.epoch + int((made.is_needed and not found.resumes) or bool(found.copied)),
        proven_by=tuple(str(one) for one in made.witnesses) if made.is_needed else (),
        read_again=made.again,
        lost=made.lost,
        open=made.open if made.is_needed else (),
        next_txn=made.first,
        logs=found.logs,
        damaged=found.damaged,
        resumes=found.resumes,
        copied=found.copied,
    )


def recover(
    config: PipelineConfig,
    opened: Callable[[], Deployment],
    attempt: Attempt,
    *,
    restored: bool = False,
    adopt: bool = False,
    progress: Progress = no_progress,
) -> Report:
    """Recover the pipeline and report the result."""
    entries = damaged_entries(root_of(config))
    set_aside(root_of(config), entries)
    deployment = opened()
    done = recovered(deployment.pipeline, attempt, restored=restored, adopt=adopt, progress=progress)
    return Report(
        config.name,
        changed=done.changed or bool(entries),
        epoch=done.epoch,
        entries=entries,
        read_again=done.again,
        lost=done.lost,
        logs=done.appended,
        damaged=done.damaged,
    )
