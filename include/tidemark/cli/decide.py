"""The commands for decisions of people: `skip`, `accept`, `release`, `watermark`. Each takes a reason."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from tidemark.app.workspace import new_attempt, open_deployment
from tidemark.cli.shared import (
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    ReasonOption,
    print_json,
    say,
)
from tidemark.core.errors import InvalidUsage

TxnArgument = Annotated[int, typer.Argument(min=1, help="The number of the transaction.", metavar="TXN")]


def register(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(name="skip", epilog=EXIT_CODES)(skip)
    app.command(name="accept", epilog=EXIT_CODES)(accept)
    app.command(name="release", epilog=EXIT_CODES)(release)
    app.command(name="watermark", epilog=EXIT_CODES)(watermark)


def skip(
    pipeline: PipelineArgument,
    txn: TxnArgument,
    reason: ReasonOption,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pass over an open transaction for good: its input is never applied."""
    from tidemark.app import decisions

    by = decisions.Decider.of(getpass.getuser(), reason)
    checkpoint = decisions.skip(open_deployment(pipeline, environment), by, txn)
    _show(txn, "skipped", checkpoint, as_json)


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
    _show(txn, "accepted", checkpoint, as_json)


def release(
    pipeline: PipelineArgument,
    shard: Annotated[str, typer.Argument(help="The paused shard.", metavar="SHARD")],
    reason: ReasonOption,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a paused shard's log pass the transaction that it waits at."""
    from tidemark.app import decisions

    by = decisions.Decider.of(getpass.getuser(), reason)
    report = decisions.release(open_deployment(pipeline, environment), by, shard)
    if as_json:
        print_json(report)
    else:
        say(f"shard {shard} {decisions.released(report)}")


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
    from tidemark.core.text import sequence_number, sequence_text
    from tidemark.pipeline.context import watermark_below
    from tidemark.pipeline.decide import set_watermark_back

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


def _show(txn: int, decision: str, checkpoint: int, as_json: bool) -> None:
    if as_json:
        print_json({"txn": txn, "decision": decision, "checkpoint": checkpoint})
    else:
        say(f"transaction {txn} is {decision}; the checkpoint is {checkpoint}")
