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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Observation


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
    found: Mapping[str, Any] = seen.get
    if found:
        return found
    return frame.agg(*aggregates).first().asDict()  # type: ignore[union-attr]
