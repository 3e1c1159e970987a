"""Shapes: what a shard's log has on record about its rows, and whether a pipeline file fits it.

A log's rows were written with these columns and folded by these keys and this sequence. A file that says
otherwise would give rows that the log can't hold, or choose other rows than were published. So a shard that
has a shape can get columns, and nothing else (Invariant 17).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import ShardId, Txn

PUT_BACK: Final = (
    "put it back as recorded, and run again; a shard that has rows can get columns, and nothing else: for"
    " another shape, begin a new pipeline"
)
AGAIN: Final = "they are on record: retry, with the pipeline opened again"


@dataclass(frozen=True, slots=True)
class Shape:
    """The types of the columns by name, as DDL, and how rows are folded: no keys is a row per record, an
    empty `sequence_by` is the order of the source. None is for a log that doesn't say."""

    columns: Mapping[str, str]
    keys: tuple[str, ...] | None = None
    sequence_by: str | None = None
    not_null: frozenset[str] | None = None
    """The keys that can't be NULL: rows are looked up by them in another way."""
    grows: bool = False
    """Whether it gets the columns that are new in its records: then it may lack some that its log has, and
    its rows are NULL in them."""

    def widened(self, other: Shape) -> Shape:
        """The shape that takes the rows of both, where the other one fits."""
        not_null = self.not_null
        if not_null is not None and other.not_null is not None:
            not_null &= other.not_null
        return replace(self, columns={**self.columns, **other.columns}, not_null=not_null)


Shapes = Mapping[ShardId, Shape]


class Misfit(InvalidUsage):
    """The pipeline file does not fit what the warehouse has on record."""


class NewColumns(Determinate):
    """Records have columns that their shards do not have yet and get from them, each with its type as DDL."""

    def __init__(self, txn: Txn, columns: Mapping[ShardId, Mapping[str, str]]) -> None:
        named = [
            f"{name} {kind} of shard {shard}" for shard in columns for name, kind in columns[shard].items()
        ]
        super().__init__(f"transaction {txn} has new columns: {', '.join(named)}", hint=AGAIN)
        self.txn, self.columns = txn, columns


class Outgrown(Determinate):
    """A log has got columns since this process opened it, and who does not know them may not work on it."""

    def __init__(self, shard: ShardId, columns: Sequence[str]) -> None:
        super().__init__(f"shard {shard} has new columns: {', '.join(columns)}", hint=AGAIN)


def check_known(shard: ShardId, *, recorded: Shape, known: Shape) -> None:
    """`Outgrown` where a log has columns that a process does not know."""
    missing = [name for name in recorded.columns if name not in known.columns]
    if missing:
        raise Outgrown(shard, missing)


def differences(*, recorded: Shape, declared: Shape) -> Iterator[str]:
    """Everything in which a declared shape does not fit the recorded one, in words."""
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
            yield f"key {name!r} is recorded as one that may be NULL, and the pipeline file says NOT NULL"


def misfit(shard: ShardId, *, recorded: Shape | None, declared: Shape) -> Misfit | None:
    """Why rows of the declared shape can't go to the shard's log, if they can't."""
    found = list(differences(recorded=recorded, declared=declared)) if recorded is not None else []
    return Misfit(f"shard {shard}: {'; '.join(found)}", hint=PUT_BACK) if found else None


def new_columns(*, recorded: Shape, declared: Shape) -> tuple[str, ...]:
    """The declared columns that the log does not have yet."""
    return tuple(name for name in declared.columns if name not in recorded.columns)


def check_on_record(shards: Sequence[ShardId], *, recorded: Shapes, declared: Shapes) -> None:
    """Rows of these shards may be sealed: their logs have all of the shape that they were made with. What is
    not on record a rival could still put there otherwise."""
    for shard in shards:
        if shard not in declared:
            continue
        there, wanted = recorded.get(shard), declared[shard]
        found = misfit(shard, recorded=there, declared=wanted)
        if found is not None:
            raise found
        if there is None or there != there.widened(wanted):
            raise Determinate(f"the shape of shard {shard} is not on record yet", hint="retry")


def _listed(keys: tuple[str, ...] | None) -> str | None:
    return f"[{', '.join(keys)}]" if keys else None if keys is None else ""
