"""What delta-rs raises, in our words.

The client of an object store: conditional puts, and reading in pieces (`delta.store`).

The files of one Delta table, on a local disk or in an object store, behind one address.

Reading and deleting go through delta-rs's own file handler, so that a table's data and its log are reached
with the same options. Bytes in, bytes out: no pyarrow thread ever calls back into Python, which is what can
abort a process at its exit.

Writing goes another way (`put_synced`, `sync_folders`, `put_if_absent`), because delta-rs neither syncs what
it writes nor lets a caller put a file only if there is none. Where the two kinds of store differ,
they differ here and nowhere else: on a disk a file is synced and then linked to its name, an object store is
asked for a conditional put. A put that it has answered is durable.
"""

from __future__ import annotations

import io
import logging
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import unquote, urlparse

import obstore
from deltalake._internal import DeltaFileSystemHandler
from deltalake.exceptions import DeltaError, TableNotFoundError
from obstore.exceptions import UnknownConfigurationKeyError
from obstore.store import ObjectStore, from_url

from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation, TidemarkError

if TYPE_CHECKING:
    from obstore.store import ObjectStore


logger = logging.getLogger(__name__)


@contextmanager
def housekeeping(table: str) -> Iterator[None]:
    """Work that a commit does for the next ones: the commit stands, whatever becomes of it."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not panicked(error):
            raise
        logger.warning("housekeeping of %s is left for the next commit: %s", table, error)


def panicked(error: BaseException) -> bool:
    """delta-rs met something that it has no error for; its class can't be imported."""
    return type(error).__name__ == "PanicException"


@contextmanager
def reading(table: str) -> Iterator[None]:
    """Loading a table's log: a store that doesn't answer may be asked again, a damaged log may not."""
    try:
        yield
    except (TidemarkError, TableNotFoundError):
        raise
    except OSError as error:
        raise Determinate(f"{table} can't be read: {error}", hint="check the store, then retry") from error
    except BaseException as error:
        if not isinstance(error, (DeltaError, ValueError)) and not panicked(error):
            raise
        raise InvariantViolation(
            f"the log of {table} can't be read: {error}", hint="restore it from a backup"
        ) from error


_CLIENT_OPTIONS = ("allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout")
# What only delta-rs knows: how it locks a store, which nobody needs who puts by a condition.
_OF_DELTA_RS = ("dynamo", "locking_provider", "unsafe_rename")


def open_objects(uri: str, options: Mapping[str, str]) -> ObjectStore:
    """The store behind an address, with the options that delta-rs takes."""
    known: Any = {
        name.lower(): value
        for name, value in options.items()
        if not any(word in name.lower() for word in _OF_DELTA_RS)
    }
    client: Any = {}
    for name in _CLIENT_OPTIONS:
        given = (known.pop(name, None), known.pop(f"aws_{name}", None))
        if found := given[0] or given[1] or os.environ.get(f"AWS_{name.upper()}"):
            client[name] = found
    try:
        return from_url(uri.replace("s3a://", "s3://", 1), config=known, client_options=client)
    except UnknownConfigurationKeyError as error:
        fact = str(error).partition("\n")[0]
        raise InvalidUsage(f"{uri} can't be reached: {fact}", hint="leave the option out") from error


class ObjectReader(io.RawIOBase):
    """A file of an object store to be read in pieces, as Python's files are: the client's own reader has no
    `closed`, which pyarrow asks for."""

    def __init__(self, objects: ObjectStore, path: str) -> None:
        self._reader = obstore.open_reader(objects, path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        return bytes(self._reader.read(None if size is None or size < 0 else size))

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._reader.seek(offset, whence)

    def tell(self) -> int:
        return self._reader.tell()


def local_path(uri: str) -> Path | None:
    """The folder that an address means on this machine, or None for an object store."""
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    return None if "://" in uri else Path(uri)


class Store:
    """Whole files below a table's root."""

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        self.uri = uri
        self._options = dict(storage_options)
        self._handler: DeltaFileSystemHandler | None = None
        self._objects: ObjectStore | None = None
        self.folder = local_path(uri)

    @property
    def local(self) -> bool:
        return self.folder is not None

    def _files(self) -> DeltaFileSystemHandler:
        if self._handler is None:
            self._handler = DeltaFileSystemHandler(self.uri, self._options)
        return self._handler

    def put_synced(self, path: str, data: bytes) -> None:
        """Write one file whose name nobody else uses, and have it on disk; `sync_folders` makes its name
        last. OSError when it can't be."""
        if self.folder is None:
            self._put_object(path, data)
            return
        target = self.folder / path
        _make_folder(target.parent)
        _write_synced(target, data)

    @contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        """A file whose name nobody else uses, to be written in pieces; it is on disk at the end, and not
        there after an error. `sync_folders` makes its name last. OSError when it can't be written."""
        if self.folder is None:
            from obstore.exceptions import BaseError

            with tempfile.TemporaryFile() as file:
                yield cast("BinaryIO", file)
                file.seek(0)
                try:
                    self._object_store().put(path, cast("BinaryIO", file))
                except BaseError as error:
                    raise OSError(f"{path} was not put: {error}") from error
            return
        target = self.folder / path
        _make_folder(target.parent)
        try:
            with target.open("xb") as written:
                yield written
                written.flush()
                os.fsync(written.fileno())
        except BaseException:
            with suppress(OSError):
                target.unlink()
            raise

    def move(self, path: str, target: str) -> None:
        """Give a file of our own another name, which nobody uses. FileNotFoundError when there is none."""
        if self.folder is not None:
            os.rename(self.folder / path, self.folder / target)  # noqa: PTH104
            return
        from obstore.exceptions import BaseError

        try:
            self._object_store().rename(path, target)
        except BaseError as error:
            raise OSError(f"{path} was not renamed: {error}") from error

    def set_aside(self, path: str, target: str) -> None:
        """Move a file into a folder that may not be there yet, lastingly; as `move` otherwise."""
        if self.folder is not None:
            _make_folder((self.folder / target).parent)
        self.move(path, target)
        self.sync_folders([target, path])

    def sync_files(self, paths: Iterable[str]) -> None:
        """Have the bytes of files on disk that another program has written here. OSError when they can't."""
        if self.folder is not None:
            for path in paths:
                _sync(self.folder / path)

    def sync_folders(self, paths: Iterable[str]) -> None:
        """Have the names of these files on disk, up to the table's own."""
        if self.folder is None:
            return
        folders: set[Path] = set()
        for path in paths:
            folders |= {self.folder, self.folder.parent}
            for parent in (self.folder / path).parents:
                if parent == self.folder:
                    break
                folders.add(parent)
        for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
            _sync(folder)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Make a file that is not there, whole and lasting; False where there is one, which stays as it is.

        OSError when it can't be made, or when nobody knows. A name of its own for each attempt: two writers
        never write into one file."""
        if self.folder is None:
            return self._put_object(path, data)
        target = self.folder / path
        _make_folder(target.parent)
        attempt = target.with_name(f"_commit_{target.stem}_{uuid.uuid4().hex}.tmp")
        try:
            _write_synced(attempt, data)
            try:
                # Unlike a rename, a link never takes the place of what is there.
                os.link(attempt, target)
            except FileExistsError:
                return False
        finally:
            with suppress(OSError):
                attempt.unlink()
        _sync(target.parent)
        return True

    def _put_object(self, path: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            self._object_store().put(path, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        except BaseError as error:
            raise OSError(f"{path} was not put: {error}") from error
        return True

    def _object_store(self) -> ObjectStore:
        if self._objects is None:
            self._objects = open_objects(self.uri, self._options)
        return self._objects

    def get(self, path: str) -> bytes:
        """The whole file. FileNotFoundError when there is none, OSError when it can't be read."""
        if self.folder is not None:
            return (self.folder / path).read_bytes()
        data: bytes = self._files().open_input_file(path).read()  # type: ignore[call-arg]
        return data

    def opened(self, path: str) -> Any:
        """A file to be read in pieces: a path on a disk, else an object that reads and seeks."""
        if self.folder is not None:
            return str(self.folder / path)

        return ObjectReader(self._object_store(), path)

    def size(self, path: str) -> int:
        """How many bytes a file has. FileNotFoundError when there is none."""
        if self.folder is not None:
            return (self.folder / path).stat().st_size
        return int(self._object_store().head(path)["size"])

    def has(self, path: str) -> bool:
        """Whether the file is there. OSError when that can't be told."""
        if self.folder is not None:
            return (self.folder / path).is_file()
        try:
            self._files().open_input_file(path)
        except FileNotFoundError:
            return False
        return True

    def listed(self) -> dict[str, int]:
        """Every file below the root with its size; none where there is no root."""
        if self.folder is not None and not self.folder.is_dir():
            return {}
        infos = self._files().get_file_info_selector("", True, True)
        return {info.path: info.size for info in infos if info.size is not None}

    def names_after(self, folder: str, name: str) -> list[str]:
        """The files of a folder whose names sort after one; none where there is no folder. OSError when that
        can't be told."""
        if self.folder is not None:
            try:
                # Not by Path, which makes one for each: a log has tens of thousands.
                found = os.listdir(self.folder / folder)  # noqa: PTH208
            except FileNotFoundError:
                return []
        else:
            from obstore.exceptions import BaseError

            try:
                listed = self._object_store().list(folder, offset=f"{folder}/{name}")
                found = [one["path"].removeprefix(f"{folder}/") for batch in listed for one in batch]
            except BaseError as error:
                raise OSError(f"{folder} can't be listed: {error}") from error
        return sorted(one for one in found if one > name)

    def modified_ms(self, paths: Iterable[str]) -> dict[str, int]:
        """When files were last written; one that is gone is left out."""
        found: dict[str, int] = {}
        for path in paths:
            with suppress(FileNotFoundError):
                if self.folder is not None:
                    found[path] = (self.folder / path).stat().st_mtime_ns // 1_000_000
                else:
                    written = self._object_store().head(path)["last_modified"]
                    found[path] = int(written.timestamp() * 1000)
        return found

    def folders(self) -> list[str]:
        """The names of the folders at the root; none where there is no root."""
        if self.folder is not None:
            return (
                sorted(one.name for one in self.folder.iterdir() if one.is_dir())
                if self.folder.is_dir()
                else []
            )
        infos = self._files().get_file_info_selector("", True, False)
        return sorted(info.path.strip("/") for info in infos if info.size is None)

    def delete(self, path: str) -> None:
        """Delete a file, and on a disk its folders when they are empty. One that is gone is no error."""
        try:
            self._files().delete_file(path)
        except FileNotFoundError:
            return
        if self.folder is not None:
            with suppress(OSError):
                for folder in (self.folder / path).parents:
                    if folder == self.folder:
                        break
                    folder.rmdir()

    def remove_quietly(self, path: str) -> None:
        """Remove a file of our own that nobody can see; what stays behind is swept by maintenance."""
        with suppress(OSError):
            self._files().delete_file(path)


def _write_synced(path: Path, data: bytes) -> None:
    """Write a file that is not there yet, and wait until it is on disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    """Make a folder, and have its name on disk; one that is there is left."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
