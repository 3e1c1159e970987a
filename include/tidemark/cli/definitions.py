"""The commands about pipeline files and their sources: `init`, `check`, `source check|schema|reread`."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidemark.app.workspace import open_deployment
from tidemark.cli.shared import (
    EXIT_CODES,
    EXIT_USAGE,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    print_json,
    print_table,
    say,
)
from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.ids import checked_name
from tidemark.pipeline.schema_change import fit_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidemark.config import PipelineConfig, Problem


EXIT_INVALID = 2
ASKED_ONCE = {"max_retries": "0", "retry_timeout": "5s", "timeout": "5s", "connect_timeout": "5s"}
"""No retries and short timeouts: a check must not wait long for an object store that can't be reached."""


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    """One file in one environment (empty: none). `config` is None if there are problems."""

    file: str
    environment: str
    config: PipelineConfig | None
    problems: tuple[Problem, ...] = ()
    compared: tuple[str, ...] = ()
    """How the file differs from its warehouse where that is no problem, or why they were not compared."""


PIPELINE: Final = """\
# What Tidemark does with the files in data/{name}. `tidemark check {name}` explains it.
name: {name}
schedule: "@hourly"

source:
  type: files
  path: data/{name}
  format: json # one record per line
  settle_seconds: 0 # how long a file must have been left alone; 0 for this sample

envelope: upsert

shards:
  - name: customers
    schema: |
      id BIGINT NOT NULL,
      name STRING,
      city STRING,
      version INT
    keys: [id]
    sequence_by: version # the highest version of a customer wins, in whatever order records come
    apply_as_deletes: op = 'D'
"""

SAMPLES: Final = {
    "0001.json": (
        {"id": 1, "name": "Ada", "city": "London", "version": 1},
        {"id": 2, "name": "Emmy", "city": "Erlangen", "version": 1},
        {"id": 3, "name": "Grace", "city": "New York", "version": 1},
    ),
    "0002.json": (
        {"id": 2, "name": "Emmy", "city": "Göttingen", "version": 2},
        {"id": 3, "op": "D", "version": 2},
        {"id": "four", "name": "a broken record", "city": None, "version": 1},
    ),
}


source = typer.Typer(help="Inspect a database that changes are captured from.", no_args_is_help=True)

commands: Final = typer.Typer()
commands.add_typer(source, name="source")


@commands.command(name="check")
def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Pipeline names, pipeline files or folders of them; all by default.",
            metavar="[PIPELINE…]",
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option("--environment", "-e", help="Check this environment; all of them by default."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check pipeline files, also against their warehouses; exit code 2 when one can't be used.

    It starts no Spark, asks no source, and writes nothing.
    """
    checked = [result for file in _expanded(files or _all()) for result in _check_file(file, environment)]
    checked += _same_names(checked)
    problems = sorted({problem for result in checked for problem in result.problems})
    if as_json:
        typer.echo(json.dumps(_report(checked, problems), indent=2, ensure_ascii=False))
    else:
        _show_checked(checked, problems)
    raise typer.Exit(code=EXIT_INVALID if problems else 0)


@commands.command(name="init")
def init(
    name: Annotated[str, typer.Argument(help="The name of the new pipeline.", metavar="NAME")],
    folder: Annotated[Path, typer.Option(help="The folder to create it in.")] = Path(),
) -> None:
    """Scaffold a pipeline: its file, and sample data. Nothing that exists is overwritten."""
    checked_name(name, what="pipeline")
    inside = folder / "include" / "pipelines"
    file = (inside if inside.is_dir() else folder / "pipelines") / f"{name}.yaml"
    data = folder / "data" / name
    for path in (file, data):
        if path.exists():
            raise InvalidUsage(f"{path} already exists", hint="choose another name, or remove it")
    file.parent.mkdir(parents=True, exist_ok=True)
    data.mkdir(parents=True)
    file.write_text(PIPELINE.format(name=name), encoding="utf-8")
    for sample, records in SAMPLES.items():
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        (data / sample).write_text(lines, encoding="utf-8")
    say(f"made {file} and {data}/")
    commands = [f"tidemark {word} {name}" for word in ("check", "run", "status", "read", "quarantine")]
    entered = [] if folder == Path() else [f"cd {folder}"]
    say("try:  " + "\n      ".join([*entered, *commands]))


@source.command(name="check", epilog=EXIT_CODES)
def check_source(
    pipeline: PipelineArgument, environment: EnvironmentOption = None, as_json: JsonOption = False
) -> None:
    """Check rights, log level, slot, publication, retained log and tables, with the SQL to correct each.

    It also checks, as every run does, that the catalog describes the tables as it did when they were read."""
    from tidemark.sources.postgres.check import requirements
    from tidemark.sources.postgres.source import SlotSource

    deployment = open_deployment(pipeline, environment)
    known = deployment.unchecked.source if deployment.config.source.type == "postgres" else None
    found = requirements(deployment.config, known if isinstance(known, SlotSource) else None)
    failed = [one for one in found if not one.ok]
    if as_json:
        print_json({"ok": not failed, "requirements": found})
    else:
        print_table("", ("", "what", "found"), [("ok" if r.ok else "no", r.what, r.found) for r in found])
        for one in failed:
            say(f"to correct {one.what}: {one.fix}", style="yellow")
    raise typer.Exit(code=EXIT_USAGE if failed else 0)


@source.command(name="schema", epilog=EXIT_CODES)
def schema(
    conn_id: Annotated[str, typer.Argument(help="The id of the connection.", metavar="CONN_ID")],
    publication: Annotated[str, typer.Argument(help="The publication.", metavar="PUBLICATION")],
) -> None:
    """Print the `shards` of a pipeline file that takes every table of a publication."""
    from tidemark.sources.postgres.check import shards_yaml

    typer.echo(shards_yaml(conn_id, publication))


@source.command(name="reread", epilog=EXIT_CODES)
def reread(
    pipeline: PipelineArgument,
    table: Annotated[str, typer.Argument(help="The table, as schema.table.", metavar="TABLE")],
    environment: EnvironmentOption = None,
) -> None:
    """Read one table again in the next run: the rows of its shard are replaced, in one transaction."""
    from tidemark.sources.postgres.source import SlotSource

    found = open_deployment(pipeline, environment).pipeline.source
    if not isinstance(found, SlotSource):
        raise InvalidUsage(
            f"pipeline {pipeline!r} does not read a database",
            hint="use `tidemark replay` to check its transactions",
        )
    found.ask_again(table)
    say(f"the next run reads {table} again; if transactions are open, it finishes those first")


def _all() -> list[Path]:
    from tidemark.app.workspace import find_files, pipeline_folders

    found = find_files(None)
    if not found:
        hint = "give the path of a pipeline file, or make one with `tidemark init NAME`"
        raise InvalidUsage(f"no pipeline files in {', '.join(pipeline_folders())}", hint=hint)
    return found


def _expanded(files: Sequence[Path]) -> list[Path]:
    from tidemark.app.workspace import find_files

    found: list[Path] = []
    for file in files:
        if file.is_dir():
            found += sorted(p for p in file.iterdir() if p.suffix in (".yaml", ".yml"))
        else:
            found += (find_files(str(file)) if not file.exists() else []) or [file]
    return list(dict.fromkeys(found))


def _check_file(file: Path, environment: str | None) -> Iterator[Checked]:
    """Check the file in the given environment; without one, in its default (`$TIDEMARK_ENVIRONMENT`, or no
    environment) and in each environment that it defines."""
    from tidemark.config import ConfigInvalid, environments_of, load_pipeline

    own = environments_of(file)
    names: list[str | None] = [environment] if environment is not None else [None, *own]
    chosen = os.environ.get("TIDEMARK_ENVIRONMENT")
    if environment is None and chosen and own:
        # If the variable is set, it replaces the missing environment everywhere, so that case is left out.
        names = list(dict.fromkeys([chosen, *own]))
    for name in names:
        try:
            yield _compared(str(file), name or "", load_pipeline(file, name))
        except ConfigInvalid as error:
            yield Checked(str(file), name or "", None, error.problems)


def _compared(file: str, environment: str, config: PipelineConfig) -> Checked:
    """Compare the file with the record in its warehouse. An unreachable warehouse is no problem."""
    from tidemark.app.deployment import Deployment
    from tidemark.app.tasks import no_session
    from tidemark.config import Problem
    from tidemark.config.storage import is_uri

    options = ASKED_ONCE if is_uri(config.warehouse_location) else None
    try:
        deployment = Deployment(config, no_session, storage_options=options)
        fit = fit_of(deployment.unchecked)
    except TidemarkError as error:
        return Checked(
            file, environment, config, compared=(f"not compared with the warehouse: {error.fact}",)
        )
    if not deployment.is_in_charge:
        return Checked(file, environment, config, compared=(deployment.proposal,))
    where = f"in {environment}, " if environment else ""
    problems = [Problem(file, 0, 0, "shards", f"{where}{one.fact}", one.hint) for one in fit.refused]
    notes = [f"the next run adds {', '.join(names)} to shard {shard}" for shard, names in fit.added.items()]
    notes += [f"the next run creates shard {shard}" for shard in fit.begun]
    notes += [
        f"shard {shard} has columns that came with its records: {', '.join(map(' '.join, columns.items()))}"
        for shard, columns in deployment.added.items()
    ]
    notes += [
        f"shard {shard} is not in the pipeline file and stays at transaction {last}"
        for shard, last in fit.left_out.items()
    ]
    return Checked(file, environment, None if problems else config, tuple(problems), tuple(notes))


def _same_names(checked: Sequence[Checked]) -> list[Checked]:
    from tidemark.config import Problem

    files: dict[str, dict[str, None]] = {}
    for result in checked:
        if result.config is not None:
            files.setdefault(result.config.name, {})[result.file] = None
    twice = {name: list(found) for name, found in files.items() if len(found) > 1}
    return [
        Checked(file, "", None, (Problem(file, 0, 0, "name", f"{name!r} names a pipeline of {others} too"),))
        for name, found in twice.items()
        for file in found
        if (others := ", ".join(other for other in found if other != file))
    ]


def _report(checked: Sequence[Checked], problems: Sequence[Problem]) -> dict[str, Any]:
    return {
        "ok": not problems,
        "problems": [dataclasses.asdict(problem) for problem in problems],
        "pipelines": [
            {
                "file": result.file,
                "environment": result.environment or None,
                "configuration": json.loads(result.config.canonical_json()),
                "compared": list(result.compared),
            }
            for result in checked
            if result.config is not None
        ],
    }


def _show_checked(checked: Sequence[Checked], problems: Sequence[Problem]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for problem in problems:
        # A `Text` has no markup, so brackets in the message are printed; soft wrap keeps a problem on a line.
        console.print(Text(str(problem)), soft_wrap=True, highlight=False)
    if problems:
        count = len({problem.file for problem in problems})
        console.print(
            f"{len(problems)} problem{'s' * (len(problems) > 1)} in {count} file{'s' * (count > 1)}"
        )
        return
    for file in dict.fromkeys(result.file for result in checked):
        results = [result for result in checked if result.file == file]
        for part in _summary(results):
            console.print(part)


def _summary(results: Sequence[Checked]) -> Iterator[RenderableType]:
    """A summary of one file: its source, its transaction limits, its warehouses and each shard's settings."""
    from rich.table import Table
    from rich.text import Text

    config = results[0].config
    if config is None:
        return
    lines = Table(box=None, pad_edge=False, show_header=False)
    lines.add_column(style="bold", no_wrap=True)
    lines.add_column(overflow="fold")
    for label, text in _lines(config):
        lines.add_row(label, Text(text))
    for result in results:
        if result.config is not None:
            label = f"in {result.environment}" if result.environment else "in no environment"
            place = f"{result.config.source_location}  ->  {result.config.warehouse_location}/{config.name}"
            lines.add_row(label, Text(place))
            for note in result.compared:
                lines.add_row("", Text(note))
    yield lines
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("shard", "keys", "last by", "deletes", "on error", "publish", "columns", "checks"):
        table.add_column(heading, overflow="fold")
    for shard in config.shards:
        every = shard.publish.every_transactions
        late = f", {shard.lateness} {shard.lateness_unit} late" if shard.lateness is not None else ""
        cells = (
            shard.name,
            ", ".join(shard.keys) or "-",
            f"{shard.sequence_by or 'position'}{late}",
            shard.apply_as_deletes.text if shard.apply_as_deletes else "-",
            shard.on_error,
            "manual" if every is None else f"every {every}",
            str(len(shard.columns)),
            str(len(shard.expectations)),
        )
        table.add_row(*map(Text, cells))
    yield table


def _lines(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    from tidemark.config.kafka import RECORDS_MAX

    limits = config.transaction
    yield "pipeline", f"{config.name}, generation {config.generation}"
    yield "runs", config.schedule or "on request"
    yield "takes", config.source.summary
    if config.tables is not None and config.tables.asks_for_any:
        patterns = ", ".join(config.tables.include)
        yield "tables", f"{patterns}, as their source describes them; {len(config.shards)} on record"
    yield "reads them as", config.envelope
    if config.source.type == "kafka":
        yield "at a time", f"up to {limits.max_records or RECORDS_MAX:,} records"
        return
    records = f", {limits.max_records:,} records" if limits.max_records else ""
    size = f"{limits.max_bytes / 1024**2:,.0f} MiB"
    yield "at a time", f"up to {limits.max_files:,} files, {size}{records}"
