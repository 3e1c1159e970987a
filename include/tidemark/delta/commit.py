"""Commits to a Delta table: make the files durable, then put one log entry if it is absent.

The name of a data file, or of its folder, holds the table version that it was written for. It is committed
with that version or never.

The order protects a commit from a machine failure: the files that the entry names, their folders, the entry's
bytes, the entry's name, its folder. A reader that can read the entry can read the files that it names.

The outcome is decided here, once, by the log entry that exists afterwards (Invariant 5):

- It has our mark: the commit succeeded, whatever the store replied. (If a reply is lost and the store's
  client retries, the commit looks like a lost race with itself.)
- It has another mark: a conflict. Nothing of ours is visible.
- It is absent, but later entries exist: it existed, and log clean-up has deleted it. It was another writer's,
  unless our attempt is old enough to have been cleaned up.
- It is absent, and so are later ones: on a local disk nothing was written. In an object store a request may
  still be in flight, so the outcome is unknown.

On a disk an entry is visible before its name is durable. `read_entry` makes the name durable first, whoever
has written it. So nothing that is committed, deleted or acknowledged depends on an entry that a power cut
may take back.
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
from tidemark.delta.store import NotLasting, Store

_NAME: Final = re.compile(r"v(\d{20})-[0-9a-f]{32}(?:\.parquet|/.+)\Z")


def file_name(version: int, nonce: UUID) -> str:
    return f"v{version:020}-{nonce.hex}.parquet"


def file_folder(version: int, nonce: UUID) -> str:
    """The folder of data files that Spark writes for a version."""
    return f"v{version:020}-{nonce.hex}"


def file_version(path: str) -> int | None:
    """The version that a data file was written for; None for a foreign name."""
    found = _NAME.match(path)
    return int(found[1]) if found else None


LOG: Final = "_delta_log"
ENGINE: Final = "tidemark"
ATTEMPT: Final = "tidemarkCommit"
CHECKSUM: Final = "tidemarkChecksum"
COMMIT_SECONDS_MAX: Final = 60
"""Log clean-up deletes old entries. A writer that was suspended for longer than their retention could
therefore put an entry that seems absent. So a commit that took longer than this counts as indeterminate and
is read back."""
_NUMBERED: Final = re.compile(r"(\d{20})\.(?:json|checkpoint\.)")
_UNLINKED: Final = re.compile(rf"{LOG}/_commit_(\d{{20}})_[0-9a-f]{{32}}\.tmp\Z")
ENTRY: Final = re.compile(r"\d{20}\.json\Z")
Action = dict[str, Any]


def entry_path(version: int) -> str:
    return f"{LOG}/{version:020}.json"


def unlinked_version(path: str) -> int | None:
    """The version of a temporary entry file, which only its writer knows by name; None for other files. Once
    that version exists, the file can't be committed any more."""
    found = _UNLINKED.match(path)
    return int(found[1]) if found else None


def remove_unlinked(store: Store, version: int) -> None:
    """Remove temporary entry files that dead writers left, up to a version that exists."""
    for name in store.names_after(LOG, "_commit_"):
        left = unlinked_version(f"{LOG}/{name}")
        if left is not None and left <= version:
            store.remove_quietly(f"{LOG}/{name}")


def commit_info(operation: str, *, attempt: str, at_ms: int, **facts: Any) -> Action:
    """The first action of an entry; `attempt` is the mark by which its writer recognizes it."""
    return {
        "commitInfo": {
            "timestamp": at_ms,
            "operation": operation,
            "operationParameters": {},
            # A conflict check lets a blind append pass concurrent changes.
            "isBlindAppend": False,
            "engineInfo": ENGINE,
            ATTEMPT: attempt,
            **facts,
        }
    }


def txn_actions(txns: Mapping[str, int], *, at_ms: int) -> list[Action]:
    """`txn` actions (application transactions), sorted by name."""
    return [
        {"txn": {"appId": name, "version": value, "lastUpdated": at_ms}}
        for name, value in sorted(txns.items())
    ]


def add_action(path: str, *, size: int, at_ms: int, data_change: bool, stats: str) -> Action:
    """An `add` action; `stats` is JSON."""
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
    """Encode a log entry, one action per line. Its first action, `commitInfo`, gets a checksum of the lines
    after it, so that a truncated or changed entry is detected."""
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
    """Parse a log entry. `InvariantViolation` if it is empty, truncated or changed: no writer leaves such an
    entry."""
    try:
        found = [json.loads(line) for line in data.splitlines() if line.strip()]
        if not found or not all(isinstance(line, dict) for line in found):
            raise ValueError("it is empty" if not data.strip() else "it has lines that are not actions")
        check = found[0].get("commitInfo", {}).get(CHECKSUM)
        if check is not None and check != checksum_of(data.partition(b"\n")[2]):
            raise ValueError("its actions don't agree with its checksum")
    except (ValueError, AttributeError) as error:
        raise InvariantViolation(
            f"entry {version} of the log of {table} is lost: {error}",
            hint="the machine lost power before it was on disk, or a hand changed it;"
            " `tidemark recover PIPELINE` sets it aside and shows what it takes with it",
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
    """Create a version of a table if and only if it does not exist yet.

    `files` are the files that the entry names for the first time; their bytes must already be on disk. The
    first action must be a `commitInfo` with the mark of this attempt."""
    attempt = dict(actions[0]).get("commitInfo", {}).get(ATTEMPT) if actions else None
    if not attempt:
        raise InvalidUsage(f"an entry for version {version} of {store.uri} does not name its writer")
    began = seconds()
    try:
        # An absent entry may have been cleaned up. Clean-up deletes ascending, so then the entry before it is
        # gone too; as long as that one is there, the log, which may be long, need not be listed.
        is_next = version > 0 and store.has(entry_path(version - 1))
        if not is_next and newest_version(store, version) >= version:
            return Conflict()
        store.sync_folders(files)
        store.sync_names()
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


def read_entry(store: Store, version: int) -> bytes:
    """A log entry that a power cut can't take back. FileNotFoundError if it doesn't exist, OSError if it
    can't be read, `Indeterminate` if its name can't be made durable."""
    try:
        data, is_new = store.get_lasting(entry_path(version))
    except NotLasting as error:
        raise _unknown(store, version, error) from error
    if is_new and newest_version(store, version + 1) > version and not store.has(entry_path(version + 1)):
        # Log clean-up deleted it meanwhile. A commit relies on its absence.
        store.remove_quietly(entry_path(version))
        raise FileNotFoundError(entry_path(version))
    return data


def _is_late(began: float, now: float) -> bool:
    return now - began > COMMIT_SECONDS_MAX


def newest_version(store: Store, version: int) -> int:
    """The newest version with an entry or a checkpoint in the log; -1 if it is older than `version`."""
    before = entry_path(version - 1).removeprefix(f"{LOG}/")
    found = (_NUMBERED.match(name) for name in store.names_after(LOG, before))
    return max((int(one[1]) for one in found if one), default=-1)


def _read_back(
    store: Store, version: int, attempt: str, error: OSError | None, *, is_late: Callable[[], bool]
) -> CommitOutcome:
    """Decide the outcome of an attempt by the entry that exists now."""
    try:
        try:
            entry = read_entry(store, version)
        except FileNotFoundError:
            if error is None or newest_version(store, version) >= version:
                # It existed, and clean-up has deleted it: not ours, unless our attempt is old.
                if not is_late():
                    return Conflict()
            elif store.local:
                raise _unwritten(store, version, error) from error
            raise _unknown(store, version, error or OSError("it was cleaned away")) from error
    except OSError as unread:
        raise _unknown(store, version, unread) from unread
    return Committed(version) if _mark_of(entry) == attempt else Conflict()


def _mark_of(entry: bytes) -> str:
    """The attempt that wrote an entry; empty if another program wrote it."""
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
        f"version {version} of {store.uri} was not written: {error}", hint="correct the cause, then retry"
    )


def _unknown(store: Store, version: int, error: OSError) -> Indeterminate:
    if isinstance(error, NotLasting):
        return Indeterminate(
            f"version {version} of {store.uri} may have been written, and a power cut may take it back:"
            f" {error}",
            hint="check the disk, then run again, which makes the entry durable first",
        )
    return Indeterminate(f"version {version} of {store.uri} may have been written: {error}", hint="read back")
