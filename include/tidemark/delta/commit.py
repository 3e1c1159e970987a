"""The names of a state's data files. A file's name, or that of its folder, says for which version of the
table it was written: it goes in with that version or never.

One commit of a Delta table: its files made durable, then one log entry put if absent.

The order is what makes a commit safe against a lost machine: the files that the entry names, their folders,
the entry's own bytes, the entry's name, its folder. Whoever can read the entry can read what it names.

What came of it is decided here, once, by the entry that is there afterwards (Invariant 5):

- it has our mark: committed, whatever the store said (a reply that was lost and retried by the store's client
  looks like a lost race with oneself);
- it has another's: a conflict, and nothing of ours is visible;
- there is none, though there are later ones: it was there once, and log clean-up has taken it away since. It
  was another's, unless ours is old enough to have been cleaned;
- there is none at all: on a local disk nothing was written; in an object store a request may still be under
  way, so nobody knows.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage, InvariantViolation
from tidemark.core.ledger import CommitOutcome, Committed, Conflict
from tidemark.delta.store import Store

_NAME: Final = re.compile(r"v(\d{20})-[0-9a-f]{32}(?:\.parquet|/.+)\Z")


def file_name(version: int, nonce: UUID) -> str:
    """The name of a data file that is written for a version."""
    return f"v{version:020}-{nonce.hex}.parquet"


def file_folder(version: int, nonce: UUID) -> str:
    """The folder of data files that an engine writes for a version."""
    return f"v{version:020}-{nonce.hex}"


def file_version(path: str) -> int | None:
    """The version that a data file was written for; None for one that is not ours."""
    found = _NAME.match(path)
    return int(found[1]) if found else None


LOG: Final = "_delta_log"
ENGINE: Final = "tidemark"
ATTEMPT: Final = "tidemarkCommit"
CHECKSUM: Final = "tidemarkChecksum"
COMMIT_SECONDS_MAX: Final = 60
"""A writer that was stopped for longer than log entries are kept could put an entry that is not absent but
cleaned away. So a commit that took this long is not believed, but read back."""
_NUMBERED: Final = re.compile(r"(\d{20})\.(?:json|checkpoint\.)")
_UNLINKED: Final = re.compile(rf"{LOG}/_commit_(\d{{20}})_[0-9a-f]{{32}}\.tmp\Z")
ENTRY: Final = re.compile(r"\d{20}\.json\Z")
Action = dict[str, Any]


def entry_path(version: int) -> str:
    """The log entry of a version."""
    return f"{LOG}/{version:020}.json"


def unlinked_version(path: str) -> int | None:
    """The version that a file holds the entry of, under a name that only its writer knows; None for others.
    One that is left over can't go in any more when that version is there."""
    found = _UNLINKED.match(path)
    return int(found[1]) if found else None


def remove_unlinked(store: Store, version: int) -> None:
    """Remove what writers that died have left of their entries up to a version that is there."""
    for name in store.names_after(LOG, "_commit_"):
        left = unlinked_version(f"{LOG}/{name}")
        if left is not None and left <= version:
            store.remove_quietly(f"{LOG}/{name}")


def commit_info(operation: str, *, attempt: str, at_ms: int, **facts: Any) -> Action:
    """The first action of an entry; `attempt` is the mark by which its writer knows it again."""
    return {
        "commitInfo": {
            "timestamp": at_ms,
            "operation": operation,
            "operationParameters": {},
            # A blind append would be let past concurrent changes by whoever checks for conflicts.
            "isBlindAppend": False,
            "engineInfo": ENGINE,
            ATTEMPT: attempt,
            **facts,
        }
    }


def txn_actions(txns: Mapping[str, int], *, at_ms: int) -> list[Action]:
    """Application transactions, in the order of their names."""
    return [
        {"txn": {"appId": name, "version": value, "lastUpdated": at_ms}}
        for name, value in sorted(txns.items())
    ]


def add_action(path: str, *, size: int, at_ms: int, data_change: bool, stats: str) -> Action:
    """A file that comes, with its statistics as JSON."""
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": size,
            "modificationTime": at_ms,
            "dataChange": data_change,
            "stats": stats,
        }
    }


def remove_action(path: str, *, size: int, at_ms: int, data_change: bool) -> Action:
    """A file that goes."""
    return {
        "remove": {
            "path": path,
            "deletionTimestamp": at_ms,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": size,
        }
    }


def entry_bytes(actions: Sequence[Mapping[str, Any]]) -> bytes:
    """A log entry: an action to a line. The `commitInfo` that it begins with has a checksum of the lines that
    follow, so that an entry that was cut short or changed is known."""
    first, *others = actions
    rest = b"".join(_line(action) for action in others)
    if "commitInfo" in first:
        first = {"commitInfo": {**first["commitInfo"], CHECKSUM: checksum_of(rest)}}
    return _line(first) + rest


def _line(action: Mapping[str, Any]) -> bytes:
    return json.dumps(action, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def checksum_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def entry_actions(data: bytes, version: int, table: str) -> list[Action]:
    """The actions of a log entry. One that is empty, cut short or changed is no entry that anyone wrote."""
    try:
        found = [json.loads(line) for line in data.splitlines() if line.strip()]
        if not found or not all(isinstance(line, dict) for line in found):
            raise ValueError("it is empty" if not data.strip() else "it has lines that are no actions")
        check = found[0].get("commitInfo", {}).get(CHECKSUM)
        if check is not None and check != checksum_of(data.partition(b"\n")[2]):
            raise ValueError("its actions don't agree with its checksum")
    except (ValueError, AttributeError) as error:
        raise InvariantViolation(
            f"entry {version} of the log of {table} is lost: {error}",
            hint="the machine lost power before it was on disk, or a hand changed it; restore a backup",
        ) from error
    return found


def put_entry(
    store: Store,
    version: int,
    actions: Sequence[Mapping[str, Any]],
    *,
    files: Sequence[str] = (),
    seconds: Callable[[], float] = time.time,
) -> CommitOutcome:
    """Make a version of a table, if and only if there is none of this number.

    `files` are those that the entry names for the first time; their bytes must be on disk already. The first
    action must be a `commitInfo` with our mark of this attempt."""
    attempt = dict(actions[0]).get("commitInfo", {}).get(ATTEMPT) if actions else None
    if not attempt:
        raise InvalidUsage(f"an entry for version {version} of {store.uri} does not say whose it is")
    began = seconds()
    try:
        # An entry that is absent may have been cleaned away, but never the newest ones.
        if newest_version(store, version) >= version:
            return Conflict()
        store.sync_folders(files)
    except OSError as error:
        raise _unwritten(store, version, error) from error
    try:
        is_ours = store.put_if_absent(entry_path(version), entry_bytes(actions))
    except OSError as error:
        return _read_back(store, version, str(attempt), error, is_late=lambda: _is_late(began, seconds()))
    if not is_ours:
        return _read_back(store, version, str(attempt), None, is_late=lambda: _is_late(began, seconds()))
    if _is_late(began, seconds()):
        raise Indeterminate(
            f"the commit of version {version} to {store.uri} took over {COMMIT_SECONDS_MAX} s",
            hint="read back",
        )
    return Committed(version)


def _is_late(began: float, now: float) -> bool:
    return now - began > COMMIT_SECONDS_MAX


def newest_version(store: Store, version: int) -> int:
    """The newest version that the log has an entry or a checkpoint of, if it is not before this one."""
    before = entry_path(version - 1).removeprefix(f"{LOG}/")
    found = (_NUMBERED.match(name) for name in store.names_after(LOG, before))
    return max((int(one[1]) for one in found if one), default=-1)


def _read_back(
    store: Store, version: int, attempt: str, error: OSError | None, *, is_late: Callable[[], bool]
) -> CommitOutcome:
    """Whose log entry is there?"""
    try:
        try:
            entry = store.get(entry_path(version))
        except FileNotFoundError:
            if error is None or newest_version(store, version) >= version:
                # It was there once, and clean-up has taken it away since: not ours, unless ours is old.
                if not is_late():
                    return Conflict()
            elif store.local:
                raise _unwritten(store, version, error) from error
            raise _unknown(store, version, error or OSError("it was cleaned away")) from error
        if error is not None:
            # The error may have been that of the last sync.
            store.sync_folders((entry_path(version),))
    except OSError as unread:
        raise _unknown(store, version, unread) from unread
    return Committed(version) if _mark_of(entry) == attempt else Conflict()


def _mark_of(entry: bytes) -> str:
    """The attempt that made an entry; empty for another program's."""
    for line in entry.splitlines():
        try:
            info = json.loads(line).get("commitInfo")
        except (ValueError, AttributeError):
            continue
        if info:
            return str(info.get(ATTEMPT) or "")
    return ""


def _unwritten(store: Store, version: int, error: OSError) -> Determinate:
    return Determinate(
        f"version {version} of {store.uri} was not written: {error}", hint="mend the cause, then retry"
    )


def _unknown(store: Store, version: int, error: OSError) -> Indeterminate:
    return Indeterminate(f"version {version} of {store.uri} may have been written: {error}", hint="read back")
