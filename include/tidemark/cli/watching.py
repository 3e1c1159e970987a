"""What a command that works says while it does: to a terminal, or to a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from tidemark.cli.shared import rows_text
from tidemark.core.text import moment, span

if TYPE_CHECKING:
    from tidemark.core.seal import SealOutcome
    from tidemark.pipeline.run import Decided, Progress


@contextmanager
def watched(quiet: bool) -> Iterator[Progress]:
    """A line that shows which transaction is in which phase, on a terminal only."""
    from tidemark.pipeline.run import unwatched

    if quiet or not sys.stderr.isatty():
        with told_by_sources(lambda text: None):
            yield unwatched
        return
    from rich.console import Console

    with Console(stderr=True).status("looking for new input") as status, told_by_sources(status.update):
        yield lambda txn, phase: status.update(f"transaction {txn}: {phase}")


@contextmanager
def told_by_sources(show: Callable[[str], None]) -> Iterator[None]:
    """Show what a source says while it reads: how far it is, and how long that may still take. What it warns
    of stays to be read."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "tidemark.sources.files":
                return  # The run lists at its end what it did not take.
            if record.levelno >= logging.WARNING:
                typer.echo(record.getMessage(), err=True)
            else:
                show(record.getMessage())

    logger, handler = logging.getLogger("tidemark.sources"), Shown(logging.INFO)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def line_per_transaction(quiet: bool) -> Decided:
    """Tells each transaction by a line, with the time and how long it took, where no terminal shows it."""
    from tidemark.core.seal import Lost, Sealed
    from tidemark.pipeline.run import untold

    if quiet or sys.stderr.isatty():
        return untold
    began = time.monotonic()

    def line(outcome: SealOutcome) -> None:
        nonlocal began
        took, began = time.monotonic() - began, time.monotonic()
        if not isinstance(outcome, Sealed | Lost):
            return
        seal = outcome.seal if isinstance(outcome, Sealed) else outcome.winner
        counts = filter(None, (f"{seal.source.count:,} read", rows_text(seal.shards)))
        by = "" if isinstance(outcome, Sealed) else f" by {seal.token}"
        now = moment(datetime.now(UTC))
        told = f"{now} UTC transaction {seal.txn}: {seal.decision}{by}, {', '.join(counts)}; {span(took)}"
        typer.echo(told, err=True)

    return line
