"""Which files of a table may be deleted: those that no version within the retention needs.

It is for states, tombstones and control tables. Delta's own clean-ups don't do here. That of delta-rs deletes
deletion vectors that are in use, and by age what is about to be committed; Spark's passes over the folder of
our vectors. So this goes by the log:

- what the newest version has stays, and so do its vectors;
- what an entry took out stays for the retention, with the vector that it had then, and goes after it;
- what no entry names, and has a name of ours, was written for a version, or for any up to it: it goes when
  that version is there, because then it can't come in any more. No clock is asked, so no writer is too slow;
- what no entry names, and has another's name, goes by its age, as Delta's own clean-up does it;
- files of the change data feed stay for the retention from the entry on that names them.

The files are listed before the head is read. One that is written meanwhile is for a later version; one that
is committed meanwhile is in the head.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.delta import commit, deletion_vectors, records
from tidemark.delta.commit import entry_actions, entry_path, unlinked_version
from tidemark.delta.head import History, TableHead, read_history
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
_FEED: Final = "_change_data/"


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


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a table with their sizes, and the history that was read after them. `modified_ms` tells
    the age of files with another's name, `fed_ms` when the entry was made that names a file of the feed."""

    listed: Mapping[str, int]
    history: History
    modified_ms: Mapping[str, int]
    fed_ms: Mapping[str, int]


def read_listing(store: Store) -> Listing:
    """List a table's files, and read what its log says of them."""
    listed = store.listed()
    modified_ms = store.modified_ms(path for path in listed if _is_tables(path) and version_in(path) is None)
    history = read_history(store)
    feed = {version_in(path) for path in listed if path.startswith(_FEED)} - {None}
    fed_ms = {
        path: at
        for version in feed
        for path, at in _named_in_feed(store, version, history.head.version).items()
    }
    return Listing(listed, history, modified_ms, fed_ms)


def _named_in_feed(store: Store, version: int | None, newest: int) -> dict[str, int]:
    """The feed's files of an entry, and when it was made; none where there is no entry, or no more."""
    if version is None or version > newest:
        return {}
    try:
        actions = entry_actions(store.get(entry_path(version)), version, store.uri)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Determinate(f"the log of {store.uri} can't be read: {error}", hint="retry") from error
    at_ms = next((int(line["commitInfo"]["timestamp"]) for line in actions if "commitInfo" in line), 0)
    return {unquote(line["cdc"]["path"]): at_ms for line in actions if "cdc" in line}


def decide_vacuum(found: Listing, *, now_ms: int, kept_ms: int) -> list[Obsolete]:
    """What may go of the listed files."""
    head = found.history.head
    if head.version < 0:
        return []
    needed = set(_needed(found.history, after_ms=now_ms - kept_ms))
    needed |= {path for path, at_ms in found.fed_ms.items() if now_ms - at_ms < kept_ms}
    removed = {path for one in found.history.removed for path in _paths(one.location, one.vector)}
    removed |= found.fed_ms.keys()
    obsolete = []
    for path, size in sorted(found.listed.items()):
        if path in needed or not _is_tables(path):
            continue
        version = version_in(path)
        if path in removed:
            obsolete.append(Obsolete(path, size, "taken out longer ago than the retention"))
        elif version is not None and version <= head.version:
            obsolete.append(Obsolete(path, size, f"version {version} is there without it"))
        elif version is None and now_ms - found.modified_ms.get(path, now_ms) >= kept_ms:
            obsolete.append(Obsolete(path, size, "in no version, and older than the retention"))
    return obsolete


def vacuum(store: Store, *, now_ms: int, kept_ms: int, dry_run: bool = False) -> Sequence[Obsolete]:
    """Delete what may go; whoever comes second finds nothing to do."""
    found = read_listing(store)
    if found.history.head.version >= 0:
        check_remembered(found.history.head, kept_ms)
    obsolete = decide_vacuum(found, now_ms=now_ms, kept_ms=kept_ms)
    if not dry_run:
        for one in obsolete:
            store.delete(one.path)
    return obsolete


def version_in(path: str) -> int | None:
    """The version that a file was written for; None for a name that is not ours."""
    vector = _VECTOR.match(path)
    if vector is not None:
        return (
            deletion_vectors.version_in(uuid.UUID(vector[1]))
            if path.startswith(f"{deletion_vectors.FOLDER}/")
            else None
        )
    for of in (commit.file_version, records.version_in, unlinked_version):
        if (version := of(path.removeprefix(_FEED))) is not None:
            return version
    return None


def _is_tables(path: str) -> bool:
    """Whether it is a file of a kind that tables have; others are nobody's business."""
    if _VECTOR.match(path) is not None or version_in(path) is not None:
        return True
    return path.endswith(".parquet") and not path.removeprefix(_FEED).startswith("_")


def _needed(history: History, *, after_ms: int) -> Iterator[str]:
    for file in history.head.files.values():
        yield from _paths(file.location, file.vector)
    for gone in history.removed:
        if gone.at_ms > after_ms:
            yield from _paths(gone.location, gone.vector)


def _paths(location: str, vector: deletion_vectors.Descriptor | None) -> Iterator[str]:
    yield location
    if vector is not None and vector.path is not None:
        yield vector.path


def check_remembered(head: TableHead, kept_ms: int) -> None:
    """The table's log must remember what was taken out for as long as that is kept."""
    text = head.configuration.get(RETENTION, _RETENTION_DEFAULT)
    found = _INTERVAL.match(text.strip())
    if found is None or int(found[1]) * _UNIT_MS[found[2].lower()] < kept_ms:
        raise InvalidUsage(
            f"{RETENTION} is {text!r}, and files are to be kept for {kept_ms // 1000} s",
            hint="raise the property first: its log would forget which files those are",
        )
