"""One Delta table that is changed by conditional commits and by nothing else.

A commit is made on a snapshot that was loaded at a known version, with `max_commit_retries=0`: then delta-rs
refuses a snapshot that is not the newest, and creates the next log entry only if it is absent. It never
rebases (its conflict checker would let a blind append through at a later version).

What an error means is decided here, once:

- the log entry is there with our mark in it: committed, whatever the library said (a reply that was lost and
  retried by the object store's client looks like a conflict with oneself);
- it is there with another's mark: a conflict;
- it is not there: on a local disk nothing was written; in an object store a request may still be under way,
  so nobody knows.

Marks are Delta application transactions `tidemark.<name>`, which log clean-up keeps. Another one is a
checksum of them all, `tidemark.check`, so that a flipped digit in a mark is noticed.

Restriction: an object is for one thread of one process; make it after a fork, not before.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from arro3.core import Table
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage, InvariantViolation
from tidemark.core.journal import link
from tidemark.core.ledger import CommitOutcome, Committed, Conflict, Head
from tidemark.delta.columns import NO_HOOKS, add, check_columns, check_marks_last, lacking, make, set_property
from tidemark.delta.failures import panicked, reading
from tidemark.delta.store import Store

Action = AddAction | RemoveAction

VERSION_NONE: Final = -1
APP_PREFIX: Final = "tidemark."
CHECK: Final = "check"
CHECKPOINT_VERSIONS: Final = 10
CLEANUP_VERSIONS: Final = 50
PROPERTY_TRIES_MAX: Final = 20
# A writer that was frozen for longer than log entries are kept could create an entry that is not
# absent but cleaned away. So a commit that took this long is not believed, but read back; and a snapshot
# that is this old is loaded again, though its next entry is absent.
COMMIT_SECONDS_MAX: Final = 60
NEVER: Final = float("-inf")
ADD_FACTS: Final = ("path", "size_bytes", "num_records", "min.number", "max.number", "min.key", "max.key")


def marks_check(marks: Mapping[str, int]) -> int:
    """The checksum of all marks; 0 before there are any."""
    return link(0, json.dumps(sorted(marks.items()))) if marks else 0


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
        """Whether nothing came after the last head: versions are dense, so its next log entry is absent."""
        is_loaded = self._head.version == self.version and 0 <= now - self._head_at < COMMIT_SECONDS_MAX
        return is_loaded and not self.store.has(f"_delta_log/{self.version + 1:020}.json")

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
        cause: Exception | None = None
        try:
            add(cast("DeltaTable", self._table), columns)
        except (OSError, DeltaError) as error:
            cause = error
        self._table = None
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
            try:
                set_property(self._table, name, value)
            except (OSError, DeltaError) as error:
                cause = error
            self._table = None
        raise Determinate(f"{self.uri} can't get {name} = {value}: {cause}", hint="retry") from cause

    def _create(self, schema: Schema | None, configuration: Mapping[str, str]) -> None:
        """Put-if-absent of the table itself. Whoever comes second uses the first one's."""
        if schema is None:
            raise InvalidUsage(f"{self.uri} is not there, and has no schema to be made with")
        try:
            self.store.make_root()
            make(self.uri, schema, configuration, self._options)
        except (OSError, DeltaError, ValueError) as error:
            if self.refresh().version == VERSION_NONE:
                raise Determinate(
                    f"{self.uri} can't be made: {error}", hint="check the store and its permissions"
                ) from error

    def commit(
        self, actions: Sequence[Action], *, moved: Mapping[str, int], marks: Mapping[str, int]
    ) -> CommitOutcome:
        """One conditional commit on the loaded version; `moved` are the new marks, `marks` all after it."""
        table = self._table
        if table is None:
            raise InvalidUsage(f"{self.uri} is not loaded", hint="ask for its head first")
        attempt = uuid.uuid4().hex
        version = table.version() + 1
        stamps = {**moved, CHECK: marks_check(marks)} if moved else {}
        began = self._seconds()
        try:
            table.create_write_transaction(
                list(actions),
                "append",
                table.schema(),
                commit_properties=CommitProperties(
                    custom_metadata={"tidemarkCommit": attempt},
                    max_commit_retries=0,
                    app_transactions=[
                        Transaction(APP_PREFIX + name, value) for name, value in stamps.items()
                    ],
                ),
                post_commithook_properties=NO_HOOKS,
            )
        except BaseException as error:
            if not isinstance(error, (OSError, DeltaError)) and not panicked(error):
                raise
            self._head_at = NEVER  # Whatever came in between, the next head is loaded whole.
            return self._read_back(version, attempt, error, began)
        if self._seconds() - began > COMMIT_SECONDS_MAX:
            fact = f"the commit of version {version} to {self.uri} took over {COMMIT_SECONDS_MAX} s"
            raise Indeterminate(fact, hint="read back")
        return Committed(version)

    def _read_back(self, version: int, attempt: str, error: BaseException, began: float) -> CommitOutcome:
        """Whose log entry is there (Invariant 5)?"""
        try:
            entry = self.store.get(f"_delta_log/{version:020}.json")
        except FileNotFoundError:
            if self._newest_version() >= version:
                # It was there once, and clean-up has taken it away since: not ours, unless ours is old.
                if self._seconds() - began <= COMMIT_SECONDS_MAX:
                    return Conflict()
            elif self.store.local:
                raise Determinate(
                    f"version {version} of {self.uri} was not written: {error}",
                    hint="mend the cause, then retry",
                ) from error
            raise self._unknown(version, error) from error
        except OSError:
            raise self._unknown(version, error) from error
        return Committed(version) if attempt.encode() in entry else Conflict()

    def _newest_version(self) -> int:
        with suppress(OSError, DeltaError):
            return DeltaTable(self.uri, storage_options=self._options).version()
        return VERSION_NONE

    def _unknown(self, version: int, error: BaseException) -> Indeterminate:
        fact = f"version {version} of {self.uri} may have been written: {error}"
        return Indeterminate(fact, hint="read back")

    def tidy_log(self, committed: int) -> None:
        """Keep the log short, when the version that was just committed is due for it."""
        if committed % CHECKPOINT_VERSIONS != 0:
            return
        # A table of its own: the one that reads answer from must not move on by housekeeping.
        newest = DeltaTable(self.uri, storage_options=self._options)
        newest.create_checkpoint()
        if committed % CLEANUP_VERSIONS == 0:
            newest.cleanup_metadata()

    def sweep(self, *, retention_hours: int) -> int:
        """Remove the files that were replaced, or never committed, more than the retention ago."""
        self.refresh()
        if self._table is None:
            return 0
        return len(self._table.vacuum(retention_hours, dry_run=False, full=True))
