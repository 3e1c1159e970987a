"""Quarantined records as they came, so that they can be corrected and given back through the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from tidemark.cli.masking import masks
from tidemark.cli.places import with_places
from tidemark.core.errors import InvalidUsage

if TYPE_CHECKING:
    from tidemark.assemble import Deployment
    from tidemark.config import PipelineConfig

_PLACES_SHOWN_MAX: Final = 5


def print_raw(deployment: Deployment, records: Sequence[Mapping[str, Any]]) -> None:
    """One record per line on standard output, in the order of the source, so that the last one of a key stays
    the last one.

    A record of a shard with masked columns is never shown, not even masked: given back, it would put the mask
    into the table. Raises an `InvalidUsage` that says where such records stand, after the others."""
    hidden: list[Mapping[str, Any]] = []
    for record in records:
        if masks(record, deployment.config) or record["_raw"] is None:
            hidden.append(record)
        else:
            typer.echo(record["_raw"])
    if hidden:
        raise InvalidUsage(
            f"{len(hidden):,} of {len(records):,} records are not shown: masked columns, or no readable text",
            hint=f"take them from the source: {_places(deployment, hidden)}",
        )


def _places(deployment: Deployment, records: Iterable[Mapping[str, Any]]) -> str:
    places = [f"{one['place']} (transaction {one['_txn']})" for one in with_places(deployment, records)]
    more = len(places) - _PLACES_SHOWN_MAX
    return "; ".join([*places[:_PLACES_SHOWN_MAX], *([f"and {more:,} more"] if more > 0 else [])])


def how_to_correct(config: PipelineConfig) -> str:
    """How the records of this kind of source are corrected, as one line."""
    raw = f"`tidemark quarantine {config.name} --open --raw`"
    match config.source.type:
        case "kafka":
            how = f"{raw} prints them with keys and headers; correct them, and produce them again"
        case "postgres":
            reread = f"`tidemark source reread {config.name} TABLE`"
            how = f"mend the rows in the database, which sends them again, or read a table anew: {reread}"
        case _:
            how = f"{raw} prints them; correct them, and put them into the source's folder as a new file"
    return f"to correct them: {how} (docs/operations.md)"
