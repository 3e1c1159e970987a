"""Files that land in a folder, as a source: bound once each, by name, with the hash of their content.

Promise: every settled file that was not bound yet is offered, in order of names, and none twice; it does not
matter whether its name sorts before those that are bound (scenario S6). Numbers are dense from the last
binding, so each file, and each record in it, belongs to exactly one transaction (Invariant 1).

Files don't change. What happens to a bound file afterwards is noticed, never ignored:

- *removed* or moved away: `inspect` names it for the transactions that need it; the offer goes on, because
  clearing away what was processed is normal;
- *truncated* or *changed*: `inspect` names it too, and the offer fails, because the new content under the old
  name would otherwise be lost in silence. Renaming such a file lets it be taken as a new one.

A time stamp that moved while the content stayed is no change. A file that is still being written is left for
later: by its age (`settle_seconds`), by its marker, by its missing Parquet footer, and by a size or time that
moves while it is hashed.

Known limitations: it is meant for a local or mounted folder. The names of all bound files are kept in memory,
about 350 bytes each. `max_records` counts lines, so a CSV file with line breaks inside of quotes counts high.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemark.config.model import PipelineConfig
from tidemark.config.source import FilesSource
from tidemark.core.binding import Binding, BindingRecord, Step
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.frontier import Frontier
from tidemark.core.replay import Replayable
from tidemark.ports.control import Ledger
from tidemark.ports.source import Waiting
from tidemark.sources.change import Change, find_change, listed
from tidemark.sources.content import Content, read_content
from tidemark.sources.listing import Found, Listing, Skipped, matcher
from tidemark.sources.manifest import PARTITION, BoundFile, Manifest

THREADS: Final = 4
_SKIPPED_LOGGED_MAX: Final = 20

logger = logging.getLogger(__name__)


class BoundFileChanged(InvalidUsage):
    """Files that are bound have other content now, which nobody has read."""

    def __init__(self, changes: Sequence[Change]) -> None:
        super().__init__(
            listed(changes),
            hint="put the bound content back, and give the new content a name of its own",
        )
        self.changes = tuple(changes)


@dataclass(frozen=True, slots=True)
class FileRules:
    """Which files of the folder are taken, and when; the words are those of the pipeline file."""

    format: str
    pattern: str | None = None
    settle_seconds: float = 0
    ready_marker: str | None = None


@dataclass(frozen=True, slots=True)
class FileLimits:
    """How much goes into one transaction. One file that is larger by itself is one of its own."""

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
        bindings: Ledger[BindingRecord],
        limits: FileLimits | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder = os.fspath(folder)
        self._rules = rules
        self._limits = limits or FileLimits()
        self._bindings = bindings
        self._now = now
        self._matches = matcher(rules.pattern, rules.format)
        self._bound: dict[str, BoundFile] = {}
        self._bound_upper = 1
        self._contents: dict[tuple[str, int, int], Content] = {}
        self.skipped: tuple[Skipped, ...] = ()
        """What the last offer left out, and why."""

    @classmethod
    def of(cls, config: PipelineConfig, *, bindings: Ledger[BindingRecord]) -> FileSource:
        """The source that a pipeline file describes."""
        source, limits = config.source, config.transaction
        if not isinstance(source, FilesSource):
            raise InvalidUsage(f"pipeline {config.name!r} reads a {source.type} source, not files")
        return cls(
            config.source_location,
            FileRules(source.format, source.pattern, source.settle_seconds, source.ready_marker),
            bindings=bindings,
            limits=FileLimits(limits.max_files, limits.max_bytes, limits.max_records),
        )

    def offer(self, last: Binding | None) -> Sequence[Step]:
        """Everything new, cut into transactions; `BoundFileChanged` when bound names have other content."""
        self._learn(last)
        listing = Listing(self._folder, self._matches)
        changes = self._changes(listing)
        if changes:
            raise BoundFileChanged(changes)
        fresh = list(self._fresh(listing))
        contents = self._read(fresh)
        whole = [
            (file, content)
            for file, content in zip(fresh, contents, strict=True)
            if self._is_whole(file, content, listing)
        ]
        self.skipped = tuple(listing.skipped)
        self._tell()
        lower = last.upper[PARTITION] if last is not None else 0
        return list(self._cut(whole, lower))

    def waiting(self, last: Binding | None) -> Waiting:
        """The files that no transaction has yet, those that still settle among them; not those whose marker
        is missing. None is opened."""
        self._learn(last)
        # A marker is told from a file by the file that it belongs to, so with markers all are looked at.
        known = self._bound if self._rules.ready_marker is None else {}
        try:
            listing = Listing(self._folder, self._matches, known=known)
        except InvalidUsage as error:
            return Waiting(trouble=error.fact)
        now_ns = int(self._now() * 1e9)
        new = [f for f in listing.with_markers(self._rules.ready_marker) if f.name not in self._bound]
        oldest = min((file.settled_at(now_ns) for file in new), default=None)
        return Waiting(len(new), sum(file.size for file in new), oldest / 1e9 if oldest is not None else None)

    def _tell(self) -> None:
        """Say what is left out, and first, as a warning, what no later run will take either."""
        for one in sorted(self.skipped, key=lambda one: one.waits)[:_SKIPPED_LOGGED_MAX]:
            level = logging.INFO if one.waits else logging.WARNING
            logger.log(level, "file %r is not taken: %s", one.name, one.reason)

    def inspect(self, binding: Binding) -> str:
        """Which bound files are not what they were; empty when all are."""
        files = Manifest.from_json(binding.manifest).files
        return listed([change for file in files if (change := self._change(file)) is not None])

    def replayable(self, bindings: Sequence[Binding]) -> Sequence[Replayable]:
        """Files have no retention of their own: they can be read until someone changes or removes them."""
        return [Replayable(gone=self.inspect(binding)) for binding in bindings]

    def acknowledge(self, frontier: Frontier) -> None:
        """Nothing: files are the user's, and are never moved or removed."""

    def _learn(self, last: Binding | None) -> None:
        """Bring the bound names up to the last binding; read from the ledger only what is new there."""
        upper = last.txn + 1 if last is not None else 1
        if upper < self._bound_upper:
            # An older snapshot than the one before: what was learnt above it doesn't count here.
            self._bound, self._bound_upper = {}, 1
        if upper == self._bound_upper:
            return
        learnt = self._bound_between(self._bound_upper, upper)
        if len(learnt) < upper - self._bound_upper:
            self._bindings.head()
            learnt = self._bound_between(self._bound_upper, upper)
        if [binding.txn for binding in learnt] != list(range(self._bound_upper, upper)):
            raise InvariantViolation(f"bindings {self._bound_upper} to {upper - 1} are not all there")
        for binding in learnt:
            for file in Manifest.from_json(binding.manifest).files:
                known = self._bound.setdefault(file.name, file)
                if known is not file:
                    raise InvariantViolation(
                        f"file {file.name!r} is bound twice, as number {known.seq} and {file.seq}",
                        hint="stop the pipeline; its records may be in two transactions",
                    )
        self._bound_upper = upper

    def _bound_between(self, lower: int, upper: int) -> list[Binding]:
        return [record for record in self._bindings.read(lower, upper) if isinstance(record, Binding)]

    def _changes(self, listing: Listing) -> list[Change]:
        """The bound files whose size or time moved, and whose content did too."""
        moved = [
            known
            for name, found in listing.files.items()
            if (known := self._bound.get(name)) is not None
            and (found.size, found.mtime_ns) != (known.size, known.mtime_ns)
        ]
        changes = (self._change(known) for known in sorted(moved, key=lambda file: file.seq))
        return [change for change in changes if change is not None and not change.is_removal]

    def _change(self, file: BoundFile) -> Change | None:
        return find_change(self._folder, file, self._hash_of)

    def _hash_of(self, file: Found) -> str:
        """The hash of a bound file as it is now; read once for each size and time."""
        key = (file.name, file.size, file.mtime_ns)
        if key not in self._contents:
            path = f"{self._folder}/{file.name}"
            self._contents[key] = read_content(path, file_format=self._rules.format, count_records=False)
        return self._contents[key].hash

    def _fresh(self, listing: Listing) -> Iterator[Found]:
        """The files to bind, in order of their names."""
        now_ns = int(self._now() * 1e9)
        settle_ns = int(self._rules.settle_seconds * 1e9)
        for file in listing.with_markers(self._rules.ready_marker):
            if file.name in self._bound:
                continue
            # Without a wait the clocks of this machine and of the file server don't matter.
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
        """The content; None when the file is gone, or can't be opened. Read once for each size and time."""
        key = (file.name, file.size, file.mtime_ns)
        known = self._contents.get(key)
        if known is None:
            counts = self._limits.records_max is not None
            path = f"{self._folder}/{file.name}"
            try:
                known = read_content(path, file_format=self._rules.format, count_records=counts)
            except OSError:
                return None
            self._contents[key] = known
        return known

    def _is_whole(self, file: Found, content: Content | None, listing: Listing) -> bool:
        waits = False
        if content is None:
            reason = "it can't be read"
        elif (content.size, content.mtime_ns) != (file.size, file.mtime_ns):
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
            batch.append(BoundFile(seq, file.name, content.size, content.hash, content.mtime_ns))
            size += content.size
            records += content.records
        if batch:
            yield self._step(batch)

    def _step(self, files: Sequence[BoundFile]) -> Step:
        manifest = Manifest(self._rules.format, tuple(files))
        return Step(Frontier.of({PARTITION: files[-1].seq + 1}), manifest.to_json())
