"""What a state's table says of itself, read from its Delta log without a JVM.

A commit of a state carries its facts as JSON in `userMetadata`. Commits that only rearrange or describe
the table (compaction, vacuum, properties) change no row and are nobody's publish; any other commit
without facts is a stranger's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from arro3.core import Table
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import TXN_NONE, Txn, WriterToken
from tidemark.core.publish import VERSION_NONE, Published, StateCommit, StateStanding

FORMAT: Final = 1
_DISK: Final = fs.LocalFileSystem()
_MARK: Final = "tidemark"
_EXPIRING_IDS: Final = "delta.setTransactionRetentionDuration"
_HARMLESS: Final = frozenset(
    {"OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES"}
    | {"UPGRADE PROTOCOL", "ADD FEATURE", "DROP FEATURE", "COMPUTE STATS", "CREATE TABLE", "CHANGE COLUMN"}
    | {"ADD COLUMNS"}
    | {"CLUSTER BY", "FSCK"}
)


def app_id(pipeline: str, shard: str) -> str:
    """The application that a state's commits are counted under."""
    return f"tidemark/{pipeline}/{shard}"


def encoded(commit: StateCommit) -> str:
    """The facts of a commit, as it carries them."""
    digest = commit.digest
    return json.dumps(
        {
            _MARK: FORMAT,
            "txn": commit.txn,
            "token": commit.token,
            "tombstones": commit.tombstones,
            "digest": [digest.count, digest.xor, digest.sum_low, digest.sum_high, digest.encoding],
        },
        separators=(",", ":"),
    )


def decoded(text: object) -> StateCommit | None:
    """The facts in a commit's metadata; None where there are none of ours."""
    try:
        facts = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
    if not isinstance(facts, dict) or facts.get(_MARK) != FORMAT:
        return None
    return StateCommit(
        Txn(facts["txn"]), WriterToken(facts["token"]), Digest(*facts["digest"]), facts["tombstones"]
    )


def version_of(uri: str, storage_options: Mapping[str, str] | None = None) -> int:
    """The newest version of a Delta table, -1 when there is no table."""
    table = _opened(uri, storage_options)
    return VERSION_NONE if table is None else table.version()


def configuration_of(uri: str, storage_options: Mapping[str, str] | None = None) -> dict[str, str]:
    """A table's properties; none when there is no table."""
    table = _opened(uri, storage_options)
    return {} if table is None else dict(table.metadata().configuration)


def _opened(uri: str, storage_options: Mapping[str, str] | None) -> DeltaTable | None:
    try:
        return DeltaTable(uri, storage_options=dict(storage_options or {}))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise Determinate(
            f"the log of {uri} can't be read: {error}", hint="check the store, retry"
        ) from error


def same_rows_version(uri: str, version: int, storage_options: Mapping[str, str] | None = None) -> int:
    """The newest version up to which a table was only rearranged or described since the given one."""
    table = _opened(uri, storage_options)
    if table is None or table.version() <= version:
        return version
    after = [e for e in table.history(limit=table.version() - version) if int(e["version"]) > version]
    same = version
    for entry in sorted(after, key=lambda entry: int(entry["version"])):
        if entry.get("operation") not in _HARMLESS or decoded(entry.get("userMetadata")) is not None:
            return same
        same = int(entry["version"])
    return same


def lost_files(uri: str, version: int, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """The files of an older version that are not there any more: a VACUUM has removed them."""
    table = _opened(uri, storage_options)
    if table is None or table.version() <= version:
        return []
    table.load_as_version(version)
    paths = Table.from_arrow(table.get_add_actions())["path"].to_pylist()
    store, root = fs.FileSystem.from_uri(uri.replace("s3a://", "s3://", 1)) if "://" in uri else (_DISK, uri)
    infos = store.get_file_info([f"{root}/{path}" for path in paths]) if paths else []
    return [info.base_name for info in infos if info.type != fs.FileType.File]


def read_standing(
    uri: str, *, app: str, since: Published | None, storage_options: Mapping[str, str] | None = None
) -> StateStanding:
    """Where a state's table stands, and what was done to it since a recorded publish."""
    table = _opened(uri, storage_options)
    if table is None:
        return StateStanding()
    if _EXPIRING_IDS in table.metadata().configuration:
        raise InvalidUsage(
            f"{uri} has {_EXPIRING_IDS}: what was published would be forgotten", hint="unset it on the table"
        )
    recorded = since.version if since is not None else VERSION_NONE
    limit = max(table.version() - recorded, 0) + 2
    history: list[dict[str, Any]] = table.history(limit=limit)
    commits = {int(entry["version"]): decoded(entry.get("userMetadata")) for entry in history}
    newest_version = max((at for at, commit in commits.items() if commit is not None), default=VERSION_NONE)
    strangers = [
        f"{entry['version']} {entry.get('operation', '?')}"
        for entry in history
        if entry["version"] > recorded
        and commits[int(entry["version"])] is None
        and entry.get("operation") not in _HARMLESS
    ]
    moved = [at for at in sorted(commits) if at > recorded and _moves(commits[at], since)]
    # One may be ahead of its record. A second was worked out without knowing of the first.
    strangers += [f"{at} a second publish" for at in moved[1:]]
    found = commits.get(recorded)
    at_record = found.token if found is not None else ""
    if recorded in commits and found is None:
        at_record = f"a stranger ({next(e.get('operation') for e in history if e['version'] == recorded)})"
    newest = commits.get(newest_version)
    return StateStanding(
        version=table.version(),
        txn=Txn(table.transaction_version(app) or TXN_NONE),
        newest=newest,
        newest_version=newest_version,
        at_record=at_record,
        strangers=tuple(reversed(strangers)),
    )


def _moves(commit: StateCommit | None, since: Published | None) -> bool:
    """Whether a commit is a publish of later transactions; a rebuild may leave the transaction as it is."""
    return commit is not None and commit.txn > (since.txn if since is not None else TXN_NONE)
