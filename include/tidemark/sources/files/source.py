"""Files that land in a folder, as a source: bound once each, by name, with the hash of their content.

Promise: every settled file that was not bound yet is offered, in order of names, and none twice; it does not
matter whether its name sorts before those that are bound (scenario S6). Numbers are dense from the last
binding, so each file, and each record in it, belongs to exactly one transaction (Invariant 1).

Files don't change. What happens to a bound file afterwards is noticed, never ignored:

- *removed* or moved away: `inspect` names it for the transactions that need it; the offer goes on, because
  clearing away what was processed is normal;
- *truncated* or *changed*: `inspect` names it too, and the offer fails, because the new content under the old
  name would otherwise be lost in silence. Renaming such a file lets it be taken as a new one.

A time stamp that moved while the content stayed is no change. Size and time may stay while the content moves;
then the system's own time of the last change has moved, and the content is hashed: before a transaction is
sealed, for each of its files, and by the offer for those that were changed last, within `TOUCHED_BYTES_MAX`.
A file that is still being written is left for later: by its age (`settle_seconds`), by its marker, by its
missing Parquet footer, and by a size or time that moves while it is hashed.

Known limitations: it is meant for a local or mounted folder. `max_records` counts lines, so a CSV file with
line breaks inside of quotes counts high. Where times of last changes are too coarse, what is written twice
within one tick, with the same size, is one content; `settle_seconds` waits longer than that.
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
from tidemark.config.paths import cache_folder, is_uri
from tidemark.config.source import FilesSource
from tidemark.core.binding import Binding, BindingRecord, Step
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.frontier import Frontier
from tidemark.core.ids import Txn
from tidemark.core.replay import Replayable
from tidemark.ports.control import Ledger
from tidemark.ports.source import Waiting
from tidemark.sources.files.bound_files import BoundFiles
from tidemark.sources.files.content import Content, read_content
from tidemark.sources.files.listing import Change, Found, Listing, Skipped, find_change, listed, matcher
from tidemark.sources.files.manifest import PARTITION, BoundFile, Manifest

THREADS: Final = 4
INDEX_FILE: Final = "1.sqlite"
"""Another number for another layout: processes of two versions may work side by side."""
TOUCHED_BYTES_MAX: Final = 256 * 1024**2
"""How much of what has kept its size and time an offer reads again, of what was changed last."""
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
        index: Path | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder = os.fspath(folder)
        self._rules = rules
        self._limits = limits or FileLimits()
        self._bindings = bindings
        self._now = now
        self._matches = matcher(rules.pattern, rules.format)
        self._bound = BoundFiles(index, self._bound_between)
        self._contents: dict[str, tuple[Found, Content]] = {}
        self.skipped: tuple[Skipped, ...] = ()
        """What the last offer left out, and why."""

    @classmethod
    def of(cls, config: PipelineConfig, *, bindings: Ledger[BindingRecord]) -> FileSource:
        """The source that a pipeline file describes."""
        source, limits = config.source, config.transaction
        if not isinstance(source, FilesSource):
            raise InvalidUsage(f"pipeline {config.name!r} reads a {source.type} source, not files")
        place = f"{config.warehouse_location}/{config.name}/bound-files"
        cache = cache_folder(None if is_uri(place) else Path(place), uri=place)
        return cls(
            config.source_location,
            FileRules(source.format, source.pattern, source.settle_seconds, source.ready_marker),
            bindings=bindings,
            limits=FileLimits(limits.max_files, limits.max_bytes, limits.max_records),
            index=cache / INDEX_FILE,
        )

    def offer(self, last: Binding | None) -> Sequence[Step]:
        """Everything new, cut into transactions; `BoundFileChanged` when bound names have other content."""
        listing, bound = self._look(last)
        changes = self._changes(listing, bound)
        if changes:
            raise BoundFileChanged(changes)
        fresh = list(self._fresh(listing, bound))
        self._contents = {name: one for name, one in self._contents.items() if name in listing.files}
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

    def nothing_after(self, last: Binding | None) -> Step:
        """No file: what follows is numbered as after the given binding."""
        upper = last.upper if last is not None else Frontier.of({PARTITION: 0})
        return Step(upper, Manifest(self._rules.format, ()).to_json())

    def waiting(self, last: Binding | None) -> Waiting:
        """The files that no transaction has yet, those that still settle among them; not those whose marker
        is missing. None is opened."""
        try:
            listing, bound = self._look(last, makes=False)
        except InvalidUsage as error:
            return Waiting(trouble=error.fact)
        now_ns = int(self._now() * 1e9)
        new = [f for f in listing.with_markers(self._rules.ready_marker) if f.name not in bound]
        oldest = min((file.settled_at(now_ns) for file in new), default=None)
        return Waiting(len(new), sum(file.size for file in new), oldest / 1e9 if oldest is not None else None)

    def _tell(self) -> None:
        """Say what is left out, and first, as a warning, what no later run will take either."""
        for one in sorted(self.skipped, key=lambda one: one.waits)[:_SKIPPED_LOGGED_MAX]:
            level = logging.INFO if one.waits else logging.WARNING
            logger.log(level, "file %r is not taken: %s", one.name, one.reason)

    def inspect(self, binding: Binding) -> str:
        """Which bound files are not what they were; empty when all are."""
        return self._gone(binding, thorough=True)

    def _gone(self, binding: Binding, *, thorough: bool) -> str:
        files = Manifest.from_json(binding.manifest).files
        changes = (find_change(self._folder, file, self._hash_of, thorough=thorough) for file in files)
        return listed([change for change in changes if change is not None])

    def replayable(self, bindings: Sequence[Binding]) -> Sequence[Replayable]:
        """Files have no retention of their own: they can be read until someone changes or removes them."""
        return [Replayable(gone=self._gone(binding, thorough=False)) for binding in bindings]

    def acknowledge(self, frontier: Frontier) -> None:
        """Nothing: files are the user's, and are never moved or removed."""

    def _look(self, last: Binding | None, *, makes: bool = True) -> tuple[Listing, dict[str, BoundFile]]:
        """What is in the folder, and what of it is bound up to the last binding. Who only looks at a pipeline
        leaves no index behind, which might be another user's."""
        listing = Listing(self._folder, self._matches)
        if not makes and not self._bound.is_made:
            self._bound = BoundFiles(None, self._bound_between)
        self._bound.learn(last)
        return listing, self._bound.among(listing.files)

    def _bound_between(self, lower: Txn, upper: Txn) -> list[Binding]:
        """The bindings of these transactions, all of which a head has shown; an older snapshot is left."""
        wanted = list(range(lower, upper))
        for _ in range(2):
            found = [one for one in self._bindings.read(lower, upper) if isinstance(one, Binding)]
            if [binding.txn for binding in found] == wanted:
                return found
            self._bindings.head()
        raise InvariantViolation(f"bindings {lower} to {upper - 1} are not all there")

    def _changes(self, listing: Listing, bound: Mapping[str, BoundFile]) -> list[Change]:
        """The bound files whose size or times moved, and whose content did too."""
        moved: list[BoundFile] = []
        touched: list[tuple[int, BoundFile]] = []
        for name, known in bound.items():
            found = listing.files[name]
            if (found.size, found.mtime_ns) != (known.size, known.mtime_ns):
                moved.append(known)
            elif known.changed_ns not in (0, found.changed_ns):
                touched.append((found.changed_ns, known))
        room = TOUCHED_BYTES_MAX
        for _, known in sorted(touched, key=lambda one: (-one[0], one[1].seq)):
            if known.size <= room:
                room -= known.size
                moved.append(known)
        moved.sort(key=lambda file: file.seq)
        changes = (find_change(self._folder, known, self._hash_of) for known in moved)
        return [change for change in changes if change is not None and not change.is_removal]

    def _hash_of(self, file: Found) -> str:
        """The hash of a bound file as it is now; read once for each size and time."""
        return self._content(file, count_records=False).hash

    def _content(self, file: Found, *, count_records: bool) -> Content:
        known = self._contents.get(file.name)
        if known is None or known[0] != file:
            path = f"{self._folder}/{file.name}"
            content = read_content(path, file_format=self._rules.format, count_records=count_records)
            known = self._contents[file.name] = file, content
        return known[1]

    def _fresh(self, listing: Listing, bound: Mapping[str, BoundFile]) -> Iterator[Found]:
        """The files to bind, in order of their names."""
        now_ns = int(self._now() * 1e9)
        settle_ns = int(self._rules.settle_seconds * 1e9)
        for file in listing.with_markers(self._rules.ready_marker):
            if file.name in bound:
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
        try:
            return self._content(file, count_records=self._limits.records_max is not None)
        except OSError:
            return None

    def _is_whole(self, file: Found, content: Content | None, listing: Listing) -> bool:
        waits = False
        if content is None:
            reason = "it can't be read"
        elif Found(file.name, content.size, content.mtime_ns, content.changed_ns) != file:
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
            batch.append(BoundFile(seq, file.name, content.size, content.hash, *times))
            size += content.size
            records += content.records
        if batch:
            yield self._step(batch)

    def _step(self, files: Sequence[BoundFile]) -> Step:
        manifest = Manifest(self._rules.format, tuple(files))
        return Step(Frontier.of({PARTITION: files[-1].seq + 1}), manifest.to_json())
