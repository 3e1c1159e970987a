"""A state's table: its checked head, and the one way to change it.

`commit` is for a change that was worked out on the head that it is given: it reads the vectors of the touched
files at that head, decides the entry, makes the vector file durable and puts the entry. A lost race is a
value, and leaves no vector file behind; the caller removes its own data files, or decides again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from tidemark.core.errors import Determinate
from tidemark.core.ledger import CommitOutcome, Committed, Conflict
from tidemark.delta.checkpoint import make_checkpoint
from tidemark.delta.commit import entry_bytes, put_entry
from tidemark.delta.entry import Change, Entry, decide_entry
from tidemark.delta.head import TableHead, read_head
from tidemark.delta.store import Store
from tidemark.delta.vectors import Rows, read_vectors

ROWS: Final = "tidemark.rows"
"""An application transaction: the last version whose commit was of rows. Unlike log entries it is not cleaned
away."""


class StateTable:
    """One process's handle on a state. It keeps the last head and the vectors of its files."""

    def __init__(
        self,
        uri: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        random: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self.options = dict(storage_options or {})
        self.store = Store(uri, self.options)
        self._clock_ns, self._random = clock_ns, random
        self._head = TableHead()
        self._vectors: dict[str, tuple[object, Rows]] = {}

    def head(self) -> TableHead:
        """The newest version; one without a table has version -1."""
        self._head = read_head(self.store, self._head)
        self._vectors = {path: known for path, known in self._vectors.items() if path in self._head.files}
        return self._head

    @property
    def known(self) -> TableHead:
        """The newest version that this handle has seen."""
        return self._head

    def hidden(self, head: TableHead, paths: Iterable[str]) -> dict[str, Rows]:
        """The rows that a head's vectors hide, of those of the files that have one."""
        found: dict[str, Rows] = {}
        wanted = {}
        for path in paths:
            vector = head.files[path].vector if path in head.files else None
            if vector is None:
                continue
            known = self._vectors.get(path)
            if known is not None and known[0] == vector:
                found[path] = known[1]
            else:
                wanted[path] = vector
        read = read_vectors(self.store, wanted)
        self._vectors |= {path: (wanted[path], rows) for path, rows in read.items()}
        return found | read

    def commit(self, head: TableHead, change: Change) -> CommitOutcome:
        """Make the next version, if and only if the table still stands at `head`. The bytes of the change's
        own files must be on disk already."""
        if change.of_rows:
            change = replace(change, txns={**change.txns, ROWS: head.version + 1})
        entry = decide_entry(
            head,
            change,
            table=self.store.uri,
            attempt=self._random().hex,
            now_ms=self._clock_ns() // 1_000_000,
            random=self._random(),
            previous=self.hidden(head, change.hidden),
        )
        try:
            outcome = self._put(entry, change)
        except Determinate:
            self._forget(entry)
            raise
        if isinstance(outcome, Conflict):
            # What came in between may have been cleaned away, and can't be followed entry by entry then.
            self._head = TableHead()
            self._forget(entry)
        elif isinstance(outcome, Committed) and head is self._head:
            size = len(entry_bytes(entry.actions))
            self._head = head.after(entry.actions, version=entry.version, table=self.store.uri, size=size)
        return outcome

    def tidy_log(self) -> None:
        """Make a checkpoint if one is due by what is known of the log, and let go of entries that are past
        their retention. For after a commit, and never a part of it."""
        if not self._head.checkpoint_due:
            return
        size = make_checkpoint(self.store, self.options)
        self._head = replace(self._head, checkpoint_bytes=size, entries_bytes=0)

    def _put(self, entry: Entry, change: Change) -> CommitOutcome:
        named = list(change.new_paths)
        if entry.vector_path:
            try:
                self.store.put_synced(entry.vector_path, entry.vector_bytes)
            except OSError as error:
                raise Determinate(
                    f"the vectors for version {entry.version} of {self.store.uri} were not written: {error}",
                    hint="check the room and the permissions, then retry",
                ) from error
            named.append(entry.vector_path)
        return put_entry(
            self.store, entry.version, entry.actions, files=named, seconds=lambda: self._clock_ns() / 1e9
        )

    def _forget(self, entry: Entry) -> None:
        """Remove the vector file of an entry that did not go in, and never will."""
        if entry.vector_path:
            self.store.remove_quietly(entry.vector_path)
