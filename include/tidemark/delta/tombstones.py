"""The expiry of tombstones, without Spark: maintenance removes those that no later record can lose to.

A tombstone is too late if its sequence is more than the lateness below the lowest watermark that a record
after the last publish is judged by (`pipeline.maintain.lowest_watermark`). Whole files expire, once all
tombstones in them have; nothing is rewritten.

The commit says the last publish's transaction (`EXPIRED`), as an application transaction, which log clean-up
keeps. A reader that starts from this publish or a later one may read the version after it. A reader of an
earlier one reads the version that its publish has recorded, because a record in between may still need an
expired tombstone (`same_rows_version`).
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Final

from tidemark.core.ids import Txn
from tidemark.core.ledger import CommitOutcome
from tidemark.delta.head import LiveFile, TableHead
from tidemark.delta.state import Change, StateTable

EXPIRED: Final = "tidemark.expired"
"""The application transaction of a tombstone table: the last publish whose too late tombstones are gone."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def too_late(head: TableHead, sequence: str, *, line: int) -> list[LiveFile]:
    """The files with only sequences below the line, by their statistics. A file without statistics stays."""
    return [file for file in head.files.values() if _is_too_late(file, sequence, line)]


def expire(table: StateTable, head: TableHead, files: list[LiveFile], *, published: Txn) -> CommitOutcome:
    """Remove these files from the table at this head."""
    after = head.rows - sum(file.live for file in files)
    change = Change(
        "DELETE",
        after,
        removed=[file.path for file in files],
        txns={EXPIRED: int(published)},
        of_rows=False,
        expires=True,
    )
    return table.commit(head, change)


def _is_too_late(file: LiveFile, sequence: str, line: int) -> bool:
    stats = json.loads(file.add.get("stats") or "{}")
    highest = _number(stats.get("maxValues", {}).get(sequence))
    return highest is not None and highest < line and not stats.get("nullCount", {}).get(sequence)


def _number(bound: object) -> int | None:
    """A bound in statistics in the unit of `fold.sequence_number_sql`: itself, days or microseconds."""
    if isinstance(bound, int):
        return bound
    if not isinstance(bound, str):
        return None
    try:
        if "T" not in bound:
            return (date.fromisoformat(bound) - _EPOCH.date()).days
        at = datetime.fromisoformat(bound)
    except ValueError:
        return None
    return (at.replace(tzinfo=at.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)
