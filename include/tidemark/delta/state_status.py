"""The status of a state's table, read from its log (`delta.head`).

A commit of a state carries its facts, as JSON in `userMetadata`. Any other commit is judged by its effect
(`foreign_write`): one that changes no row, such as a compaction, a vacuum or a change of properties, is
harmless under any name; one that changes rows is a foreign write.

Entries may have been cleaned up, including that of the recorded publish. Then the status rests on what
clean-up keeps: the number of live rows and the application transactions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import TXN_NONE, Txn, WriterToken
from tidemark.core.publish import VERSION_NONE, Published, StateCommit, StateStatus
from tidemark.delta.commit import Action, entry_actions, entry_path, newest_version, read_entry
from tidemark.delta.head import TableHead, entries_after, open_head
from tidemark.delta.state import EXPIRED, ROWS
from tidemark.delta.store import Store, reading

FORMAT: Final = 1
_MARK: Final = "tidemark"
_EXPIRING_IDS: Final = "delta.setTransactionRetentionDuration"


def app_id(pipeline: str, shard: str) -> str:
    """The application id of a state's commits."""
    return f"tidemark/{pipeline}/{shard}"


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
    """The facts of an entry; None if it is not of a publish."""
    return decoded(_info(actions).get("userMetadata"))


def operation_in(actions: Sequence[Action]) -> str:
    """The name that a commit has given itself."""
    return str(_info(actions).get("operation") or "a commit without a name")


def _info(actions: Sequence[Action]) -> Action:
    return next((line["commitInfo"] for line in actions if "commitInfo" in line), {})


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
    return None, f"another writer ({operation_in(actions)})"


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


@dataclass(frozen=True, slots=True)
class _Commit:
    """One entry: its facts, or the name of a foreign write; neither for a harmless commit. `expired` is the
    publish whose too late tombstones it removes."""

    version: int
    facts: StateCommit | None
    foreign: str
    expired: Txn = TXN_NONE


@dataclass(frozen=True, slots=True)
class _Followed:
    """A log followed from a version on. `opened` is the head at that version, or the first one after it if
    entries were cleaned up."""

    opened: TableHead
    newest: TableHead
    commits: Sequence[_Commit]


def _follow(store: Store, version: int, known: TableHead | None = None) -> _Followed:
    """Follow the log from a version on, starting at the head `known` if that is not later."""
    usable = known if known is not None and VERSION_NONE < known.version <= version else None
    found = _followed(store, version, usable or open_head(store, until=version))
    if usable is not None and found.newest.version < version:
        # The entries after it were cleaned up.
        return _followed(store, version, open_head(store, until=version))
    return found


def _followed(store: Store, version: int, before: TableHead) -> _Followed:
    opened = before
    commits: list[_Commit] = []
    for actions, after in entries_after(store, before):
        if after.version <= version:
            opened = after
        else:
            facts = facts_in(actions)
            name = foreign_write(before, actions, after) if facts is None else ""
            commits.append(_Commit(after.version, facts, name, _expired_by(actions)))
        before = after
    return _Followed(opened, before, commits)


def foreign_write(before: TableHead, actions: Sequence[Action], after: TableHead) -> str:
    """The name of a foreign commit that changed rows; empty for one that only rearranged files or changed
    metadata.

    The decision rests on files, row counts and columns, not on the commit's name. A commit whose row counts
    are unknown can't be shown to be harmless, so it counts as a change."""
    files = [line[kind] for line in actions for kind in ("add", "remove") if kind in line]
    name = operation_in(actions)
    if any(file.get("dataChange", True) for file in files) or any("cdc" in line for line in actions):
        return name
    touched = {str(file["path"]) for file in files}
    try:
        counts = [
            sum(head.files[path].live for path in touched if path in head.files) for head in (before, after)
        ]
    except InvalidUsage:
        return f"{name} with rows that can't be counted"
    kept = _columns(before).items() <= _columns(after).items()
    return "" if counts[0] == counts[1] and kept else name


def _columns(head: TableHead) -> dict[str, str]:
    """Map column names to types. For a nested type only its kind is compared, because it may gain fields."""
    fields = json.loads(head.metadata.get("schemaString") or "{}").get("fields", ())
    return {
        field["name"]: field["type"] if isinstance(field["type"], str) else field["type"]["type"]
        for field in fields
    }


def _expired_by(actions: Sequence[Action]) -> Txn:
    found = (line["txn"] for line in actions if "txn" in line)
    return Txn(next((int(one["version"]) for one in found if one["appId"] == EXPIRED), TXN_NONE))


def same_rows_version(
    uri: str,
    version: int,
    storage_options: Mapping[str, str] | None = None,
    *,
    published: Txn = TXN_NONE,
) -> int:
    """The newest version with the same rows as the given one; for the tombstones of a publish, with the same
    ones that a record after it could lose to. `InvalidUsage` if the log no longer shows it."""
    followed = _follow(Store(uri, storage_options or {}), version)
    if followed.newest.version <= version:
        return version
    same = followed.opened.version
    txns = followed.opened.txns
    if same > version and (txns.get(ROWS) != version or txns.get(EXPIRED, TXN_NONE) > published):
        raise _forgotten(uri, version)
    for commit in followed.commits:
        expires = TXN_NONE < commit.expired <= published
        if commit.facts is not None or (commit.foreign and not expires):
            return same
        same = commit.version
    return same


def lost_files(uri: str, version: int, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """The missing files of an older version, including vectors: a VACUUM has removed them. `InvalidUsage` if
    the log no longer has that version."""
    store = Store(uri, storage_options or {})
    followed = _follow(store, version)
    if followed.newest.version <= version:
        return []
    if followed.opened.version != version:
        raise _forgotten(uri, version)
    paths = {path for file in followed.opened.files.values() for path in file.locations}
    try:
        return sorted(path.rsplit("/", 1)[-1] for path in paths if not store.has(path))
    except OSError as error:
        raise Determinate(
            f"the files of {uri} can't be looked up: {error}", hint="check the store, then retry"
        ) from error


def _forgotten(uri: str, version: int) -> InvalidUsage:
    return InvalidUsage(
        f"the log of {uri} no longer reaches back to version {version}",
        hint="read as of a later transaction, or rebuild the state",
    )


def read_state_status(
    uri: str,
    *,
    app: str,
    since: Published | None,
    storage_options: Mapping[str, str] | None = None,
    known: TableHead | None = None,
) -> StateStatus:
    """The status of a state's table, and the commits since a recorded publish. `known` is a head that the
    caller has read before; the log up to it is not read again."""
    store = Store(uri, storage_options or {})
    recorded = since.version if since is not None else VERSION_NONE
    followed = _follow(store, recorded, known)
    head = followed.newest
    if head.version == VERSION_NONE:
        return StateStatus()
    if _EXPIRING_IDS in head.configuration:
        raise InvalidUsage(
            f"{uri} has {_EXPIRING_IDS}: the record of publishes would expire", hint="unset it on the table"
        )
    commits = followed.commits
    foreign_writes = [f"{one.version} {one.foreign}" for one in commits if one.foreign]
    if since is not None and followed.opened.version > recorded:
        foreign_writes[:0] = _unseen(followed.opened, since, app)
    # One publish may be ahead of the record. A second was computed without knowledge of the first.
    foreign_writes += [
        f"{one.version} a second publish" for one in [c for c in commits if _moves(c, since)][1:]
    ]
    at, at_record = commit_at(store, recorded)
    newest = next((one for one in reversed(commits) if one.facts is not None), None)
    return StateStatus(
        version=head.version,
        txn=Txn(head.txns.get(app, TXN_NONE)),
        newest=newest.facts if newest is not None else at,
        newest_version=newest.version if newest is not None else recorded if at is not None else VERSION_NONE,
        at_record=at_record,
        foreign_writes=tuple(foreign_writes),
    )


def _unseen(head: TableHead, since: Published, app: str) -> list[str]:
    """Foreign writes in entries that were cleaned up: without a later publish, the row count must be the
    published one."""
    if head.txns.get(app, TXN_NONE) != since.txn:
        return []
    wanted = since.commit.digest.count
    try:
        found = str(head.rows)
    except InvalidUsage:
        found = "an unknown number of"
    return [] if found == str(wanted) else [f"{head.version} or before, {found} rows instead of {wanted}"]


def _moves(commit: _Commit, since: Published | None) -> bool:
    """Whether a commit publishes later transactions. (A rebuild may keep the transaction.)"""
    published = since.txn if since is not None else TXN_NONE
    return commit.facts is not None and commit.facts.txn > published
