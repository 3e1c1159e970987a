"""The facts that a commit of a state's table carries, as JSON in `userMetadata`.

This needs the entries of the log only, so a run can ask for them without the modules that read and write
states."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.publish import VERSION_NONE, StateCommit
from tidemark.delta.commit import Action, entry_actions, entry_path, newest_version, read_entry
from tidemark.delta.store import Store, reading

FORMAT: Final = 1
_MARK: Final = "tidemark"


def encoded(commit: StateCommit) -> str:
    """The facts of a commit as JSON, for `userMetadata`."""
    digest = commit.digest
    return json.dumps(
        {
            _MARK: FORMAT,
            "txn": commit.txn,
            "token": commit.token,
            "tombstones": commit.tombstones,
            "link": commit.link,
            "digest": [digest.count, digest.xor, digest.sum_low, digest.sum_high, digest.encoding],
        },
        separators=(",", ":"),
    )


def decoded(text: object) -> StateCommit | None:
    """The facts in a commit's `userMetadata`; None if it has none of ours."""
    try:
        facts = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if not isinstance(facts, dict) or facts.get(_MARK) != FORMAT:
        return None
    return StateCommit(
        Txn(facts["txn"]),
        WriterToken(facts["token"]),
        Digest(*facts["digest"]),
        facts["tombstones"],
        facts["link"],
    )


def facts_in(actions: Sequence[Action]) -> StateCommit | None:
    info: Action = next((line["commitInfo"] for line in actions if "commitInfo" in line), {})
    return decoded(info.get("userMetadata"))


def commit_at(store: Store, version: int) -> tuple[StateCommit | None, str]:
    """The facts of a version's own entry, and its writer; both empty if the entry was cleaned up."""
    if version == VERSION_NONE:
        return None, ""
    try:
        actions = entry_actions(read_entry(store, version), version, store.uri)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        raise Determinate(f"the log of {store.uri} can't be read: {error}", hint="retry") from error
    facts = facts_in(actions)
    if facts is not None:
        return facts, facts.token
    info: Action = next((line["commitInfo"] for line in actions if "commitInfo" in line), {})
    return None, f"another writer ({info.get('operation') or 'a commit without a name'})"


def _newest(store: Store, after: int) -> int:
    """The newest version. The log is listed only if the entry of `after` is not there: it may have thousands
    of entries, and few after the last publish."""
    if after == VERSION_NONE or not store.has(entry_path(after)):
        return newest_version(store, after + 1)
    while store.has(entry_path(after + 1)):
        after += 1
    return after


def newest_commit(
    uri: str, after: int, storage_options: Mapping[str, str] | None = None
) -> StateCommit | None:
    """The facts of a state's newest publish after a version; None if there is none, or its entry was cleaned
    up. Reads only entries after that version, the newest first."""
    store = Store(uri, storage_options or {})
    with reading(uri):
        newest = _newest(store, after)
    for version in range(newest, after, -1):
        facts, writer = commit_at(store, version)
        if facts is not None or not writer:
            return facts
    return None
