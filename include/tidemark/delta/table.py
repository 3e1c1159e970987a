"""A Delta table that is changed only by conditional commits: the basis of control tables and logs.

A commit is made on a head that was loaded at a known version (`delta.head`). It is one log entry of our own
(`delta.commit`): the next version, put if absent. delta-rs writes checkpoints and cleans up the log.

If a table is rolled back under this process, for example by a restored copy, the process detects it: the
version must never decrease, and a commit is made only on the entry that was loaded.

Marks are Delta application transactions `tidemark.<name>`, which log clean-up keeps. `tidemark.check` is a
checksum of the declared marks, so that a changed digit is detected. Marks under `FREE` are neither declared
nor in the checksum: there may be one for each of thousands of shards.

Restriction: use an object in one thread of one process; create it after a fork, not before.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from deltalake import Field, Schema

from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage, InvariantViolation
from tidemark.core.ledger import CommitOutcome, Committed, Conflict, Head, link
from tidemark.delta.checkpoint import make_checkpoint
from tidemark.delta.commit import (
    COMMIT_SECONDS_MAX,
    Action,
    commit_info,
    entry_path,
    newest_version,
    put_entry,
    txn_actions,
)
from tidemark.delta.head import (
    LiveFile,
    TableHead,
    open_head,
    read_head,
)
from tidemark.delta.protocol import metadata_action, protocol_action, widened_protocol
from tidemark.delta.schema import check_columns, check_marks_last, lacking, schema_of
from tidemark.delta.store import Store

VERSION_NONE: Final = -1
APP_PREFIX: Final = "tidemark."
CHECK: Final = "check"
PROPERTY_TRIES_MAX: Final = 20
NEVER: Final = float("-inf")
FREE: Final = ("shard.", "replaced.")


def marks_check(marks: Mapping[str, int]) -> int:
    """The checksum of all marks; 0 if there are none."""
    return link(0, json.dumps(sorted(marks.items()))) if marks else 0


class ControlTable:
    """A handle on a Delta table and its marks."""

    def __init__(
        self,
        uri: str,
        *,
        storage_options: Mapping[str, str],
        schema: Schema | None,
        configuration: Mapping[str, str],
        marks: Sequence[str],
        seconds: Callable[[], float] = time.time,
        check: Callable[[Schema, Mapping[str, str]], None] | None = None,
    ) -> None:
        self.uri = uri
        self._check = check or (lambda there, _: check_columns(uri, there, schema))
        self.store = Store(uri, storage_options)
        self._options = dict(storage_options)
        self._schema = schema
        self._configuration = dict(configuration)
        self._mark_names = tuple(marks)
        self._seconds = seconds
        self._table = TableHead()
        self._head, self._head_at = Head(VERSION_NONE), NEVER
        self._base, self._reached = b"", VERSION_NONE

    @property
    def version(self) -> int:
        return self._table.version

    def refresh(self) -> Head:
        """Load the newest version. A missing table has no marks and is not created."""
        now = self._seconds()
        table = self._newest(now)
        if table.version < self._reached:
            raise self._set_back(self._reached)
        if table.version == VERSION_NONE:
            return Head(VERSION_NONE)
        if self._table.version == VERSION_NONE:
            self._check(schema_of(table), table.configuration)
        if table.version != self._head.version:
            check_marks_last(self.uri, table.configuration)
            self._head = Head(table.version, self._marks(table))
            self._base = self._entry(table.version)
        self._table, self._head_at, self._reached = table, now, table.version
        return self._head

    def _newest(self, now: float) -> TableHead:
        """The newest head. If the loaded head is old, the table is opened at a checkpoint too, because the
        entries after the head may have been cleaned up."""
        table = self._table
        if table.version != VERSION_NONE and not 0 <= now - self._head_at < COMMIT_SECONDS_MAX:
            opened = open_head(self.store)
            if opened.version < table.version and self._entry(table.version) != self._base:
                raise self._set_back(self.version)
            table = opened if opened.version > table.version else table
        return read_head(self.store, table)

    def _entry(self, version: int) -> bytes:
        """The log entry of a version; empty if it was cleaned up."""
        try:
            return self.store.get(entry_path(version))
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise Determinate(f"the log of {self.uri} can't be read: {error}", hint="retry") from error

    def _set_back(self, version: int) -> InvariantViolation:
        return InvariantViolation(
            f"version {version} of {self.uri} is not the one that this process has seen: the table was"
            " set back or replaced",
            hint="stop what restores files there; `tidemark status` names what is lost",
        )

    def mark(self, name: str) -> int | None:
        """A mark of the loaded version, declared or not; None if it is not set."""
        return self._table.txns.get(APP_PREFIX + name)

    def marked(self, prefix: str) -> dict[str, int]:
        """The marks of the loaded version that begin with a prefix, without it."""
        whole = APP_PREFIX + prefix
        return {
            name.removeprefix(whole): value
            for name, value in self._table.txns.items()
            if name.startswith(whole)
        }

    def property_of(self, name: str) -> str:
        """A property of the loaded version; empty if it is not set."""
        return self._table.configuration.get(name, "")

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the loaded version."""
        return self._table.configuration

    def columns(self) -> Schema | None:
        """The columns of the loaded version; None if there is no table."""
        return schema_of(self._table) if self.version != VERSION_NONE else None

    def described(self) -> tuple[Schema, Mapping[str, str]] | None:
        """The columns and properties of the newest version, unchecked; None if there is no table."""
        table = read_head(self.store, self._table)
        return (schema_of(table), table.configuration) if table.version != VERSION_NONE else None

    def declare(
        self, schema: Schema, configuration: Mapping[str, str], *, fits: Callable[[Schema], bool]
    ) -> None:
        """Create the table, or add the columns that it lacks, if its newest version `fits`. Existing columns
        and properties stay."""
        if self.refresh().version == VERSION_NONE:
            self._create(schema, configuration)
            self.refresh()
        there = self.columns()
        if there is not None and fits(there) and (missing := lacking(there, schema)):
            self._add(missing, declared=schema)

    def _marks(self, table: TableHead) -> dict[str, int]:
        found = {name: table.txns.get(APP_PREFIX + name) for name in self._mark_names}
        marks = {name: value for name, value in found.items() if value is not None}
        check = table.txns.get(APP_PREFIX + CHECK, 0)
        if check != marks_check(marks):
            raise InvariantViolation(
                f"the marks of {self.uri}, {marks}, don't agree with their checksum",
                hint="a log entry was lost or changed; restore the table's log from a backup",
            )
        return marks

    def files(self) -> Collection[LiveFile]:
        """The active files of the loaded version."""
        return self._table.files.values()

    def prepare(self, head: Head, moved: Iterable[str], *, widens: bool = True) -> bool:
        """Prepare a commit on `head`: create a missing table and, if it `widens`, add missing columns. False
        if the table has moved on."""
        unknown = {name for name in moved if name not in self._mark_names and not name.startswith(FREE)}
        if unknown:
            raise InvalidUsage(f"{self.uri} has no marks {sorted(unknown)}")
        if head.version == VERSION_NONE and self.version == VERSION_NONE:
            self._create(self._schema, self._configuration)
            return self.refresh().version == 0
        if widens and head.version == self.version and (missing := lacking(self.columns(), self._schema)):
            self._add(missing, declared=self._schema)
        return head.version == self.version

    def _add(self, columns: list[Field], *, declared: Schema | None) -> None:
        """Add columns in a separate commit. It is no error if another process adds them first."""
        fields = [*schema_of(self._table).fields, *columns]
        cause = self._describe("ADD COLUMNS", schema=Schema(fields).to_json())
        self.refresh()
        if lacking(self.columns(), declared):
            names = ", ".join(field.name for field in columns)
            raise Determinate(f"{self.uri} can't be given the columns {names}", hint="retry") from cause

    def set_property(self, name: str, value: str) -> None:
        """Set a property in a separate commit, unless it is set already. A missing table is ignored."""
        cause: Exception | None = None
        for _ in range(PROPERTY_TRIES_MAX):
            self.refresh()
            if self.version == VERSION_NONE or self._table.configuration.get(name) == value:
                return
            cause = self._describe("SET TBLPROPERTIES", properties={name: value})
        raise Determinate(
            f"{self.uri} can't be given the property {name} = {value}: {cause}", hint="retry"
        ) from cause

    def _describe(
        self, operation: str, *, schema: str = "", properties: Mapping[str, str] | None = None
    ) -> Exception | None:
        """Commit new metadata on the loaded version; return the error of a failed commit. The caller must
        check the result."""
        try:
            self._put(self.version + 1, operation, self.described_as(schema=schema, properties=properties))
        except (Determinate, Indeterminate) as error:
            return error
        return None

    def described_as(self, *, schema: str = "", properties: Mapping[str, str] | None = None) -> list[Action]:
        """The actions that give the loaded version another schema, and these properties."""
        known = self._table.metadata
        text = schema or str(known["schemaString"])
        configuration = {**self._table.configuration, **(properties or {})}
        metadata = metadata_action(
            table_id=str(known["id"]),
            schema=text,
            configuration=configuration,
            at_ms=int(known.get("createdTime") or 0),
        )
        metadata |= {name: known[name] for name in ("name", "description") if known.get(name)}
        wider = widened_protocol(
            self._table.protocol, protocol_action(configuration=configuration, schema=text)
        )
        return [*([{"protocol": wider}] if wider is not None else []), {"metaData": metadata}]

    def _create(self, schema: Schema | None, configuration: Mapping[str, str]) -> None:
        """Create the table if it is absent. It is no error if another process creates it first."""
        if schema is None:
            raise InvalidUsage(f"{self.uri} is not there, and there is no schema to create it with")
        text, at_ms = schema.to_json(), self._now_ms()
        metadata = metadata_action(
            table_id=str(uuid.uuid4()), schema=text, configuration=configuration, at_ms=at_ms
        )
        protocol = protocol_action(configuration=configuration, schema=text)
        try:
            self._put(0, "CREATE TABLE", [{"protocol": protocol}, {"metaData": metadata}])
        except (Determinate, Indeterminate) as error:
            if self.refresh().version == VERSION_NONE:
                raise Determinate(
                    f"{self.uri} can't be created: {error.fact}", hint="check the store and its permissions"
                ) from error

    def commit(
        self,
        actions: Sequence[Action],
        *,
        moved: Mapping[str, int],
        marks: Mapping[str, int],
        files: Sequence[str] = (),
    ) -> CommitOutcome:
        """Commit on the loaded version, conditionally; `moved` are the changed marks, `marks` all marks
        afterwards. The bytes of `files` must be on disk; their names need not be."""
        if self.version == VERSION_NONE:
            raise InvalidUsage(f"{self.uri} is not loaded", hint="load its head first")
        if (found := self._entry(self.version)) != self._base:
            # If it was cleaned up, a checkpoint has its content, or other commits have followed.
            newest = newest_version(self.store, self.version)
            if found or newest < self.version:
                raise self._set_back(self.version)
            if newest > self.version:
                self._head_at = NEVER
                return Conflict()
        declared = {name: value for name, value in marks.items() if not name.startswith(FREE)}
        stamps = {**moved, CHECK: marks_check(declared)} if moved else {}
        txns = txn_actions({APP_PREFIX + name: value for name, value in stamps.items()}, at_ms=self._now_ms())
        return self._put(self.version + 1, "WRITE", [*txns, *actions], files=files)

    def _put(
        self, version: int, operation: str, actions: Sequence[Action], *, files: Sequence[str] = ()
    ) -> CommitOutcome:
        info = commit_info(operation, attempt=uuid.uuid4().hex, at_ms=self._now_ms())
        # Unless this commit succeeds, the next head is searched for again, because others may have committed.
        head_at, self._head_at = self._head_at, NEVER
        outcome = put_entry(self.store, version, [info, *actions], files=files, seconds=self._seconds)
        if isinstance(outcome, Committed):
            self._head_at, self._reached = head_at, version
        return outcome

    def _now_ms(self) -> int:
        return int(self._seconds() * 1000)

    def tidy_log(self) -> None:
        """Write a checkpoint and clean up the log, if the loaded head says that it is due."""
        if self._table.checkpoint_due:
            self._table = replace(self._table, entries_bytes=0)
            make_checkpoint(self.store, self._options, now_ms=self._now_ms())

    def sweep(self, *, retention_hours: int) -> int:
        """Remove files that were replaced longer ago than the retention, or can't be committed any more;
        return how many."""
        from tidemark.delta.vacuum import vacuum

        return len(vacuum(self.store, now_ms=self._now_ms(), kept_ms=retention_hours * 3_600_000))
