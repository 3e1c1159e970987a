"""Shapes: the columns and keys on record for a shard's log, and whether a pipeline file fits them.

A log's rows were written with these columns and folded by these keys and this sequence. With another shape,
rows would not fit the log, or the fold would choose other rows than were published. So a shard with a shape
can get new columns, and no other change (Invariant 17), unless a promotion replaces its log
(`core.generation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import ShardId, Txn

PUT_BACK: Final = (
    "restore the recorded shape, and run again; a shard with rows can get new columns, nothing else: for"
    " another shape, use a new pipeline"
)
AGAIN: Final = "they are recorded now: open the pipeline again and retry"


@dataclass(frozen=True, slots=True)
class Shape:
    """Column types by name, as DDL, and how rows are folded. Empty keys mean one row per record; an empty
    `sequence_by` means the order of the source. None means that the log does not record it."""

    columns: Mapping[str, str]
    keys: tuple[str, ...] | None = None
    sequence_by: str | None = None
    not_null: frozenset[str] | None = None
    """The keys that can't be NULL; rows are looked up by them in another way."""
    grows: bool = False
    """Whether new columns of records are added to it. Then it may lack columns that its log has; its rows are
    NULL in them."""

    def widened(self, other: Shape) -> Shape:
        """The shape for the rows of both, if the other one fits."""
        not_null = self.not_null
        if not_null is not None and other.not_null is not None:
            not_null &= other.not_null
        return replace(self, columns={**self.columns, **other.columns}, not_null=not_null)


Shapes = Mapping[ShardId, Shape]


class Misfit(InvalidUsage):
    """The pipeline file does not fit the recorded shape."""


class NewColumns(Determinate):
    """Records have new columns, which their shards get; each with its type as DDL."""

    def __init__(self, txn: Txn, columns: Mapping[ShardId, Mapping[str, str]]) -> None:
        named = [
            f"{name} {kind} of shard {shard}" for shard in columns for name, kind in columns[shard].items()
        ]
        super().__init__(f"transaction {txn} has new columns: {', '.join(named)}", hint=AGAIN)
        self.txn, self.columns = txn, columns


class Outgrown(Determinate):
    """A log has gained columns since this process opened it; a process that doesn't know them must not use
    it."""

    def __init__(self, shard: ShardId, columns: Sequence[str]) -> None:
        super().__init__(f"shard {shard} has new columns: {', '.join(columns)}", hint=AGAIN)


def check_known(shard: ShardId, *, recorded: Shape, known: Shape) -> None:
    """`Outgrown` if the log has columns that the process does not know."""
    missing = [name for name in recorded.columns if name not in known.columns]
    if missing:
        raise Outgrown(shard, missing)


def differences(*, recorded: Shape, declared: Shape) -> Iterator[str]:
    """The differences because of which a declared shape does not fit the recorded one, as text."""
    for name, kind in recorded.columns.items():
        now = declared.columns.get(name)
        if now != kind and not (now is None and declared.grows):
            says = f"says {now}" if now is not None else "does not declare it"
            yield f"column {name!r} is recorded as {kind}, and the pipeline file {says}"
    folds = {
        "keys": (_listed(recorded.keys), _listed(declared.keys)),
        "sequence_by": (recorded.sequence_by, declared.sequence_by),
    }
    for setting, (then, now) in folds.items():
        if then is not None and now is not None and then != now:
            yield f"{setting} is recorded as {then or 'none'}, and the pipeline file says {now or 'none'}"
    if recorded.not_null is not None and declared.not_null is not None and recorded.keys == declared.keys:
        for name in sorted(declared.not_null - recorded.not_null):
            yield f"key {name!r} is recorded as nullable, but the pipeline file says NOT NULL"


def misfit(shard: ShardId, *, recorded: Shape | None, declared: Shape) -> Misfit | None:
    """Why rows of the declared shape can't go to the shard's log; None if they can."""
    found = list(differences(recorded=recorded, declared=declared)) if recorded is not None else []
    return Misfit(f"shard {shard}: {'; '.join(found)}", hint=PUT_BACK) if found else None


def replaced_in(*, recorded: Shape, declared: Shape) -> tuple[str, ...]:
    """What a log would have to be replaced for: another type, key or order, as text. Empty where none of them
    differs; then the declared shape fits, or lacks something that is not replaced."""
    found = [
        f"column {name} {kind} -> {declared.columns[name]}"
        for name, kind in recorded.columns.items()
        if declared.columns.get(name, kind) != kind
    ]
    folds = {
        "keys": (_listed(recorded.keys), _listed(declared.keys)),
        "sequence_by": (recorded.sequence_by, declared.sequence_by),
    }
    found += [
        f"{setting} {then or 'none'} -> {now or 'none'}"
        for setting, (then, now) in folds.items()
        if then is not None and now is not None and then != now
    ]
    return tuple(found)


def new_columns(*, recorded: Shape, declared: Shape) -> tuple[str, ...]:
    """The declared columns that the log does not have yet."""
    return tuple(name for name in declared.columns if name not in recorded.columns)


def check_on_record(shards: Sequence[ShardId], *, recorded: Shapes, declared: Shapes) -> None:
    """Raise unless the logs of these shards have the declared shape on record. Until it is on record, a
    concurrent writer could still record another one."""
    for shard in shards:
        if shard not in declared:
            continue
        there, wanted = recorded.get(shard), declared[shard]
        found = misfit(shard, recorded=there, declared=wanted)
        if found is not None:
            raise found
        if there is None or there != there.widened(wanted):
            raise Determinate(f"the shape of shard {shard} is not recorded yet", hint="retry")


def _listed(keys: tuple[str, ...] | None) -> str | None:
    return f"[{', '.join(keys)}]" if keys else None if keys is None else ""
