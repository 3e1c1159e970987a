"""How a table follows what is declared: its columns may be added to, and that is all.

A row's hash leaves NULL columns out (`spark.digest`), so rows that were written before a column came keep
their digests, and files that lack it are read as NULL. Anything else would change what is on record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from deltalake import Field, Schema

from tidemark.core.errors import InvalidUsage

_OURS: Final = "tidemark."
_EXPIRING_IDS: Final = "delta.setTransactionRetentionDuration"


def check_columns(table: str, there: Schema, declared: Schema) -> None:
    """`InvalidUsage` for a column of a table that is declared no more, or as something else."""
    wanted = {field.name: field for field in declared.fields}
    for field in there.fields:
        now = wanted.get(field.name)
        if now != field:
            became = "is not declared" if now is None else f"is declared as {_type_text(now)}"
            raise InvalidUsage(
                f"column {field.name!r} of {table} is {_type_text(field)}, and now {became}",
                hint="declare it as it was: a table that has rows can get columns, and nothing else; for"
                " another schema, begin a new pipeline",
            )


def fold_properties(keys: Sequence[str], sequence_by: str | None) -> dict[str, str]:
    """What a log says of how its rows are folded, as properties of the table."""
    return {f"{_OURS}keys": json.dumps(list(keys)), f"{_OURS}sequence_by": sequence_by or ""}


def check_properties(table: str, there: Mapping[str, str], declared: Mapping[str, str]) -> None:
    """`InvalidUsage` where the rows of a table would be folded in another way from now on: what was published
    would not be what the log gives."""
    for name, value in declared.items():
        if name.startswith(_OURS) and there.get(name, value) != value:
            setting = name.removeprefix(_OURS)
            raise InvalidUsage(
                f"{table} has rows by {setting} {there[name] or 'none'}, and now it is {value or 'none'}",
                hint=f"set {setting} as it was; to fold by another, begin a new pipeline",
            )


def check_marks_last(table: str, there: Mapping[str, str]) -> None:
    """`InvalidUsage` for a table that would forget its marks."""
    if _EXPIRING_IDS in there:
        raise InvalidUsage(
            f"{table} has {_EXPIRING_IDS}: its marks would expire, and old work would be done again",
            hint=f"unset {_EXPIRING_IDS} on the table",
        )


def lacking(there: Schema, declared: Schema) -> list[Field]:
    """The declared columns that a table doesn't have yet."""
    names = {field.name for field in there.fields}
    return [field for field in declared.fields if field.name not in names]


def _type_text(field: Field) -> str:
    kind = json.loads(field.to_json())["type"]
    return kind if isinstance(kind, str) else json.dumps(kind)
