"""Input that a source keeps for replays, and lets go below the retention."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.core.ids import Txn
from tidemark.pipeline.context import Pipeline
from tidemark.ports.source import KeepsInput


class KeptInput(NamedTuple):
    """Files that may go, or that someone holds."""

    files: int
    bytes: int
    held_by: str = ""
    until: str = ""


def unneeded_input(pipeline: Pipeline, since: Txn) -> list[KeptInput]:
    """What no transaction from `since` on reads: what may go, and what the source still holds."""
    if not isinstance(pipeline.source, KeepsInput):
        return []
    found = pipeline.source.unneeded(since)
    free = KeptInput(found.files, found.bytes)
    held = KeptInput(found.waiting, found.waiting_bytes, found.held_by, "it is acknowledged further")
    return [one for one in (free, held) if one.files]


def let_go_input(pipeline: Pipeline, since: Txn) -> list[KeptInput]:
    """Remove what may go; returns it."""
    if not isinstance(pipeline.source, KeepsInput):
        return []
    gone = pipeline.source.let_go(since)
    return [KeptInput(gone.files, gone.bytes)] if gone.files else []
