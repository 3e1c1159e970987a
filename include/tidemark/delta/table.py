"""One Delta table that is changed by conditional commits and by nothing else.

A commit is made on a snapshot that was loaded at a known version, and is one log entry of our own
(`delta.commit`): its next version, put if absent. delta-rs reads, makes checkpoints and cleans the log.

Marks are Delta application transactions `tidemark.<name>`, which log clean-up keeps. Another one is a
checksum of them all, `tidemark.check`, so that a flipped digit in a mark is noticed.

Restriction: an object is for one thread of one process; make it after a fork, not before.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from arro3.core import Table
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import TableNotFoundError

from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage, InvariantViolation
from tidemark.core.journal import link
from tidemark.core.ledger import CommitOutcome, Committed, Head
from tidemark.delta.columns import check_columns, check_marks_last, lacking
from tidemark.delta.commit import COMMIT_SECONDS_MAX, Action, commit_info, entry_path, put_entry, txn_actions
from tidemark.delta.failures import reading
from tidemark.delta.protocol import metadata_action, protocol_action, widened_protocol
from tidemark.delta.store import Store

VERSION_NONE: Final = -1
APP_PREFIX: Final = "tidemark."
CHECK: Final = "check"
CHECKPOINT_VERSIONS: Final = 10
CLEANUP_VERSIONS: Final = 50
PROPERTY_TRIES_MAX: Final = 20
NEVER: Final = float("-inf")
ADD_FACTS: Final = ("path", "size_bytes", "num_records", "min.number", "max.number", "min.key", "max.key")


def marks_check(marks: Mapping[str, int]) -> int:
    """The checksum of all marks; 0 before there are any."""
    return link(0, json.dumps(sorted(marks.items()))) if marks else 0


def tidy_log(uri: str, options: Mapping[str, str], committed: int) -> None:
    """Keep a table's log short, when the version that was just committed is due for it."""
    if committed == 0 or committed % CHECKPOINT_VERSIONS != 0:
        return
    # A table of its own: the one that reads answer from must not move on by housekeeping.
    newest = DeltaTable(uri, storage_options=dict(options))
    newest.create_checkpoint()
    if committed % CLEANUP_VERSIONS == 0:
        newest.cleanup_metadata()


class ControlTable:
    """A Delta table, its marks, and its one way to change."""

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
        self._table: DeltaTable | None = None
        self._head, self._head_at = Head(VERSION_NONE), NEVER

    @property
    def version(self) -> int:
        return self._table.version() if self._table is not None else VERSION_NONE

    def refresh(self) -> Head:
        """Load the newest version. A table that is not there yet has no marks, and is not made."""
        try:
            with reading(self.uri):
                now = self._seconds()
                if self._table is None:
                    table = DeltaTable(self.uri, storage_options=self._options)
                    self._check_table(table)
                    self._table = table
                elif self._is_newest(now):
                    return self._head
                else:
                    self._table.update_incremental()
                    check_marks_last(self.uri, self._table.metadata().configuration)
                self._head, self._head_at = Head(self.version, self._marks(self._table)), now
                return self._head
        except TableNotFoundError:
            return Head(VERSION_NONE)

    def _is_newest(self, now: float) -> bool:
        """Whether nothing came after the last head: versions are dense, so its next log entry is absent. One
        that is old is loaded again: its next entry may have been cleaned away."""
        is_loaded = self._head.version == self.version and 0 <= now - self._head_at < COMMIT_SECONDS_MAX
        return is_loaded and not self.store.has(entry_path(self.version + 1))

    def _check_table(self, table: DeltaTable) -> None:
        check_marks_last(self.uri, table.metadata().configuration)
        self._check(table.schema(), table.metadata().configuration)

    def columns(self) -> Schema | None:
        """Those of the loaded version."""
        return self._table.schema() if self._table is not None else None

    def described(self) -> tuple[Schema, Mapping[str, str]] | None:
        """The columns and properties of the newest version, unchecked; None where there is no table."""
        if self._table is not None:
            self.refresh()
        try:
            with reading(self.uri):
                table = self._table or DeltaTable(self.uri, storage_options=self._options)
                return table.schema(), table.metadata().configuration
        except TableNotFoundError:
            return None

    def declare(self, schema: Schema, configuration: Mapping[str, str]) -> None:
        """Have the table, with these columns at least. One that is there keeps what it has."""
        if self.refresh().version == VERSION_NONE:
            self._create(schema, configuration)
            self.refresh()
        if missing := lacking(self._table, schema):
            self._add(missing, declared=schema)

    def _marks(self, table: DeltaTable) -> dict[str, int]:
        found = {name: table.transaction_version(APP_PREFIX + name) for name in self._mark_names}
        marks = {name: value for name, value in found.items() if value is not None}
        check = table.transaction_version(APP_PREFIX + CHECK) or 0
        if check != marks_check(marks):
            raise InvariantViolation(
                f"the marks of {self.uri}, {marks}, don't agree with their checksum",
                hint="a log entry was lost or changed; restore the table's log from a backup",
            )
        return marks

    def adds(self) -> list[dict[str, Any]]:
        """The active files of the loaded version, with those of the `ADD_FACTS` that they have."""
        found = self.add_actions()
        if found is None:
            return []
        names = [name for name in ADD_FACTS if name in found.column_names]
        return list(found.select(names).to_struct_array().to_pylist())

    def add_actions(self) -> Table | None:
        """All that is known of the active files, as a table; None where there is no table."""
        if self._table is None:
            return None
        with reading(self.uri):
            return Table.from_arrow(self._table.get_add_actions(flatten=True))

    def prepare(self, head: Head, moved: Iterable[str]) -> bool:
        """Stand at `head`, making the table if it isn't there, and giving it the columns that it lacks; False
        when it has moved on."""
        unknown = set(moved) - set(self._mark_names)
        if unknown:
            raise InvalidUsage(f"{self.uri} does not keep the marks {sorted(unknown)}")
        if head.version == VERSION_NONE and self._table is None:
            self._create(self._schema, self._configuration)
            return self.refresh().version == 0
        if head.version == self.version and (missing := lacking(self._table, self._schema)):
            self._add(missing, declared=self._schema)
        return head.version == self.version

    def _add(self, columns: list[Field], *, declared: Schema | None) -> None:
        """Give the table columns, in a commit of its own. Whoever comes second finds them there."""
        fields = [*cast("DeltaTable", self._table).schema().fields, *columns]
        cause = self._describe("ADD COLUMNS", schema=Schema(fields).to_json())
        self.refresh()
        if lacking(self._table, declared):
            names = ", ".join(field.name for field in columns)
            raise Determinate(f"{self.uri} can't get the columns {names}", hint="retry") from cause

    def set_property(self, name: str, value: str) -> None:
        """Give the table a property, in a commit of its own, unless it has it."""
        cause: Exception | None = None
        for _ in range(PROPERTY_TRIES_MAX):
            self.refresh()
            if self._table is None or self._table.metadata().configuration.get(name) == value:
                return
            cause = self._describe("SET TBLPROPERTIES", properties={name: value})
        raise Determinate(f"{self.uri} can't get {name} = {value}: {cause}", hint="retry") from cause

    def _describe(
        self, operation: str, *, schema: str = "", properties: Mapping[str, str] | None = None
    ) -> Exception | None:
        """Change what the table says of itself, on the loaded version; the error of a commit that failed.
        Whether it is so now, the caller has to look."""
        table = cast("DeltaTable", self._table)
        known, protocol = table.metadata(), table.protocol()
        text = schema or table.schema().to_json()
        configuration = {**known.configuration, **(properties or {})}
        metadata = metadata_action(
            table_id=str(known.id), schema=text, configuration=configuration, at_ms=int(known.created_time)
        )
        said = {"name": known.name, "description": known.description}
        metadata |= {name: value for name, value in said.items() if value}
        wider = widened_protocol(
            {
                "minWriterVersion": protocol.min_writer_version,
                "readerFeatures": protocol.reader_features,
                "writerFeatures": protocol.writer_features,
            },
            protocol_action(configuration=configuration, schema=text),
        )
        actions: list[Action] = [
            *([{"protocol": wider}] if wider is not None else []),
            {"metaData": metadata},
        ]
        try:
            self._put(table.version() + 1, operation, actions)
        except (Determinate, Indeterminate) as error:
            return error
        return None

    def _create(self, schema: Schema | None, configuration: Mapping[str, str]) -> None:
        """Put-if-absent of the table itself. Whoever comes second uses the first one's."""
        if schema is None:
            raise InvalidUsage(f"{self.uri} is not there, and has no schema to be made with")
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
                    f"{self.uri} can't be made: {error.fact}", hint="check the store and its permissions"
                ) from error

    def commit(
        self,
        actions: Sequence[Action],
        *,
        moved: Mapping[str, int],
        marks: Mapping[str, int],
        files: Sequence[str] = (),
    ) -> CommitOutcome:
        """One conditional commit on the loaded version; `moved` are the new marks, `marks` all after it. The
        bytes of `files` are on disk, their names not yet."""
        if self._table is None:
            raise InvalidUsage(f"{self.uri} is not loaded", hint="ask for its head first")
        stamps = {**moved, CHECK: marks_check(marks)} if moved else {}
        txns = txn_actions({APP_PREFIX + name: value for name, value in stamps.items()}, at_ms=self._now_ms())
        return self._put(self.version + 1, "WRITE", [*txns, *actions], files=files)

    def _put(
        self, version: int, operation: str, actions: Sequence[Action], *, files: Sequence[str] = ()
    ) -> CommitOutcome:
        info = commit_info(operation, attempt=uuid.uuid4().hex, at_ms=self._now_ms())
        # Whatever came in between, the next head is loaded, unless this one is in.
        head_at, self._head_at = self._head_at, NEVER
        outcome = put_entry(self.store, version, [info, *actions], files=files, seconds=self._seconds)
        if isinstance(outcome, Committed):
            self._head_at = head_at
        return outcome

    def _now_ms(self) -> int:
        return int(self._seconds() * 1000)

    def tidy_log(self, committed: int) -> None:
        """Keep the log short, when the version that was just committed is due for it."""
        tidy_log(self.uri, self._options, committed)

    def sweep(self, *, retention_hours: int) -> int:
        """Remove the files that were replaced more than the retention ago, or can't be committed any more."""
        from tidemark.delta.state_vacuum import vacuum

        return len(vacuum(self.store, now_ms=self._now_ms(), kept_ms=retention_hours * 3_600_000))
