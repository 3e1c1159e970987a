"""The commands with which people decide: `skip`, `accept`, `release`, `watermark`. Each takes a reason."""

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
from tidemark.core.errors import InvalidUsage

if TYPE_CHECKING:
    from tidemark.core.ids import Txn
    from tidemark.pipeline.upsert import LogReport

TxnArgument = Annotated[int, typer.Argument(min=1, help="The transaction's number.", metavar="TXN")]


def register(app: typer.Typer) -> None:
    """Add the commands to the main one."""
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


def watermark(
    pipeline: PipelineArgument,
    to: Annotated[str | None, typer.Option(help="Set it back to this sequence: a number or a time.")] = None,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; the journal keeps it.")] = "",
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the watermark, the highest sequence so far, or set it back after a wrong record has moved it."""
    from tidemark.core.sequence import sequence_number, sequence_text
    from tidemark.pipeline.context import watermark_below
    from tidemark.pipeline.overrule import set_watermark_back

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
        say(f"publishes may have forgotten deletions that are older; {again} finds them in the log again")


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
    attempt = new_attempt()
    checkpoint = deployment.with_new_columns(
        lambda: decision(deployment.pipeline, attempt, txn, reason=reason)
    )
    if as_json:
        print_json({"txn": txn, "decision": what, "checkpoint": checkpoint})
    else:
        say(f"transaction {txn} is {what}; the checkpoint is {checkpoint}")
