"""The commands that show transactions: `txns`, `show`. Neither changes anything or starts Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.shared import (
    EXIT_CODES,
    EnvironmentOption,
    JsonOption,
    PipelineArgument,
    open_deployment,
    print_json,
    print_table,
    say,
)

if TYPE_CHECKING:
    from tidemark.assemble import Deployment
    from tidemark.core.binding import Binding
    from tidemark.core.seal import Seal


def register(app: typer.Typer) -> None:
    """Add the commands to the main one."""
    app.command(name="txns", epilog=EXIT_CODES)(txns)
    app.command(name="show", epilog=EXIT_CODES)(show)


def txns(
    pipeline: PipelineArgument,
    last: Annotated[int, typer.Option("--last", "-n", min=1, help="How many, the newest first.")] = 20,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """List transactions: what was read, what was written, who decided, what replays said."""
    from tidemark.core.binding import Binding

    deployment = open_deployment(pipeline, environment)
    control = deployment.control
    upper = control.bindings.head().upper
    lower = max(1, upper - last)
    control.seals.head()
    control.journal.head()
    seals = {seal.txn: seal for seal in control.seals.read(lower, upper)}
    bound = [record for record in control.bindings.read(lower, upper) if isinstance(record, Binding)]
    listed = [_row(deployment, binding, seals.get(binding.txn)) for binding in reversed(bound)]
    if as_json:
        print_json(listed)
        return
    columns = ("txn", "decision", "read", "rows per shard", "run", "last verdict")
    print_table("", columns, [tuple(row.values()) for row in listed])


def _row(deployment: Deployment, binding: Binding, seal: Seal | None) -> dict[str, object]:
    verdicts = [
        entry.detail["verdict"]
        for entry in deployment.control.journal.find(str(binding.txn))
        if "verdict" in entry.detail
    ]
    shards = seal.shards.items() if seal is not None else ()
    return {
        "txn": binding.txn,
        "decision": str(seal.decision) if seal is not None else "open",
        "read": seal.source.count if seal is not None else None,
        "rows": ", ".join(f"{shard} {parts.digest.count}" for shard, parts in shards),
        "run": binding.owner.run_id,
        "verdict": verdicts[-1] if verdicts else "",
    }


def show(
    pipeline: PipelineArgument,
    txn: Annotated[int, typer.Argument(min=1, help="The transaction's number.", metavar="TXN")],
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one transaction whole: its input, its seal with parts and digests, its journal."""
    from tidemark.cli.places import show_input, show_seal
    from tidemark.core.ids import Txn
    from tidemark.pipeline.context import binding_at
    from tidemark.pipeline.replay import bound_range

    deployment = open_deployment(pipeline, environment)
    bound_range(deployment.pipeline, txn_from=txn, txn_to=txn)
    binding = binding_at(deployment.pipeline, Txn(txn))
    control = deployment.control
    control.seals.head()
    control.journal.head()
    seal = next(iter(control.seals.read(txn, txn + 1)), None)
    entries = control.journal.find(str(txn))
    settings = (seal.configuration if seal is not None else None) or binding.configuration
    if as_json:
        print_json({"binding": binding, "seal": seal, "journal": entries})
        return
    say(f"transaction {txn}", style="bold")
    say(f"bound by run {binding.owner.run_id}, configuration {settings.fingerprint}")
    show_input(binding)
    if seal is None:
        say("open: not sealed yet", style="yellow")
    else:
        show_seal(seal)
    if entries:
        lines = [(e.event, e.token, ", ".join(f"{k}: {v}" for k, v in e.detail.items())) for e in entries]
        print_table("", ("event", "by", ""), lines)
