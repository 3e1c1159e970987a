"""The commands about rows and their readers: `read`, `quarantine`, `leases`, `consumers list|skip|forget`.

`quarantine --raw` prints records as they arrived, to be corrected and sent again through the source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidemark.app.bad_records import masks, with_places
from tidemark.app.views import View
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
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.core.reading import lease_name
from tidemark.pipeline.freezes import skip_for_consumer
from tidemark.pipeline.leases import expire_stale

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from tidemark.app.deployment import Deployment
    from tidemark.config import PipelineConfig


_PLACES_SHOWN_MAX: Final = 5


ROWS_SHOWN: Final = 20
ROWS_MAX: Final = 10_000
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=ROWS_MAX, help="The most rows to show.")
]
_ORDER: Final = ("_txn", "_partition", "_offset", "_ordinal")
"""The order of the source."""


ShardArgument = Annotated[str, typer.Argument(help="The shard.", metavar="SHARD")]
ConsumerArgument = Annotated[str, typer.Argument(help="The consumer's name.", metavar="CONSUMER")]

commands: Final = typer.Typer()
consumers = typer.Typer(help="Show and manage the consumers of shards.", no_args_is_help=True)
commands.add_typer(consumers, name="consumers")


@commands.command(name="read", epilog=EXIT_CODES)
def read(
    pipeline: PipelineArgument,
    shard: Annotated[
        str | None, typer.Argument(help="The shard; optional if the pipeline has one.", metavar="[SHARD]")
    ] = None,
    view: Annotated[
        View, typer.Option(help="state: as published; fresh: with the tail; log: every change.")
    ] = View.FRESH,
    as_of: Annotated[
        int | None, typer.Option(min=0, help="Read as of this transaction; the newest by default.")
    ] = None,
    limit: LimitOption = ROWS_SHOWN,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a shard's rows, in the order of its keys. Masked columns are shown as ***."""
    from tidemark.app.bad_records import MASK
    from tidemark.app.views import read as read_rows
    from tidemark.spark.failures import shard_job_errors

    deployment = open_deployment(pipeline, environment)
    config = deployment.config.shard(shard) if shard else deployment.config.only_shard
    frame = read_rows(deployment, config.name, view=view, as_of=as_of)
    order = ["_txn", *config.keys] if view is View.LOG else list(config.keys)
    shown = frame.orderBy(*(f"`{name}`" for name in order)) if order else frame
    with shard_job_errors(config.name):
        texts = shown.limit(limit).selectExpr(f"to_json(struct({_exact(frame.schema)})) AS text").collect()
    records = [row_of(row.text, frame.schema) for row in texts]
    masked = [
        {name: MASK if name in config.masked else record.get(name) for name in frame.columns}
        for record in records
    ]
    if as_json:
        print_json(masked)
    else:
        print_table("", frame.columns, [list(record.values()) for record in masked])


@commands.command(name="quarantine", epilog=EXIT_CODES)
def quarantine(
    pipeline: PipelineArgument,
    txn: Annotated[int | None, typer.Option(min=1, help="Only records of this transaction.")] = None,
    only_open: Annotated[
        bool, typer.Option("--open", help="Only records whose key has had no valid record since.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the original records, one per line, oldest first.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            max=ROWS_MAX,
            help=f"The most records to show, newest first; {ROWS_SHOWN} by default, {ROWS_MAX:,} with --raw.",
        ),
    ] = None,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show records that could not be applied, the newest first, with their place and the reason.

    A record whose key could not be read belongs to no key, and is never shown as open. Values of masked
    columns are shown as ***; in a shard with masked columns, so is a whole record that can't be parsed. With
    --raw, the original records are printed, to be corrected and sent again through the source; for shards
    with masked columns only their positions are printed.
    """

    deployment = open_deployment(pipeline, environment)
    if raw:
        if as_json:
            raise InvalidUsage(
                "--raw and --json exclude each other", hint="`--json` prints the records in the column _raw"
            )
        _print_raw(deployment, txn=txn, only_open=only_open, limit=limit or ROWS_MAX)
        return
    from tidemark.app.bad_records import quarantined_records

    limit = limit or ROWS_SHOWN
    found = quarantined_records(deployment, txn=txn, only_open=only_open, limit=limit)
    if as_json:
        print_json(found)
    elif not found:
        say("no key has an open error" if only_open else "nothing is quarantined")
    else:
        columns = ("txn", "shard", "key", "place", "reason", "raw")
        shown = ("_txn", "_shard", "_key", "place", "_reason", "_raw")
        print_table("", columns, [[record[name] for name in shown] for record in found])
        say(how_to_correct(deployment.config))


@commands.command(name="leases", epilog=EXIT_CODES)
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


@consumers.command(name="list", epilog=EXIT_CODES)
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


@consumers.command(name="skip", epilog=EXIT_CODES)
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
    """Let a frozen consumer skip the transactions that it can't read. Other consumers are not affected."""
    from tidemark.app.consume import leases_of
    from tidemark.app.deployment import new_token

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


@consumers.command(name="accept", epilog=EXIT_CODES)
def accept(
    pipeline: PipelineArgument,
    shard: ShardArgument,
    consumer: ConsumerArgument,
    txn: Annotated[int, typer.Argument(min=1, help="The transaction that replaced it.", metavar="TXN")],
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Agree, for a consumer, that its shard has another key, type or order from a transaction on.

    Its next snapshot then gives it the whole new state, in place of all that it has had."""
    from tidemark.app.consume import accept_replacement

    accepted = accept_replacement(open_deployment(pipeline, environment), shard, consumer, txn)
    if as_json:
        print_json(accepted)
    else:
        say(f"consumer {consumer} of shard {shard} takes the snapshot of transaction {txn} or later next")


@consumers.command(name="forget", epilog=EXIT_CODES)
def forget(
    pipeline: PipelineArgument,
    shard: ShardArgument,
    consumer: ConsumerArgument,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a consumer that will not come back, so that maintenance no longer waits for it.

    If its process may be alive, its lease is watched first, for a little longer than it lasts."""
    from tidemark.app.consume import leases_of

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


def print_raw(deployment: Deployment, records: Sequence[Mapping[str, Any]]) -> None:
    """Print one record per line, in the given order: that of the source, so that the last record of a key
    stays the last.

    Records of shards with masked columns are not printed, not even masked: sent again, they would write the
    mask into the table. If there are any, `InvalidUsage` names their places after the others are printed."""
    hidden: list[Mapping[str, Any]] = []
    for record in records:
        if masks(record, deployment.config) or record["_raw"] is None:
            hidden.append(record)
        else:
            typer.echo(record["_raw"])
    if hidden:
        raise InvalidUsage(
            f"{len(hidden):,} of {len(records):,} records are not shown: masked columns, or no readable text",
            hint=f"look them up in the source: {_places(deployment, hidden)}",
        )


def _places(deployment: Deployment, records: Iterable[Mapping[str, Any]]) -> str:
    places = [f"{one['place']} (transaction {one['_txn']})" for one in with_places(deployment, records)]
    more = len(places) - _PLACES_SHOWN_MAX
    return "; ".join([*places[:_PLACES_SHOWN_MAX], *([f"and {more:,} more"] if more > 0 else [])])


def how_to_correct(config: PipelineConfig) -> str:
    """One line on how to correct records of this kind of source."""
    raw = f"`tidemark quarantine {config.name} --open --raw`"
    match config.source.type:
        case "kafka":
            how = f"{raw} prints them with keys and headers; correct them and produce them again"
        case "postgres":
            reread = f"`tidemark source reread {config.name} TABLE`"
            how = f"correct the rows in the database, which sends them again, or read a table again: {reread}"
        case _:
            how = f"{raw} prints them; correct them and put them into the source folder as a new file"
    return f"to correct them: {how} (docs/operations.md)"


def _exact(schema: StructType) -> str:
    """The columns as SQL, with decimals as text: JSON readers take numbers as doubles and lose digits."""
    from pyspark.sql.types import DecimalType

    from tidemark.spark.columns import quoted

    return ", ".join(
        f"cast({name} as string) AS {name}" if isinstance(field.dataType, DecimalType) else name
        for field in schema.fields
        for name in (quoted(field.name),)
    )


def row_of(text: str, schema: StructType) -> dict[str, Any]:
    """Parse a row from JSON; decimals in structs, arrays and maps become text too."""
    # Every number is parsed as a Decimal first, because only a double may become a float.
    row = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    return {field.name: _typed(row[field.name], field.dataType) for field in schema if field.name in row}


def _typed(value: Any, kind: DataType) -> Any:
    from pyspark.sql.types import ArrayType, DecimalType, IntegralType, MapType, StructType

    match value, kind:
        case dict(), StructType():
            return {one.name: _typed(value[one.name], one.dataType) for one in kind if one.name in value}
        case dict(), MapType():
            return {key: _typed(item, kind.valueType) for key, item in value.items()}
        case list(), ArrayType():
            return [_typed(item, kind.elementType) for item in value]
        case Decimal(), DecimalType():
            return f"{value:f}"
        case Decimal(), _:
            return int(value) if isinstance(kind, IntegralType) else float(value)
    return value


def _print_raw(deployment: Deployment, *, txn: int | None, only_open: bool, limit: int) -> None:
    from tidemark.app.bad_records import newest

    found = newest(deployment, txn=txn, only_open=only_open, limit=limit + 1)
    if len(found) > limit:
        typer.echo(f"there are more: these are the newest {limit:,}", err=True)
    print_raw(deployment, sorted(found[:limit], key=lambda one: [one[name] for name in _ORDER]))
