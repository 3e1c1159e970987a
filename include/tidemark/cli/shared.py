"""What the commands share: finding a pipeline, opening it, printing for people and for machines.

What a command that works says while it does: to a terminal, or to a log.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage, InvariantViolation, TidemarkError
from tidemark.core.text import moment, plain, span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.app.deployment import Deployment
    from tidemark.config import LoadedPipelines, PipelineConfig
    from tidemark.core.ids import ShardId
    from tidemark.core.seal import SealOutcome, ShardParts
    from tidemark.pipeline.context import Attempt
    from tidemark.pipeline.ingest import Progress
    from tidemark.pipeline.run import Decided


PIPELINES_FOLDERS: Final = ("include/pipelines", "pipelines", ".")

EXIT_RETRY: Final = 1
EXIT_USAGE: Final = 2
EXIT_BROKEN: Final = 3
EXIT_ALARM: Final = 4
EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 it did not work out, and a retry may; 2 the request or the pipeline file is "
    "wrong; 3 a promise does not hold (a replay differs, a table was changed): stop and look."
)

PipelineArgument = Annotated[
    str,
    typer.Argument(help="A pipeline's name, or the path of its file.", metavar="PIPELINE"),
]
EnvironmentOption = Annotated[
    str | None, typer.Option("--environment", "-e", help="One of the pipeline file's environments.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines, errors too.")]
ReasonOption = Annotated[str, typer.Option("--reason", "-r", help="Why; the journal keeps it.")]


def exit_code_of(error: TidemarkError) -> int:
    """The exit code of an error, by its family."""
    if isinstance(error, InvariantViolation):
        return EXIT_BROKEN
    return EXIT_RETRY if isinstance(error, Determinate | Indeterminate) else EXIT_USAGE


def pipeline_folders() -> list[str]:
    """Where pipeline files are looked for."""
    chosen = os.environ.get("TIDEMARK_PIPELINES")
    return [chosen] if chosen else [folder for folder in PIPELINES_FOLDERS if Path(folder).is_dir()]


def find_files(pipeline: str | None) -> list[Path]:
    """The files of the pipeline of this name, broken ones too; without a name, those of the first folder that
    has any."""
    from tidemark.config import load_pipelines

    for folder in pipeline_folders():
        loaded = load_pipelines(folder)
        named = [name for name, config in loaded.pipelines.items() if config.name == pipeline]
        chosen = [*loaded.pipelines, *loaded.errors]
        if pipeline is not None:
            chosen = named or _broken(folder, loaded, pipeline)
        if chosen:
            return [Path(folder) / name for name in sorted(chosen)]
    return []


def _broken(folder: str, loaded: LoadedPipelines, pipeline: str) -> list[str]:
    """The files that can't be used and would be the pipeline's: by the name in them, else by their own."""
    from tidemark.config import name_in

    given = {file: name_in(Path(folder) / file) for file in loaded.errors}
    named = [file for file, name in given.items() if name == pipeline]
    return named or [file for file in given if Path(file).stem == pipeline]


def find_config(pipeline: str, environment: str | None) -> PipelineConfig:
    """The pipeline by the path of its file, or by its name in the folder of pipeline files. Where the files
    that have the name can't be used, the error has all that is wrong with them."""
    from tidemark.config import ConfigInvalid, load_pipeline, load_pipelines

    if pipeline.endswith((".yaml", ".yml")):
        return load_pipeline(Path(pipeline), environment)
    folders = pipeline_folders()
    known: list[str] = []
    unusable: list[str] = []
    for folder in folders:
        loaded = load_pipelines(folder, environment)
        for config in loaded.pipelines.values():
            if config.name == pipeline:
                return config
            known.append(config.name)
        broken = _broken(folder, loaded, pipeline)
        if broken:
            raise ConfigInvalid(problem for file in broken for problem in loaded.errors[file].problems)
        unusable += [str(Path(folder) / file) for file in loaded.errors]
    listed = ", ".join(sorted(set(known))) or "none"
    others = f" besides {', '.join(unusable)}, which can't be used (`tidemark check`)" if unusable else ""
    raise InvalidUsage(
        f"no pipeline {pipeline[:80]!r} in {', '.join(folders)}",
        hint=f"there are: {listed}{others}; or give the path of a pipeline file",
    )


def find_names(environment: str | None) -> list[str]:
    """The pipelines in the folder of pipeline files; one that can't be used stops the command."""
    from tidemark.config import load_pipelines

    folders = pipeline_folders()
    for folder in folders:
        loaded = load_pipelines(folder, environment)
        for error in loaded.errors.values():
            raise error
        if loaded.pipelines:
            return sorted(config.name for config in loaded.pipelines.values())
    raise InvalidUsage(f"no pipelines in {', '.join(folders)}", hint="give the path of a pipeline file")


def open_deployment(
    pipeline: str, environment: str | None, *, cores: int | None = None, binds: bool = False
) -> Deployment:
    """A pipeline ready to work. Spark starts when a step asks for it. Who `binds` asks the source for its
    tables first, where the pipeline file leaves them to it."""
    from tidemark.app.deployment import Deployment, discovered

    config = find_config(pipeline, environment)
    if binds:
        config = discovered(config)

    def session() -> SparkSession:
        from tidemark.runtime.home import home
        from tidemark.spark import connect_server
        from tidemark.spark.session import build_session, connect_session

        chosen = os.environ.get("TIDEMARK_SPARK_MASTER")
        server = connect_server.find() if not chosen else None
        if server is not None and server.is_alive:
            return connect_session(server.url, token=server.token)
        if server is not None:
            ended = f"the warm Spark, process {server.pid}, has ended; a Spark of its own is started"
            typer.echo(f"{ended} (`tidemark spark start`)", err=True)
        master = chosen or f"local[{cores or '*'}]"
        if master.startswith("sc://"):
            return connect_session(master)
        log_file = home() / "logs" / "spark.log"
        return build_session(f"tidemark {config.name}", master=master, log_file=log_file)

    return Deployment(config, session)


def new_attempt(run_id: str | None = None, *, cleared: bool = False, logical_date: str = "") -> Attempt:
    """An attempt of a run started by hand. Without a run id, the run is a new one."""
    from tidemark.app.deployment import new_token
    from tidemark.core.binding import Owner
    from tidemark.pipeline.context import Attempt

    token = new_token()
    owner = Owner(run_id or f"{getpass.getuser()}-{token}", logical_date)
    return Attempt(owner, token, cleared)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


IDENTIFIERS: Final = frozenset({"txn", "number", "from", "up to", "log has", "state has", "next txn"})
"""Columns whose numbers name something: they are shown as they are typed, without a comma in them."""


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for people; cells are plain text, whatever is in them. A column of numbers is right-aligned."""
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
    # For `grep` and for a log a row is a line, however long it is.
    text = StringIO()
    Console(file=text, width=_WIDTH_MAX).print(table)
    typer.echo("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


_WIDTH_MAX: Final = 1_000_000


def _cell(column: str, cell: object) -> str:
    if isinstance(cell, int) and not isinstance(cell, bool) and column not in IDENTIFIERS:
        return f"{cell:,}"
    return "" if cell is None else str(cell)


def rows_text(shards: Mapping[ShardId, ShardParts]) -> str:
    """How many rows a transaction has added to each shard, and how many of them delete a key."""
    return ", ".join(
        f"{shard} {added.digest.count:,}" + (f" ({_deletes(added.deletes)})" if added.deletes else "")
        for shard, added in shards.items()
    )


def _deletes(count: int) -> str:
    return f"{count:,} deletes" if count != 1 else "1 delete"


def say(text: str, *, style: str = "") -> None:
    """A line for people; a style is for a terminal."""
    if not sys.stdout.isatty():
        typer.echo(text)
        return
    from rich.console import Console
    from rich.text import Text

    Console().print(Text(text, style=style), soft_wrap=True)


@contextmanager
def progress_line(quiet: bool) -> Iterator[Progress]:
    """A line that shows which transaction is in which phase, on a terminal only."""
    from tidemark.pipeline.ingest import no_progress

    if quiet or not sys.stderr.isatty():
        with source_messages(lambda text: None):
            yield no_progress
        return
    from rich.console import Console

    with Console(stderr=True).status("looking for new input") as status, source_messages(status.update):
        yield lambda txn, phase: status.update(f"transaction {txn}: {phase}")


@contextmanager
def source_messages(show: Callable[[str], None]) -> Iterator[None]:
    """Show what a source says while it reads: how far it is, and how long that may still take. What it warns
    of stays to be read."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "tidemark.sources.files.source":
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
    from tidemark.pipeline.run import no_callback

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
        told = f"{now} UTC transaction {seal.txn}: {seal.decision}{by}, {', '.join(counts)}; {span(took)}"
        typer.echo(told, err=True)

    return line
