"""The commands for daily operation: decisions of people with a reason (`skip`, `accept`, `release`,
`watermark`), `recover`, `maintain`, and `spark start|stop|status` for a warm Spark.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.app.workspace import find_names, load_pipeline, new_attempt, open_deployment
from tidemark.cli.shared import (
    EXIT_BROKEN,
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    ReasonOption,
    print_json,
    print_table,
    say,
)
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.core.text import numbers, sequence_number, sequence_text
from tidemark.pipeline.context import watermark_below
from tidemark.pipeline.decide import set_watermark_back

if TYPE_CHECKING:
    from tidemark.app.decisions import Planned
    from tidemark.app.decisions import Report as Recovered
    from tidemark.app.maintenance import MaintenanceReport
    from tidemark.app.reports import Report


TxnArgument = Annotated[int, typer.Argument(min=1, help="The number of the transaction.", metavar="TXN")]


COLUMNS = ("what", "shard", "files", "bytes", "held by", "until")


spark = typer.Typer(
    help="Keep a Spark server running for this project, so that commands start in a second instead of ten.",
    no_args_is_help=True,
)

commands: Final = typer.Typer()
commands.add_typer(spark, name="spark")


@commands.command(name="skip", epilog=EXIT_CODES)
def skip(
    pipeline: PipelineArgument,
    txn: TxnArgument,
    reason: ReasonOption,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Skip an open transaction permanently: its input is never applied."""
    from tidemark.app import decisions

    by = decisions.Decider.of(getpass.getuser(), reason)
    checkpoint = decisions.skip(open_deployment(pipeline, environment), by, txn)
    _show_decision(txn, "skipped", checkpoint, as_json)


@commands.command(name="accept", epilog=EXIT_CODES)
def accept(
    pipeline: PipelineArgument,
    txn: TxnArgument,
    reason: ReasonOption,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit an open transaction although its gate is red."""
    from tidemark.app import decisions

    by = decisions.Decider.of(getpass.getuser(), reason)
    checkpoint = decisions.accept(open_deployment(pipeline, environment), by, txn)
    _show_decision(txn, "accepted", checkpoint, as_json)


@commands.command(name="release", epilog=EXIT_CODES)
def release(
    pipeline: PipelineArgument,
    shard: Annotated[str, typer.Argument(help="The paused shard.", metavar="SHARD")],
    reason: ReasonOption,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a paused shard's log continue past the transaction at which it waits."""
    from tidemark.app import decisions

    by = decisions.Decider.of(getpass.getuser(), reason)
    report = decisions.release(open_deployment(pipeline, environment), by, shard)
    if as_json:
        print_json(report)
    else:
        say(f"shard {shard} {decisions.released(report)}")


@commands.command(name="watermark", epilog=EXIT_CODES)
def watermark(
    pipeline: PipelineArgument,
    to: Annotated[str | None, typer.Option(help="Set it back to this sequence: a number or a time.")] = None,
    reason: Annotated[
        str, typer.Option("--reason", "-r", help="The reason, which the journal records.")
    ] = "",
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the watermark, the highest sequence so far, or set it back after a wrong record has moved it."""

    deployment = open_deployment(pipeline, environment)
    shard = next((one for one in deployment.config.shards if one.lateness is not None), None)
    if shard is None:
        fact = f"no shard of pipeline {deployment.config.name!r} declares a lateness"
        raise InvalidUsage(fact, hint="without one nothing is too late, and there is no watermark")
    txn, control = None, deployment.pipeline.control
    if to is not None:
        number = sequence_number(to, unit=shard.lateness_unit)
        txn = set_watermark_back(deployment.pipeline, new_attempt(), number, reason=reason)
    found = watermark_below(control, txn or control.seals.head().upper)
    shown = sequence_text(found, unit=shard.lateness_unit) if found is not None else None
    if as_json:
        print_json({"shard": shard.name, "watermark": found, "shown": shown, "from_txn": txn})
    elif txn is None:
        say(f"the watermark of shard {shard.name} is {shown or 'not set: no transaction has moved it'}")
    else:
        say(f"the watermark of shard {shard.name} is {shown} from transaction {txn} on")
        again = f"`tidemark rebuild {pipeline} {shard.name}`"
        say(f"maintenance may have dropped older tombstones; {again} restores them from the log")


@commands.command(name="recover", epilog=EXIT_CODES)
def recover(
    pipeline: PipelineArgument,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it. Without it, the plan is shown and nothing is changed.")
    ] = False,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="The whole warehouse was restored from one copy, which nothing inside it can show: begin an "
            "epoch anyway.",
        ),
    ] = False,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="This warehouse was copied or moved: continue here. Stop the pipeline at the old address "
            "first.",
        ),
    ] = False,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a pipeline forward whose history or logs have lost commits.

    Nothing is truncated, deleted or acknowledged. What can't be restored becomes a lost transaction; the next
    run reads its input again, if the source still has it.
    """
    from tidemark.app import decisions

    config = load_pipeline(pipeline, environment)
    opened = partial(open_deployment, pipeline, environment)
    if not yes:
        planned = decisions.plan(config, opened)
        if as_json:
            print_json(planned)
        else:
            _print_recovery_plan(planned, restored=restored, adopt=adopt)
        return
    done = decisions.recover(config, opened, new_attempt(), restored=restored, adopt=adopt)
    if as_json:
        print_json(done)
    else:
        _print_recovered(done)
    if done.damaged:
        raise typer.Exit(code=EXIT_BROKEN)


@commands.command(name="maintain", epilog=EXIT_CODES)
def maintain(
    pipeline: Annotated[
        str | None,
        typer.Argument(help="A pipeline's name, or its file's path; all by default.", metavar="PIPELINE"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be done, and what holds files back.")
    ] = False,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish what is due, merge small files, drop transactions past their retention, delete unneeded files.

    Nothing is deleted that a lease, a consumer, a state or the pipeline file's `retention` still needs.
    """
    from tidemark.app import maintenance, tasks

    names = [pipeline] if pipeline is not None else find_names(environment)
    reports: list[Report | MaintenanceReport] = []
    for name in names:
        deployment = open_deployment(name, environment)
        if dry_run:
            found = maintenance.plan(deployment, maintenance.terms_of(deployment))
            reports.append(found)
            if not as_json:
                _print_maintenance_plan(found)
            continue
        done = tasks.maintain(deployment, new_attempt())
        reports.append(done)
        if not as_json:
            _print_maintained(done)
    if as_json:
        print_json(reports[0] if pipeline is not None else reports)


@spark.command(name="start", epilog=EXIT_CODES)
def start(
    memory: Annotated[str, typer.Option(help="Its memory, such as 2g.")] = "2g",
    as_json: JsonOption = False,
) -> None:
    """Start a Spark Connect server on this machine, and wait until it listens.

    Every command with the same TIDEMARK_HOME uses it from then on, unless TIDEMARK_SPARK_MASTER names another
    Spark. It listens on the loopback interface only, and asks for a token.
    """
    from tidemark.spark import connect_server

    server = connect_server.start(memory=memory)
    if as_json:
        print_json({"url": server.url, "pid": server.pid})
    else:
        say(
            f"a warm Spark listens at {server.url}, process {server.pid}; "
            f"its log is in {connect_server.folder()}"
        )


@spark.command(name="stop", epilog=EXIT_CODES)
def stop(as_json: JsonOption = False) -> None:
    """Stop the warm Spark; jobs that run on it fail, and a retry finishes them."""
    from tidemark.spark import connect_server

    found = connect_server.stop()
    if as_json:
        print_json({"stopped": found.pid if found is not None else None})
    else:
        say(f"stopped process {found.pid}" if found is not None else "there is no warm Spark")


@spark.command(name="status", epilog=EXIT_CODES)
def status(as_json: JsonOption = False) -> None:
    """Report whether a warm Spark runs; exit with 1 if none does."""
    from tidemark.spark import connect_server

    found = connect_server.find()
    alive = found is not None and found.is_alive
    if as_json:
        print_json({"running": alive, "url": found.url if found is not None and alive else None})
    elif found is None:
        say("there is no warm Spark; `tidemark spark start` starts one")
    elif alive:
        say(f"a warm Spark listens at {found.url}, process {found.pid}")
    else:
        say(
            f"the warm Spark, process {found.pid}, has ended; its log is in {connect_server.folder()}",
            style="red",
        )
    if not alive:
        raise typer.Exit(code=1)


def _show_decision(txn: int, decision: str, checkpoint: int, as_json: bool) -> None:
    if as_json:
        print_json({"txn": txn, "decision": decision, "checkpoint": checkpoint})
    else:
        say(f"transaction {txn} is {decision}; the checkpoint is {checkpoint}")


def _print_recovery_plan(planned: Planned, *, restored: bool, adopt: bool) -> None:
    if planned.copied:
        say(planned.copied, style="yellow")
        say("this address is adopted" if adopt else "the pipeline goes on here only with --adopt")
    for entry in planned.entries:
        say(f"entry {entry.version} of the log of {entry.table} is set aside: {entry.why}")
    if planned.entries:
        say("run it again after that: the remaining steps are not known before")
    elif not planned.needed and not restored:
        say(f"pipeline {planned.pipeline}: nothing shows a loss; there is nothing to recover")
        say("if all of its warehouse was put back from a copy, add --restored", style="yellow")
        return
    else:
        if planned.resumes:
            say(f"the recovery that began epoch {planned.epoch} goes on")
        elif planned.proven_by or planned.copied or restored:
            is_counted = planned.proven_by or planned.copied
            say(f"epoch {planned.epoch if is_counted else (planned.epoch or 0) + 1} begins")
        for line in planned.proven_by:
            say(f"  {line}")
        _say_txns("read again and sealed as before", planned.read_again)
        _say_txns("finished, as a run does", planned.open)
        _say_txns("lost; the next run binds again what they had read", planned.lost)
        _say_logs("takes in", planned.logs)
        _say_damaged(planned.pipeline, planned.damaged)
        say(f"the next new transaction is {planned.next_txn}")
    say("nothing was changed; --yes does it", style="yellow")


def _print_recovered(done: Recovered) -> None:
    if not done.changed and not done.damaged:
        say(f"pipeline {done.pipeline}: nothing shows a loss; there was nothing to recover")
        return
    for entry in done.entries:
        say(f"entry {entry.version} of the log of {entry.table} was set aside: {entry.why}")
    _say_txns("read again and sealed as before", done.read_again)
    for txn, why in done.lost.items():
        say(f"transaction {txn} is lost: {why}", style="red")
    _say_logs("has taken in", done.logs)
    _say_damaged(done.pipeline, done.damaged)
    if done.changed:
        say(f"pipeline {done.pipeline} is recovered, in epoch {done.epoch}; run it", style="bold")


def _say_txns(what: str, txns: Sequence[int]) -> None:
    if txns:
        say(f"transactions {numbers(txns)}: {what}")


def _say_logs(what: str, logs: Mapping[ShardId, Sequence[Txn]]) -> None:
    for shard, txns in logs.items():
        say(f"the log of shard {shard} {what} {numbers(txns)}")


def _say_damaged(pipeline: str, damaged: Mapping[ShardId, Sequence[Txn]]) -> None:
    for shard, txns in damaged.items():
        say(f"the log of shard {shard} stays behind: parts of {numbers(txns)} are gone", style="red")
        last = f"--from {txns[0]} --to {txns[-1]}"
        say(f"  `tidemark replay {pipeline} {last} --mode repair`, then recover again")


def _print_maintenance_plan(found: MaintenanceReport) -> None:
    say(f"pipeline {found.pipeline}: single transactions are kept from {found.since} on", style="bold")
    if found.chores:
        rows = [
            (
                one.what,
                one.shard,
                one.files,
                one.bytes,
                one.held_by or "nothing: deletable now",
                one.until,
            )
            for one in found.chores
        ]
        print_table("", COLUMNS, rows)
    else:
        say("there is nothing to do")
    for warning in found.warnings:
        say(warning, style="yellow")


def _print_maintained(done: Report) -> None:
    say(f"pipeline {done['pipeline']}: single transactions are kept from {done['since']} on", style="bold")
    for shard, published in done["published"].items():
        say(f"published {shard} up to transaction {published['txn']}")
    rows = [(one["what"], one["shard"], one["files"], one["bytes"]) for one in done["done"]]
    if rows:
        print_table("", COLUMNS[:4], rows)
    else:
        say("there was nothing to do")
    for warning in done["warnings"]:
        say(warning, style="yellow")
