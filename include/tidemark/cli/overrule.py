"""The commands with which people decide: `skip`, `accept`, `release`. Each takes a reason."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from tidemark.cli.shared import (
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    ReasonOption,
    open_deployment,
    print_json,
    say,
)

TxnArgument = Annotated[int, typer.Argument(min=1, help="The transaction's number.", metavar="TXN")]


def register(app: typer.Typer) -> None:
    """Add the commands to the main one."""
    app.command(name="skip", epilog=EXIT_CODES)(skip)
    app.command(name="accept", epilog=EXIT_CODES)(accept)
    app.command(name="release", epilog=EXIT_CODES)(release)


def skip(
    pipeline: PipelineArgument,
    txn: TxnArgument,
    reason: ReasonOption,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pass over an open transaction for good: its input is never applied."""
    from tidemark import decisions

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
    from tidemark import decisions

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
    from tidemark import decisions

    by = decisions.Decider.of(getpass.getuser(), reason)
    report = decisions.release(open_deployment(pipeline, environment), by, shard)
    if as_json:
        print_json(report)
    else:
        say(f"shard {shard} {decisions.released(report)}")


def _show(txn: int, decision: str, checkpoint: int, as_json: bool) -> None:
    if as_json:
        print_json({"txn": txn, "decision": decision, "checkpoint": checkpoint})
    else:
        say(f"transaction {txn} is {decision}; the checkpoint is {checkpoint}")
