"""The commands about consumers: `leases`, and `consumers list`, `skip` and `forget`. None starts Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemark.app.workspace import open_deployment
from tidemark.cli.shared import (
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    ReasonOption,
    print_json,
    print_table,
    say,
)

ShardArgument = Annotated[str, typer.Argument(help="The shard.", metavar="SHARD")]
ConsumerArgument = Annotated[str, typer.Argument(help="The consumer's name.", metavar="CONSUMER")]


def register(app: typer.Typer) -> None:
    """Register the commands."""
    app.command(name="leases", epilog=EXIT_CODES)(leases)
    consumers = typer.Typer(help="Show and manage the consumers of shards.", no_args_is_help=True)
    consumers.command(name="list", epilog=EXIT_CODES)(list_consumers)
    consumers.command(name="skip", epilog=EXIT_CODES)(skip)
    consumers.command(name="forget", epilog=EXIT_CODES)(forget)
    app.add_typer(consumers, name="consumers")


def leases(
    pipeline: PipelineArgument, environment: EnvironmentOption = None, as_json: JsonOption = False
) -> None:
    """Show who holds which transaction: maintenance removes nothing that a lease still needs."""
    from tidemark.app.consume import held_leases

    held = held_leases(open_deployment(pipeline, environment))
    if as_json:
        print_json(held)
    elif not held:
        say("there are no leases")
    else:
        rows = [
            (one.name, one.txn, one.holder if one.is_live else "", one.state, f"{one.ttl_seconds:g}")
            for one in held
        ]
        print_table("", ("lease", "needs from txn", "holder", "state", "ttl seconds"), rows)


def list_consumers(
    pipeline: PipelineArgument, environment: EnvironmentOption = None, as_json: JsonOption = False
) -> None:
    """Show every consumer with its frontier and its lag, and what froze it."""
    from tidemark.app.consume import consumers_of

    found = consumers_of(open_deployment(pipeline, environment))
    if as_json:
        print_json(found)
    elif not found:
        say("there are no consumers")
    else:
        rows = [
            (c.shard, c.consumer, c.frontier, "?" if c.lag is None else c.lag, c.reading, c.frozen)
            for c in found
        ]
        print_table("", ("shard", "consumer", "next txn", "behind", "read by", "frozen"), rows)


def skip(
    pipeline: PipelineArgument,
    shard: ShardArgument,
    consumer: ConsumerArgument,
    txn: Annotated[int, typer.Argument(min=1, help="The transaction that it is frozen at.", metavar="TXN")],
    reason: ReasonOption,
    to: Annotated[
        int | None,
        typer.Option("--to", min=1, help="The last transaction that is lost with it.", metavar="TXN"),
    ] = None,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a frozen consumer skip what it can't read, as its freeze names it. Others are not affected."""
    from tidemark.app.consume import leases_of
    from tidemark.app.deployment import new_token
    from tidemark.core.ids import ShardId, Txn
    from tidemark.pipeline.consume import skip_for_consumer

    deployment = open_deployment(pipeline, environment)
    name = ShardId(deployment.config.shard(shard).name)
    lost = skip_for_consumer(
        deployment.pipeline,
        leases_of(deployment),
        consumer,
        name,
        txn=Txn(txn),
        last=None if to is None else Txn(to),
        reason=reason,
        token=new_token(),
    )
    if as_json:
        print_json({"consumer": consumer, "shard": name, "txns": list(lost), "reason": reason})
    else:
        what = f"transaction {txn}" if len(lost) == 1 else f"{len(lost)} transactions, {txn} to {to},"
        say(f"consumer {consumer} skips {what} of shard {name} at its next read")


def forget(
    pipeline: PipelineArgument,
    shard: ShardArgument,
    consumer: ConsumerArgument,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a consumer that will not come back, so that maintenance no longer waits for it.

    One whose process seems to live is watched first, for a little longer than its lease lasts."""
    from tidemark.app.consume import leases_of
    from tidemark.core.ids import ShardId
    from tidemark.core.reading import lease_name
    from tidemark.pipeline.leases import expire_stale

    name = lease_name(consumer, ShardId(shard))
    leases = leases_of(open_deployment(pipeline, environment))
    held = leases.current(name)
    if held is not None and held.is_live:
        if not as_json:
            say(f"{held.holder} holds it for {held.ttl_seconds:g} s after its last renewal: waiting")
        expire_stale(leases, name=name, ttl_seconds_max=held.ttl_seconds)
    gone = leases.forget(name)
    if as_json:
        print_json(gone)
    else:
        say(f"consumer {consumer} of shard {shard} is removed; it was at transaction {gone.txn}")
