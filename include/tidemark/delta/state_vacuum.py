"""Which files of a state may be deleted: those that no version within the retention needs.

Delta's own clean-ups don't do here. That of delta-rs deletes deletion vectors that are in use; Spark's passes
over the folder of ours. So vectors are cleaned by nobody else, and this does it by the log:

- what the newest version has stays, and so do its vectors;
- what an entry took out stays for the retention, with the vector that it had then, and goes after it;
- what no entry names, and has a name of ours, was written for a version, or for any up to it: it goes when
  that version is there, because then it can't come in any more. No clock is asked, so no writer is too slow;
- what no entry names, and has another's name, goes by its age, as Delta's own clean-up does it.

The files are listed before the head is read. One that is written meanwhile is for a later version; one that
is committed meanwhile is in the head.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.core.errors import InvalidUsage
from tidemark.delta import state_files, vectors
from tidemark.delta.head import TableHead, read_head
from tidemark.delta.store import Store

RETENTION: Final = "delta.deletedFileRetentionDuration"
LOG_RETENTION: Final = "delta.logRetentionDuration"
LOG_DAYS_MIN: Final = 30
"""For how long Delta keeps a table's log by itself."""
_RETENTION_DEFAULT: Final = "interval 1 week"
_INTERVAL: Final = re.compile(r"(?:interval )?(\d+) (week|day|hour|minute|second)s?\Z", re.IGNORECASE)
_UNIT_MS: Final = {
    "week": 604_800_000, "day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1_000,
}  # fmt: skip
_VECTOR: Final = re.compile(r"(?:[^/]*/)?deletion_vector_([0-9a-f-]{36})\.bin\Z")
_LEFT_ALONE: Final = ("_delta_log/", "_change_data/")


def retention_properties(days: int) -> dict[str, str]:
    """For how long files stay that the newest version doesn't need, in Delta's words: a VACUUM by anybody
    goes by it. Their versions stay for as long: without its log a file can't be read, and Delta refuses a
    table that would keep files for longer."""
    return {
        RETENTION: f"interval {days} days",
        LOG_RETENTION: f"interval {max(days, LOG_DAYS_MIN)} days",
    }


@dataclass(frozen=True, slots=True)
class Obsolete:
    """A file that may go, and why."""

    path: str
    bytes: int
    why: str


def decide_vacuum(
    head: TableHead,
    listed: Mapping[str, int],
    *,
    now_ms: int,
    kept_ms: int,
    modified_ms: Mapping[str, int],
) -> list[Obsolete]:
    """What may go of the files with their sizes, which were listed before the head was read. `modified_ms`
    tells the age of files with another's name."""
    if head.version < 0:
        return []
    _check_remembered(head, kept_ms)
    needed = set(_needed(head, after_ms=now_ms - kept_ms))
    removed = {path for one in head.removed.values() for path in _paths(one.location, one.vector)}
    found = []
    for path, size in sorted(listed.items()):
        if path in needed or path.startswith(_LEFT_ALONE) or not _is_tables(path):
            continue
        version = version_in(path)
        if path in removed:
            found.append(Obsolete(path, size, "taken out longer ago than the retention"))
        elif version is not None and version <= head.version:
            found.append(Obsolete(path, size, f"version {version} is there without it"))
        elif version is None and now_ms - modified_ms.get(path, now_ms) >= kept_ms:
            found.append(Obsolete(path, size, "in no version, and older than the retention"))
    return found


def vacuum(store: Store, *, now_ms: int, kept_ms: int, dry_run: bool = False) -> Sequence[Obsolete]:
    """Delete what may go; whoever comes second finds nothing to do."""
    listed = store.listed()
    foreign = [path for path in listed if _is_tables(path) and version_in(path) is None]
    modified_ms = store.modified_ms(foreign)
    head = read_head(store)
    found = decide_vacuum(head, listed, now_ms=now_ms, kept_ms=kept_ms, modified_ms=modified_ms)
    if not dry_run:
        for one in found:
            store.delete(one.path)
    return found


def version_in(path: str) -> int | None:
    """The version that a file was written for; None for a name that is not ours."""
    vector = _VECTOR.match(path)
    if vector is not None:
        return vectors.version_in(uuid.UUID(vector[1])) if path.startswith(f"{vectors.FOLDER}/") else None
    return state_files.version_in(path)


def _is_tables(path: str) -> bool:
    """Whether it is a file of a kind that tables have; others are nobody's business."""
    if _VECTOR.match(path) is not None or state_files.version_in(path) is not None:
        return True
    return path.endswith(".parquet") and not path.startswith("_")


def _needed(head: TableHead, *, after_ms: int) -> Iterator[str]:
    for file in head.files.values():
        yield from _paths(file.location, file.vector)
    for gone in head.removed.values():
        if gone.at_ms > after_ms:
            yield from _paths(gone.location, gone.vector)


def _paths(location: str, vector: vectors.Descriptor | None) -> Iterator[str]:
    yield location
    if vector is not None and vector.path is not None:
        yield vector.path


def _check_remembered(head: TableHead, kept_ms: int) -> None:
    """The table's log must remember what was taken out for as long as that is kept."""
    text = head.configuration.get(RETENTION, _RETENTION_DEFAULT)
    found = _INTERVAL.match(text.strip())
    if found is None or int(found[1]) * _UNIT_MS[found[2].lower()] < kept_ms:
        raise InvalidUsage(
            f"{RETENTION} is {text!r}, and files are to be kept for {kept_ms // 1000} s",
            hint="raise the property first: its log would forget which files those are",
        )
