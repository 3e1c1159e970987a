"""Files of a folder or an object store as a source: each is bound once, by name, with the hash of its content
or, on an object store, with its e-tag (`files.objects`).

Promise: the source offers every settled file that is not yet bound, in order of names, and no file twice. A
new file may sort before the bound ones (scenario S6). Sequence numbers are dense from the last binding, so
each file, and each record in it, belongs to exactly one transaction (Invariant 1).

Bound files must not change. The source detects it when they do:

- *removed* or moved away: `inspect` names the file for the transactions that need it. The offer continues,
  because it is normal to clear processed files away.
- *truncated* or *changed*: `inspect` names the file, and the offer fails, because the new content under the
  old name would otherwise be lost silently. After a rename the file is offered as a new one.

A new time stamp on the same content is not a change. If the content changes and size and time stamp stay, the
inode's change time still moves, and the content is hashed again: before a seal, for each of the transaction's
files; in an offer, for the most recently changed files, up to `TOUCHED_BYTES_MAX`. The source skips a file
that is still being written: it is younger than `settle_seconds`, or lacks its marker or its Parquet footer,
or its size or time moves while it is hashed.

Known limitations: the folder must be local or mounted. `max_records` counts lines, so it counts a CSV file
with quoted line breaks too high. If change times are coarse, two writes of the same size within one tick look
like one; a `settle_seconds` longer than a tick avoids this.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemark.config.model import PipelineConfig
from tidemark.config.source import FilesSource
from tidemark.config.storage import cache_folder, is_uri
from tidemark.core.binding import Binding, Step
from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.ids import Frontier, Txn
from tidemark.core.replay import Replayable
from tidemark.ports.control import Ledger
from tidemark.ports.source import Waiting
from tidemark.sources.files.bound_files import PARTITION, BoundFile, BoundFiles, Manifest
from tidemark.sources.files.content import Content, read_content
from tidemark.sources.files.listing import (
    Change,
    Found,
    Listing,
    Objects,
    Skipped,
    find_change,
    listed,
    matcher,
)

THREADS: Final = max(4, os.cpu_count() or 1)
"""One thread hashes 600 to 900 MB a second, and so keeps up with dozens of cores of Spark (`bench.cores`)."""
INDEX_FILE: Final = "2.sqlite"
"""The number changes with the layout, so that processes of two versions can run side by side."""
TOUCHED_BYTES_MAX: Final = 256 * 1024**2
"""How many bytes an offer hashes again of bound files whose change time alone moved, the latest first."""
_SKIPPED_LOGGED_MAX: Final = 20
NO_RECORDS: Final = "max_records can't limit transactions of objects, whose lines are not counted"
NO_RECORDS_HINT: Final = "use max_files or max_bytes"

logger = logging.getLogger(__name__)


class BoundFileChanged(InvalidUsage):
    """Bound files have new content, which no transaction has read."""

    def __init__(self, changes: Sequence[Change]) -> None:
        super().__init__(
            listed(changes),
            hint="restore the bound content, and give the new content its own file name",
        )
        self.changes = tuple(changes)


@dataclass(frozen=True, slots=True)
class FileRules:
    """Which files of the folder are bound, and when. The fields are named as in the pipeline file."""

    format: str
    pattern: str | None = None
    settle_seconds: float = 0
    ready_marker: str | None = None
    incremental_listing: bool = False


@dataclass(frozen=True, slots=True)
class FileLimits:
    """The limits of one transaction. A file that exceeds them by itself gets a transaction of its own."""

    files_max: int = 10_000
    bytes_max: int = 4 * 1024**3
    records_max: int | None = None


class FileSource:
    """The `Source` port over a folder. Not safe for several threads at once."""

    def __init__(
        self,
        folder: str | Path,
        rules: FileRules,
        *,
        bindings: Ledger[Binding],
        limits: FileLimits | None = None,
        index: Path | None = None,
        objects: Objects | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder = os.fspath(folder)
        self._rules = rules
        self._limits = limits or FileLimits()
        self._bindings = bindings
        self._now = now
        self._matches = matcher(rules.pattern, rules.format)
        if objects is None and is_uri(self._folder):
            objects = Objects(self._folder, pattern=rules.pattern)
        if objects is not None and self._limits.records_max is not None:
            raise InvalidUsage(NO_RECORDS, hint=NO_RECORDS_HINT)
        self._objects = objects
        self._bound = BoundFiles(index, self._bound_between)
        self._contents: dict[str, tuple[Found, Content]] = {}
        self.skipped: tuple[Skipped, ...] = ()
        """The files that the last offer left out, with the reasons."""

    @classmethod
    def of(cls, config: PipelineConfig, *, bindings: Ledger[Binding]) -> FileSource:
        """The source that a pipeline file describes."""
        source, limits = config.source, config.transaction
        if not isinstance(source, FilesSource):
            raise InvalidUsage(f"pipeline {config.name!r} reads a {source.type} source, not files")
        place = f"{config.warehouse_location}/{config.name}/bound-files"
        cache = cache_folder(None if is_uri(place) else Path(place), uri=place)
        return cls(
            config.source_location,
            FileRules(
                source.format,
                source.pattern,
                source.settle_seconds,
                source.ready_marker,
                source.incremental_listing,
            ),
            bindings=bindings,
            limits=FileLimits(limits.max_files, limits.max_bytes, limits.max_records),
            index=cache / INDEX_FILE,
        )

    def offer(self, last: Binding | None) -> Sequence[Step]:
        """All new files, cut into transactions. Raises `BoundFileChanged` if a bound file has new content."""
        listing, bound = self._look(last)
        changes = self._changes(listing, bound)
        if changes:
            raise BoundFileChanged(changes)
        fresh = list(self._fresh(listing, bound))
        if self._objects is not None:
            fresh = self._objects.with_versions(fresh)
        self._contents = {name: one for name, one in self._contents.items() if name in listing.files}
        contents = self._read(fresh)
        whole = [
            (file, content)
            for file, content in zip(fresh, contents, strict=True)
            if self._is_whole(file, content, listing)
        ]
        self.skipped = tuple(listing.skipped)
        self._log_skipped()
        lower = last.upper[PARTITION] if last is not None else 0
        return list(self._cut(whole, lower))

    def nothing_after(self, last: Binding | None, *, lost: bool) -> Step:
        """No file: what follows is numbered as after the given binding."""
        upper = last.upper if last is not None else Frontier.of({PARTITION: 0})
        return Step(upper, Manifest(self._rules.format, ()).to_json())

    def waiting(self, last: Binding | None) -> Waiting:
        """The files that are not bound yet, including those that still settle, but not those whose marker is
        missing. Opens no file."""
        try:
            listing, bound = self._look(last, makes=False)
        except (InvalidUsage, Determinate) as error:
            return Waiting(trouble=error.fact)
        now_ns = int(self._now() * 1e9)
        new = [f for f in listing.with_markers(self._rules.ready_marker) if f.name not in bound]
        oldest = min((file.settled_at(now_ns) for file in new), default=None)
        return Waiting(len(new), sum(file.size for file in new), oldest / 1e9 if oldest is not None else None)

    def _log_skipped(self) -> None:
        """Log the skipped files. Those that no later run will bind come first, as warnings."""
        for one in sorted(self.skipped, key=lambda one: one.waits)[:_SKIPPED_LOGGED_MAX]:
            level = logging.INFO if one.waits else logging.WARNING
            logger.log(level, "file %r is not taken: %s", one.name, one.reason)

    def inspect(self, binding: Binding) -> str:
        """Which bound files have changed; empty if none has."""
        return self._gone(binding, thorough=True)

    def _gone(self, binding: Binding, *, thorough: bool) -> str:
        return listed(self._changed(Manifest.from_json(binding.manifest).files, thorough=thorough))

    def _changed(self, files: Sequence[BoundFile], *, thorough: bool = True) -> list[Change]:
        """Those of the files that are not what they were."""
        if self._objects is not None:
            return self._objects.changes(files)
        changes = (find_change(self._folder, file, self._hash_of, thorough=thorough) for file in files)
        return [change for change in changes if change is not None]

    def replayable(self, bindings: Sequence[Binding]) -> Sequence[Replayable]:
        """Which transactions still have all their files. Files have no retention: they stay replayable until
        a user changes or removes them."""
        return [Replayable(gone=self._gone(binding, thorough=False)) for binding in bindings]

    def acknowledge(self, frontier: Frontier) -> None:
        """Does nothing: Tidemark never moves or removes the user's files."""

    def _look(self, last: Binding | None, *, makes: bool = True) -> tuple[Listing, dict[str, BoundFile]]:
        """What is in the folder, and what of it is bound up to the last binding. Who only looks at a pipeline
        leaves no index behind, which might be another user's."""
        folder = None if self._objects is not None else self._folder
        listing = Listing(folder, self._matches)
        if not makes and not self._bound.is_made:
            self._bound = BoundFiles(None, self._bound_between)
        self._bound.learn(last)
        if self._objects is not None:
            after = self._bound.last_name() if self._rules.incremental_listing else None
            self._objects.list_into(listing, after=after)
        return listing, self._bound.among(listing.files)

    def _bound_between(self, lower: Txn, upper: Txn) -> list[Binding]:
        """The bindings in [lower, upper), all of which a head has shown. If the ledger was read at an older
        version, it is read again."""
        wanted = list(range(lower, upper))
        for _ in range(2):
            found = list(self._bindings.read(lower, upper))
            if [binding.txn for binding in found] == wanted:
                return found
            self._bindings.head()
        raise InvariantViolation(f"bindings {lower} to {upper - 1} are not all there")

    def _changes(self, listing: Listing, bound: Mapping[str, BoundFile]) -> list[Change]:
        """The bound files whose size or times differ, and whose content differs too."""
        moved: list[BoundFile] = []
        touched: list[tuple[int, BoundFile]] = []
        for name, known in bound.items():
            found = listing.files[name]
            if found.tag:
                # Nothing else has to be looked at: an e-tag stands for the content.
                if found.tag != known.hash:
                    moved.append(known)
            elif (found.size, found.mtime_ns) != (known.size, known.mtime_ns):
                moved.append(known)
            elif known.changed_ns not in (0, found.changed_ns):
                touched.append((found.changed_ns, known))
        room = TOUCHED_BYTES_MAX
        for _, known in sorted(touched, key=lambda one: (-one[0], one[1].seq)):
            if known.size <= room:
                room -= known.size
                moved.append(known)
        moved.sort(key=lambda file: file.seq)
        return [change for change in self._changed(moved) if not change.is_removal]

    def _hash_of(self, file: Found) -> str:
        """The current hash of a bound file, computed once for each size and time."""
        return self._content(file, count_records=False).hash

    def _content(self, file: Found, *, count_records: bool) -> Content:
        if file.tag:
            return Content(file.size, file.tag, file.mtime_ns, file.changed_ns)
        known = self._contents.get(file.name)
        if known is None or known[0] != file:
            path = f"{self._folder}/{file.name}"
            content = read_content(path, file_format=self._rules.format, count_records=count_records)
            known = self._contents[file.name] = file, content
        return known[1]

    def _fresh(self, listing: Listing, bound: Mapping[str, BoundFile]) -> Iterator[Found]:
        """The settled files that are not bound, in order of names."""
        now_ns = int(self._now() * 1e9)
        settle_ns = int(self._rules.settle_seconds * 1e9)
        for file in listing.with_markers(self._rules.ready_marker):
            if file.name in bound:
                continue
            # Without a settle time, clocks that differ between this machine and the file server don't matter.
            if settle_ns and now_ns - file.settled_at(now_ns) < settle_ns:
                reason = f"it is younger than {self._rules.settle_seconds} s"
                listing.skipped.append(Skipped(file.name, reason, waits=True))
                continue
            yield file

    def _read(self, files: Sequence[Found]) -> Iterable[Content | None]:
        if not files:
            return []
        with ThreadPoolExecutor(max_workers=THREADS) as pool:
            return list(pool.map(self._read_one, files))

    def _read_one(self, file: Found) -> Content | None:
        """The content, or None if the file can't be opened."""
        try:
            return self._content(file, count_records=self._limits.records_max is not None)
        except OSError:
            return None

    def _is_whole(self, file: Found, content: Content | None, listing: Listing) -> bool:
        waits = False
        if content is None:
            reason = "it can't be read"
        elif Found(file.name, content.size, content.mtime_ns, content.changed_ns, file.tag) != file:
            reason, waits = "it is still being written", True
        else:
            reason = content.flaw
        if reason:
            listing.skipped.append(Skipped(file.name, reason, waits))
        return not reason

    def _cut(self, files: Sequence[tuple[Found, Content | None]], lower: int) -> Iterator[Step]:
        """Steps of whole files within the limits, numbered from `lower`."""
        limits = self._limits
        batch: list[BoundFile] = []
        size = records = 0
        for seq, (file, content) in enumerate(files, start=lower):
            if content is None:
                raise InvariantViolation(f"file {file.name!r} was not read")
            is_full = batch and (
                len(batch) >= limits.files_max
                or size + content.size > limits.bytes_max
                or (limits.records_max is not None and records + content.records > limits.records_max)
            )
            if is_full:
                yield self._step(batch)
                batch, size, records = [], 0, 0
            times = content.mtime_ns, content.changed_ns
            batch.append(BoundFile(seq, file.name, content.size, content.hash, *times, version=file.version))
            size += content.size
            records += content.records
        if batch:
            yield self._step(batch)

    def _step(self, files: Sequence[BoundFile]) -> Step:
        manifest = Manifest(self._rules.format, tuple(files))
        return Step(Frontier.of({PARTITION: files[-1].seq + 1}), manifest.to_json())
