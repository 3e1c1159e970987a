"""Until when a transaction can be proven again: as long as its source still has what it read.

A replay is a proof only while the input is there. Maintenance warns before that ends, so that someone can
replay once more, or keep the input elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from tidemark.core.binding import Binding
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import TXN_FIRST, Txn
from tidemark.core.replay import Replayable
from tidemark.pipeline.context import Pipeline

ASKED_AT_ONCE_MAX: Final = 1_000
WARNED_SECONDS: Final = 2 * 86_400


def replayable(
    pipeline: Pipeline, *, since: Txn = TXN_FIRST, at_ends: int | None = None
) -> dict[Txn, Replayable]:
    """The transactions from `since` on, each with whether its input is there, and until when; with `at_ends`
    only so many of the oldest and of the newest. A source that can't be asked now is no reason to tell
    nothing else: that is the caveat then."""
    upper = pipeline.control.bindings.head().upper
    numbers = range(since, upper)
    runs = [numbers] if at_ends is None else [numbers[:at_ends], numbers[at_ends:][-at_ends:]]
    found: dict[Txn, Replayable] = {}
    for run in runs:
        for first in run[::ASKED_AT_ONCE_MAX]:
            found |= _asked(pipeline, first, min(first + ASKED_AT_ONCE_MAX, run.stop))
    return found


def _asked(pipeline: Pipeline, lower: int, upper: int) -> dict[Txn, Replayable]:
    records = pipeline.control.bindings.read(lower, upper)
    bindings = [record for record in records if isinstance(record, Binding)]
    try:
        found = pipeline.source.replayable(bindings)
    except (Determinate, InvalidUsage) as error:
        found = [Replayable(caveat=f"the source can't be asked: {error.fact}")] * len(bindings)
    return {binding.txn: one for binding, one in zip(bindings, found, strict=True)}


def warnings(found: Mapping[Txn, Replayable], *, since: Txn, now_seconds: float) -> tuple[str, ...]:
    """What can't be proven any more, or soon can't, of the transactions that are still kept."""
    kept = [(txn, one) for txn, one in sorted(found.items()) if txn >= since]
    gone = [txn for txn, one in kept if one.gone]
    why = {txn: one.gone for txn, one in kept if one.gone}
    told = [f"{_named(span)} can't be proven again: {why[span[0]]}" for span in _spans(gone)]
    ending = {
        txn: one.until_seconds
        for txn, one in kept
        if not one.gone and one.until_seconds is not None and one.until_seconds - now_seconds < WARNED_SECONDS
    }
    for span in _spans(list(ending)):
        hours = max(0.0, (min(ending[txn] for txn in span) - now_seconds) / 3600)
        told.append(f"{_named(span)} can be proven for {hours:.0f} more hours: its source lets the input go")
    return tuple(told)


def _spans(txns: Sequence[Txn]) -> list[list[Txn]]:
    """Runs of neighbours."""
    numbered = groupby(enumerate(txns), key=lambda pair: pair[1] - pair[0])
    return [[txn for _, txn in run] for _, run in numbered]


def _named(span: Sequence[Txn]) -> str:
    return f"transaction {span[0]}" if len(span) == 1 else f"transactions {span[0]} to {span[-1]}"
