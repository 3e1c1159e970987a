"""Landing files on an object store: bound by key, size and e-tag, without reading their content.

An object appears whole, and its e-tag changes with its content, so nothing has to be hashed. The store is
listed in pages: below the folders that the pattern names, and with `incremental_listing` from the last
bound name on. Objects that were changed or removed since they were bound are found by one request each,
several at a time.

In a bucket of S3 that has versions, an object's version is bound too. A listing doesn't have it, so each new
object costs a request; the first answer says whether the bucket has versions at all. Where a bound object
was changed or removed, its version is looked for, and the message names it.

Known limitations: a prefix without objects looks the same as a misspelt one. A store may give equal content
a new e-tag when it is written again; that counts as a change. Objects are read by their keys, because Spark
opens files by their paths, and a path of Hadoop's connectors names no version. So an older version is not
read: a person makes it the newest one again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tidemark.config.storage import open_objects
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.sources.files.listing import Change, Found, Listing, is_temporary
from tidemark.sources.files.manifest import BoundFile, is_inside

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore

REQUESTS_AT_ONCE: Final = 16
PAGE_OBJECTS: Final = 1_000
_GLOB: Final = frozenset("*?[")
_WITH_VERSIONS: Final = ("s3://", "s3a://")


class Objects:
    """The objects below a prefix, as the files of a source."""

    def __init__(self, uri: str, *, pattern: str | None = None, store: ObjectStore | None = None) -> None:
        self._uri = uri
        self._given = store
        self._prefix = literal_folders(pattern)

    @property
    def _store(self) -> ObjectStore:
        if self._given is None:
            self._given = open_objects(self._uri, {})
        return self._given

    def list_first(self) -> None:
        """Request the first page only; raises where the store refuses or does not answer."""
        with self._answers():
            next(iter(self._store.list(self._prefix or None, chunk_size=1)), None)

    def list_into(self, listing: Listing, *, after: str | None = None) -> None:
        """Add all objects, or those whose names sort after `after`."""
        with self._answers():
            pages = self._store.list(self._prefix or None, offset=after, chunk_size=PAGE_OBJECTS)
            for page in pages:
                for one in page:
                    self._take(one, listing)

    def _take(self, one: ObjectMeta, listing: Listing) -> None:
        name = one["path"]
        listing.names.add(name)
        if any(map(is_temporary, name.split("/"))) or not is_inside(name):
            return
        if listing.takes(name):
            listing.files[name] = self._found(name, one)

    def _found(self, name: str, one: ObjectMeta) -> Found:
        tag = one["e_tag"]
        if not tag:
            raise InvalidUsage(f"{self._uri} gives objects no e-tags", hint="use a store that has them")
        written_ns = int(one["last_modified"].timestamp() * 1e6) * 1_000
        tagged = f"etag:{tag.strip(chr(34))}"
        return Found(name, one["size"], written_ns, 0, tagged, one["version"] or "")

    def with_versions(self, files: Sequence[Found]) -> list[Found]:
        """The same files, if the bucket has no versions; else as they are now, with their versions, without
        those that are gone. One that was written again since it was listed is not left for the next run: an
        incremental listing would not have it."""
        if not files or not self._uri.startswith(_WITH_VERSIONS):
            return list(files)
        first = self._now(files[0].name)
        if first is not None and not first.version:
            return list(files)
        with ThreadPoolExecutor(min(REQUESTS_AT_ONCE, len(files))) as pool:
            others = pool.map(self._now, [file.name for file in files[1:]])
            return [one for one in (first, *others) if one is not None]

    def _now(self, name: str) -> Found | None:
        """An object as it is now; None if it is gone."""
        from obstore.exceptions import NotFoundError

        with self._answers():
            try:
                return self._found(name, self._store.head(name))
            except (NotFoundError, FileNotFoundError):
                return None

    def has_all(self, files: Sequence[BoundFile]) -> bool:
        """Whether all of the files exist, changed or not."""
        return not any(change.is_removal for change in self.changes(files))

    def changes(self, files: Sequence[BoundFile]) -> list[Change]:
        """The files that were changed or removed, in their order."""
        if not files:
            return []
        with ThreadPoolExecutor(min(REQUESTS_AT_ONCE, len(files))) as pool:
            return [change for change in pool.map(self._change, files) if change is not None]

    def _change(self, file: BoundFile) -> Change | None:
        found = self._now(file.name)
        if found is None:
            return Change(file, f"was removed{self._version_left(file)}", is_removal=True)
        if found.tag == file.hash:
            return None
        what = f"was changed: its e-tag was {_shown(file.hash)}, now it is {_shown(found.tag)}"
        if found.size < file.size:
            what = f"was truncated from {file.size} to {found.size} bytes"
        return Change(file, f"{what}{self._version_left(file)}")

    def _version_left(self, file: BoundFile) -> str:
        """Whether the bucket still has the bound version of an object that was changed or removed, as text
        for a message; empty if no version was bound."""
        from obstore.exceptions import BaseError, NotFoundError

        if not file.version:
            return ""
        try:
            options: GetOptions = {"version": file.version, "head": True}
            found = self._found(file.name, self._store.get(file.name, options=options).meta)
        except (NotFoundError, FileNotFoundError):
            return f" (its version {file.version} is gone too)"
        except BaseError as error:
            return f" (whether its version {file.version} is there can't be seen: {_first_line(error)})"
        if found.tag != file.hash:
            return f" (its version {file.version} is gone too)"
        return f" (its version {file.version} is still there: delete the versions that are newer)"

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Turn errors of a store that refuses or does not answer into errors with a remedy."""
        from obstore.exceptions import (
            BaseError,
            NotFoundError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError, NotFoundError) as error:
            raise InvalidUsage(
                f"{self._uri} can't be listed: {_first_line(error)}",
                hint="check source.path and the credentials; `tidemark doctor -e` tries them",
            ) from error
        except BaseError as error:
            raise Determinate(f"{self._uri} does not answer: {_first_line(error)}", hint="retry") from error


def literal_folders(pattern: str | None) -> str:
    """The literal folders that a pattern begins with; empty where there are none."""
    found: list[str] = []
    for name in (pattern or "").split("/")[:-1]:
        if _GLOB & set(name):
            break
        found.append(name)
    return "/".join(found)


def _shown(tag: str) -> str:
    return tag.removeprefix("etag:")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
