"""The commands with which people decide: `skip`, `accept`, `release`. Each takes a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.shared import (
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    ReasonOption,
    new_attempt,
    open_deployment,
    print_json,
    say,
)

if TYPE_CHECKING:
    from tidemark.core.ids import Txn
    from tidemark.pipeline.upsert import LogReport

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
    from tidemark.pipeline import overrule

    _decide(overrule.skip, "skipped", pipeline, environment, txn, reason, as_json)


def accept(
    pipeline: PipelineArgument,
    txn: TxnArgument,
    reason: ReasonOption,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit an open transaction although its gate is red."""
    from tidemark.pipeline import overrule

    _decide(overrule.accept, "accepted", pipeline, environment, txn, reason, as_json)


def release(
    pipeline: PipelineArgument,
    shard: Annotated[str, typer.Argument(help="The paused shard.", metavar="SHARD")],
    reason: ReasonOption,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a paused shard's log pass the transaction that it waits at."""
    from tidemark.core.ids import ShardId
    from tidemark.pipeline.overrule import release as release_shard

    deployment = open_deployment(pipeline, environment)
    name = ShardId(deployment.config.shard(shard).name)
    report = release_shard(deployment.pipeline, new_attempt(), name, reason=reason)
    if as_json:
        print_json(report)
    else:
        say(f"shard {name} took in {len(report.appended)} transactions; {where_it_ends(report)}")


def where_it_ends(report: LogReport) -> str:
    """Where a log stands after it was brought up, in words."""
    from tidemark.core.shard import Paused

    if isinstance(report.end, Paused):
        return f"it waits again, at {report.end.txn}: {report.end.reason}"
    return f"it has everything up to {report.end.upper - 1}"


def _decide(
    decision: Callable[..., Txn],
    what: str,
    pipeline: str,
    environment: str | None,
    txn: int,
    reason: str,
    as_json: bool,
) -> None:
    from tidemark.pipeline.replay import bound_range

    deployment = open_deployment(pipeline, environment)
    bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    checkpoint = decision(deployment.pipeline, new_attempt(), txn, reason=reason)
    if as_json:
        print_json({"txn": txn, "decision": what, "checkpoint": checkpoint})
    else:
        say(f"transaction {txn} is {what}; the checkpoint is {checkpoint}")
