"""Maintain: remove what can never be needed again.

A sweep asks the seals, not the clock. An attempt of a transaction that is sealed under another
token has lost for good: its parts may go, even while its writer still works on them, because that
writer will lose at its seal. An attempt of an open transaction is left alone, however old it is.
"""

from __future__ import annotations

from tidemark.core.ids import Txn, WriterToken
from tidemark.pipeline.context import Pipeline, seal_at


def sweep(pipeline: Pipeline) -> tuple[tuple[Txn, WriterToken], ...]:
    """Remove the parts of every attempt that lost its seal; returns which."""
    # Attempts are listed before the seals are read: one that appears later is not looked at.
    attempts = pipeline.plane.attempts()
    upper = pipeline.control.seals.head().upper
    swept: list[tuple[Txn, WriterToken]] = []
    for txn, token in attempts:
        if txn < upper and seal_at(pipeline, txn).token != token:
            pipeline.plane.discard(txn, token)
            swept.append((txn, token))
    return tuple(swept)
