"""`tidemark recover`: bring a pipeline that has lost commits forward to what other records prove."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.app.workspace import load_pipeline, new_attempt, open_deployment
from tidemark.cli.shared import (
    EXIT_BROKEN,
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    print_json,
    say,
)
from tidemark.core.text import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidemark.app.recovery import Planned, Report
    from tidemark.core.ids import ShardId, Txn


def register(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="recover", epilog=EXIT_CODES)(recover)


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

    Nothing is cut back, deleted or acknowledged. What can't be brought back is named as a lost transaction;
    the next run reads its input again, if the source still has it.
    """
    from tidemark.app import recovery

    config = load_pipeline(pipeline, environment)
    opened = partial(open_deployment, pipeline, environment)
    if not yes:
        planned = recovery.plan(config, opened)
        if as_json:
            print_json(planned)
        else:
            _print_plan(planned, restored=restored, adopt=adopt)
        return
    done = recovery.recover(config, opened, new_attempt(), restored=restored, adopt=adopt)
    if as_json:
        print_json(done)
    else:
        _print_done(done)
    if done.damaged:
        raise typer.Exit(code=EXIT_BROKEN)


def _print_plan(planned: Planned, *, restored: bool, adopt: bool) -> None:
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


def _print_done(done: Report) -> None:
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
