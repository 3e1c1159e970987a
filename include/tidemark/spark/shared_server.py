"""Counting and persisting in a Spark that others use too.

All sessions of a Spark, on a Connect server those of every client, have two things in common that make one
client's results depend on another's:

- **The cache.** Spark looks for persisted rows by the plan alone, whoever persisted them, and a file is part
  of a plan by its path. The rows that a killed client has left persisted would answer for a file that has
  changed since, and a replay would call it identical. `persisted` gives every frame a plan of its own.
- **The listener bus.** What is observed reaches the observer by it. A Connect server waits a tenth of a
  second for that and then sends nothing; a server that is busy with others takes longer. `counted` counts
  again what has not come, in a job of its own.

Known limitation: what a killed client has persisted stays on its Connect server, on disk where memory is
short, until the server is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Observation

OBSERVED_SECONDS_MAX: Final = 30.0
"""The listener bus delivers within milliseconds, unless it is busy or has dropped the event."""


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """A frame that is used more than once; computed again, from its pinned input, if it gets lost. Nobody
    else's frame has its plan: a literal is part of a plan, and this one is never used twice."""
    own = frame.where(f"'{uuid4()}' IS NOT NULL")
    own.persist()
    try:
        yield own
    finally:
        own.unpersist()


def counted(
    frame: DataFrame, aggregates: Sequence[Column], run: Callable[[DataFrame], None]
) -> Mapping[str, Any]:
    """Run a job that takes in all rows of a frame, and count them as they pass, each once; the aggregates by
    their names.

    The frame has to give the same rows when it is computed again: the counts may be those of a second job.
    """
    seen = Observation()
    run(frame.observe(seen, *aggregates))
    if has_come(seen) and (found := seen.get):
        return found
    return frame.agg(*aggregates).first().asDict()  # type: ignore[union-attr]


def has_come(seen: Observation) -> bool:
    """Whether what was observed has come, or came in time. A classic session would wait for ever for an event
    that the listener bus has dropped (Invariant 14); over Connect the server has waited already. An empty row
    without a schema says that Spark could not collect it."""
    observed = getattr(seen, "_jo", None)
    if observed is None:
        return True
    deadline = time.monotonic() + OBSERVED_SECONDS_MAX
    # `getOrEmpty` fails where nothing has come within its tenth of a second; this waits as long.
    while (row := observed.getRowOrEmpty()).isEmpty():
        if time.monotonic() > deadline:
            return False
    return row.get().schema() is not None
