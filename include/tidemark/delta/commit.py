"""One commit of a Delta table: its files made durable, then one log entry put if absent.

The order is what makes a commit safe against a lost machine: the files that the entry names, their folders,
the entry's own bytes, the entry's name, its folder. Whoever can read the entry can read what it names.

What came of it is decided here, once, by the entry that is there afterwards (Invariant 5):

- it has our mark: committed, whatever the store said (a reply that was lost and retried by the store's client
  looks like a lost race with oneself);
- it has another's: a conflict, and nothing of ours is visible;
- there is none: on a local disk nothing was written; in an object store a request may still be under way, so
  nobody knows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage
from tidemark.core.ledger import CommitOutcome, Committed, Conflict
from tidemark.delta.head import entry_path
from tidemark.delta.store import Store

ATTEMPT: Final = "tidemarkCommit"
COMMIT_SECONDS_MAX: Final = 60
"""A writer that was stopped for longer than log entries are kept could put an entry that is not absent but
cleaned away. So a commit that took this long is not believed, but read back."""


def entry_bytes(actions: Sequence[Mapping[str, Any]]) -> bytes:
    """A log entry: an action to a line."""
    return "".join(
        json.dumps(action, separators=(",", ":"), ensure_ascii=False) + "\n" for action in actions
    ).encode()


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
        store.sync_folders(files)
        is_ours = store.put_if_absent(entry_path(version), entry_bytes(actions))
    except OSError as error:
        return _read_back(store, version, str(attempt), error)
    if not is_ours:
        return _read_back(store, version, str(attempt), None)
    if seconds() - began > COMMIT_SECONDS_MAX:
        raise Indeterminate(
            f"the commit of version {version} to {store.uri} took over {COMMIT_SECONDS_MAX} s",
            hint="read back",
        )
    return Committed(version)


def _read_back(store: Store, version: int, attempt: str, error: OSError | None) -> CommitOutcome:
    """Whose log entry is there?"""
    try:
        entry = store.get(entry_path(version))
        if error is not None:
            # The error may have been that of the last sync.
            store.sync_folders((entry_path(version),))
    except FileNotFoundError:
        if error is None:
            # It was there a moment ago, and clean-up has taken it away since: it was not ours.
            return Conflict()
        if store.local:
            raise Determinate(
                f"version {version} of {store.uri} was not written: {error}",
                hint="mend the cause, then retry",
            ) from error
        raise _unknown(store, version, error) from error
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


def _unknown(store: Store, version: int, error: OSError) -> Indeterminate:
    return Indeterminate(f"version {version} of {store.uri} may have been written: {error}", hint="read back")
