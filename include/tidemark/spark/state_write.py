"""Spark writes the files of a table's coming version, and Python commits them (`delta.state`).

They are plain Parquet files in folders of their own for each attempt, whose names say for which version they
are: they go in with that version or never (`delta.state_vacuum`). A commit that did not go in leaves no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame

from tidemark.core.errors import Indeterminate
from tidemark.core.ledger import CommitOutcome, Conflict
from tidemark.delta.entry import Change, NewFile
from tidemark.delta.file_names import folder_of
from tidemark.delta.state import StateTable
from tidemark.delta.state_files import described, write_rows
from tidemark.delta.store import Store
from tidemark.delta.vectors import Rows
from tidemark.spark.work import WRITE_CONFS as WRITE_CONFS  # noqa: PLC0414
from tidemark.spark.work import WRITE_OPTIONS


class NextVersion:
    """The version after a table's newest one: its files, and the one attempt to commit them."""

    def __init__(
        self, uri: str, storage_options: Mapping[str, str], *, table: StateTable | None = None
    ) -> None:
        self._options = storage_options
        self._table = table or StateTable(uri, storage_options=storage_options)
        self.head = self._table.head()
        self._new: list[NewFile] = []

    @property
    def store(self) -> Store:
        return self._table.store

    def hidden(self, paths: Iterable[str]) -> dict[str, Rows]:
        """The rows that vectors hide in these files."""
        return self._table.hidden(self.head, paths)

    def write(self, rows: DataFrame, *, within: str = "") -> list[NewFile]:
        """Write rows; those of the files that have any."""
        folder = within + folder_of(self.head.version + 1, uuid4())
        rows.write.options(**WRITE_OPTIONS).mode("error").parquet(f"{self.store.uri}/{folder}")
        found = described(self.store, folder)
        self._new += found
        return found

    def put(self, rows: pa.Table) -> list[NewFile]:
        """Write rows without an engine; no file where there are none."""
        if not rows.num_rows:
            return []
        found = write_rows(self.store, rows, version=self.head.version + 1, nonce=uuid4())
        self._new.append(found)
        return [found]

    def commit(self, operation: str, rows_after: int, **change: Any) -> CommitOutcome:
        """Make the version, if and only if the table still stands at the head."""
        made = Change(operation, rows_after, **change)
        try:
            outcome = self._table.commit(self.head, made)
        except Indeterminate:
            # The entry may be there, or may still come: it needs its files.
            raise
        except Exception:
            self.forget()
            raise
        if isinstance(outcome, Conflict):
            self.forget()
        return outcome

    def forget(self) -> None:
        """Remove the files, for a version that will not be."""
        for file in self._new:
            self.store.delete(file.path)
