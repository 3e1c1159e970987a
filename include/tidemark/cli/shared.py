"""Shared parts of the commands: options, exit codes, output as text and JSON, and progress messages."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import StringIO
from typing import Annotated, Any, Final

import typer

from tidemark.core.errors import Determinate, Indeterminate, InvariantViolation, TidemarkError
from tidemark.core.ids import ShardId
from tidemark.core.seal import Lost, Sealed, SealOutcome, ShardParts
from tidemark.core.text import amount, moment, plain, span
from tidemark.pipeline.ingest import Progress, no_progress
from tidemark.pipeline.run import Decided, no_callback

EXIT_RETRY: Final = 1
EXIT_USAGE: Final = 2
EXIT_BROKEN: Final = 3
EXIT_ALARM: Final = 4
EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 failed, a retry may succeed; 2 the request or the pipeline file is wrong; "
    "3 a guarantee is broken (a replay differs, a table was changed): stop and investigate."
)

PipelineArgument = Annotated[
    str,
    typer.Argument(help="The name of a pipeline, or the path of its file.", metavar="PIPELINE"),
]
EnvironmentOption = Annotated[
    str | None, typer.Option("--environment", "-e", help="One of the pipeline file's environments.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, errors too.")]
ReasonOption = Annotated[str, typer.Option("--reason", "-r", help="The reason, which the journal records.")]


def exit_code_of(error: TidemarkError) -> int:
    """The exit code of an error, by its family."""
    if isinstance(error, InvariantViolation):
        return EXIT_BROKEN
    return EXIT_RETRY if isinstance(error, Determinate | Indeterminate) else EXIT_USAGE


def print_json(value: Any) -> None:
    typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


IDENTIFIERS: Final = frozenset({"txn", "number", "from", "up to", "log has", "state has", "next txn"})
"""Columns whose numbers are identifiers: they are shown without thousands separators, as they are typed."""


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. Cells are plain text without markup; columns of numbers are right-aligned."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    listed = [list(row) for row in rows]
    for place, column in enumerate(columns):
        cells = [row[place] for row in listed if row[place] not in (None, "", "-")]
        numbers = bool(cells) and all(isinstance(cell, int) and not isinstance(cell, bool) for cell in cells)
        table.add_column(column, overflow="fold", justify="right" if numbers else "left")
    for row in listed:
        table.add_row(*(Text(_cell(column, cell)) for column, cell in zip(columns, row, strict=True)))
    if sys.stdout.isatty():
        Console().print(table)
        return
    # For `grep` and for logs, a row is one line of any length.
    text = StringIO()
    Console(file=text, width=_WIDTH_MAX).print(table)
    typer.echo("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


_WIDTH_MAX: Final = 1_000_000


def _cell(column: str, cell: object) -> str:
    if isinstance(cell, int) and not isinstance(cell, bool) and column not in IDENTIFIERS:
        return f"{cell:,}"
    return "" if cell is None else str(cell)


def rows_text(shards: Mapping[ShardId, ShardParts]) -> str:
    """The number of rows that a transaction added to each shard, and how many of them are deletes."""
    return ", ".join(
        f"{shard} {added.digest.count:,}" + (f" ({amount(added.deletes, 'delete')})" if added.deletes else "")
        for shard, added in shards.items()
    )


def say(text: str, *, style: str = "") -> None:
    """Print a line; the style applies only on a terminal."""
    if not sys.stdout.isatty():
        typer.echo(text)
        return
    from rich.console import Console
    from rich.text import Text

    Console().print(Text(text, style=style), soft_wrap=True)


@contextmanager
def progress_line(quiet: bool) -> Iterator[Progress]:
    """A status line with the present transaction and phase, only on a terminal."""

    if quiet or not sys.stderr.isatty():
        with source_messages(lambda text: None):
            yield no_progress
        return
    from rich.console import Console

    with Console(stderr=True).status("looking for new input") as status, source_messages(status.update):
        yield lambda txn, phase: status.update(f"transaction {txn}: {phase}")


@contextmanager
def source_messages(show: Callable[[str], None]) -> Iterator[None]:
    """Show a source's progress messages while it reads. Its warnings are printed and stay visible."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "tidemark.sources.files.source":
                return  # The run lists skipped files at its end.
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
    """A callback that prints a line per transaction, with its time and duration; a no-op on a terminal."""

    if quiet or sys.stderr.isatty():
        return no_callback
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
        line = f"{now} UTC transaction {seal.txn}: {seal.decision}{by}, {', '.join(counts)}; {span(took)}"
        typer.echo(line, err=True)

    return line


def shown(text: str | None) -> str:
    """A value of a row, for people."""
    return "NULL" if text is None else text
