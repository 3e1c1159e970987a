"""The files of one Delta table, on a local disk or in an object store.

Files are read and written as whole bytes: no pyarrow thread calls back into Python, which can abort a process
at its exit. Writes (`put_synced`, `sync_folders`, `put_if_absent`) don't use delta-rs, because it neither
syncs its writes nor offers put-if-absent. All differences between the two kinds of store are in this module:
on a disk a file is synced and then linked to its name; an object store gets a conditional put, which is
durable once acknowledged.

On a disk a new name is visible before it is durable. Until the folder is synced the file keeps the name that
it was written under, so every process can tell (`get_lasting`), also when its writer has died. A failed sync
of a folder is not repeated: the kernel reports the error once, and the next sync may succeed without having
written that name. The file is written again instead and renamed over the name, which must be written then.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast
from urllib.parse import unquote, urlparse

from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.core.errors import Determinate, InvariantViolation, TidemarkError, require

if TYPE_CHECKING:
    from obstore.store import ObjectStore


logger = logging.getLogger(__name__)

FOLDERS_ABOVE: Final = 4
"""The folders above a table in which a pipeline may make names: the shard's or `_control`, the pipeline's,
the warehouse, and the folder of that."""

_NAMES_SYNCED: Final[set[tuple[str, int, int]]] = set()
"""The folders whose names this process has synced."""


class NotLasting(OSError):
    """A file is visible, and a power cut may take it back: its name can't be made durable."""


@contextmanager
def housekeeping(table: str) -> Iterator[None]:
    """Log an error of the block as a warning. The commit before it is valid in any case."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not panicked(error):
            raise
        logger.warning("clean-up of %s is left to the next commit: %s", table, error)


def panicked(error: BaseException) -> bool:
    """Whether the error is a panic of delta-rs. Its class can't be imported."""
    return type(error).__name__ == "PanicException"


@contextmanager
def reading(table: str) -> Iterator[None]:
    """Translate errors of loading a table's log: an unavailable store is `Determinate`, a damaged log an
    `InvariantViolation`."""
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


def local_path(uri: str) -> Path | None:
    """The local folder of an address; None for an object store."""
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    return None if "://" in uri else Path(uri)


def address_of(uri: str) -> str:
    """One spelling of an address: an absolute path without symlinks, or the URI of an object store."""
    folder = local_path(uri)
    return re.sub(r"\As3a?://", "s3://", uri.rstrip("/")) if folder is None else os.path.realpath(folder)


class Store:
    """The files below a table's root."""

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        self.uri = uri
        self._options = dict(storage_options)
        self._objects: ObjectStore | None = None
        self._named: tuple[int, int] | None = None
        self.folder = local_path(uri)
        if self.folder is None:
            require("s3")

    @property
    def local(self) -> bool:
        return self.folder is not None

    def put_synced(self, path: str, data: bytes) -> None:
        """Write a file with a unique name and sync its bytes; `sync_folders` makes its name durable. OSError
        on failure."""
        if self.folder is None:
            self._put_object(path, data)
            return
        target = self.folder / path
        _make_folder(target.parent)
        _write_synced(target, data)

    @contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        """Open a file with a unique name for writing. It is synced at the end and removed after an error;
        `sync_folders` makes its name durable. OSError if it can't be written."""
        if self.folder is None:
            with tempfile.TemporaryFile() as file:
                yield cast("BinaryIO", file)
                file.seek(0)
                with _as_os_error(f"{path} was not put"):
                    self._object_store().put(path, cast("BinaryIO", file))
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
        """Rename a file of our own to a unique name. FileNotFoundError if it doesn't exist."""
        if self.folder is not None:
            os.rename(self.folder / path, self.folder / target)  # noqa: PTH104
            return
        with _as_os_error(f"{path} was not renamed"):
            self._object_store().rename(path, target)

    def set_aside(self, path: str, target: str) -> None:
        """Move a file into a folder that may not be there yet, lastingly; as `move` otherwise."""
        if self.folder is not None:
            _make_folder((self.folder / target).parent)
        self.move(path, target)
        self.sync_folders([target, path])

    def sync_files(self, paths: Iterable[str]) -> None:
        """Sync files that another program has written here. OSError on failure."""
        if self.folder is not None:
            for path in paths:
                _sync(self.folder / path)

    def sync_folders(self, paths: Iterable[str]) -> None:
        """Make the names of these files durable, up to that of the table (`sync_names`)."""
        if self.folder is None:
            return
        folders: set[Path] = set()
        for path in paths:
            for parent in (self.folder / path).parents:
                folders.add(parent)
                if parent == self.folder:
                    break
        for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
            _sync(folder)
        if folders:
            self._sync_above()

    def sync_names(self) -> None:
        """Make the names of the table and of the folders above it durable. The process that made one of them
        may have died before it synced that.

        A process needs this once for each. They stay durable as long as the folder is the same one."""
        if self.folder is not None and self.folder.is_dir() and self._named != _identity(self.folder):
            _sync(self.folder)
            self._sync_above()

    def _sync_above(self) -> None:
        if self.folder is None or self._named == (table := _identity(self.folder)):
            return
        for folder in (self.folder, *self.folder.parents[: FOLDERS_ABOVE - 1]):
            known = (str(folder), *_identity(folder))
            if known not in _NAMES_SYNCED:
                with suppress(PermissionError):  # Nobody here can have made a name in it.
                    _sync(folder.parent)
                _NAMES_SYNCED.add(known)
        self._named = table

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create a complete, durable file; False if it exists already, which stays unchanged.

        OSError if it can't be created, or if the outcome is unknown: then the file may be visible, with its
        second name. Each attempt writes to a file of its own, so two writers never write into the same
        file."""
        if self.folder is None:
            return self._put_object(path, data)
        target = self.folder / path
        _make_folder(target.parent)
        second = _second_name(target)
        try:
            _write_synced(second, data)
            # Unlike a rename, a link never replaces an existing file.
            with suppress(FileExistsError):
                os.link(second, target)
        finally:
            is_ours = _is_same(second, target)
            if not is_ours:
                _unlink(second)
        if is_ours:
            _sync(target.parent)
            _unlink(second)
        return is_ours

    def get_lasting(self, path: str) -> tuple[bytes, bool]:
        """The whole file, once a power cut can't take it back, and whether it was written again for that.

        `NotLasting` if that fails. Whoever may not write here reads the file as it is."""
        if self.folder is None:
            return self.get(path), False
        target = self.folder / path
        with target.open("rb") as file:
            data, found = file.read(), os.fstat(file.fileno())
        # A copy of the warehouse may hold links of its own, so the name counts.
        others = _second_names(target, found.st_ino) if found.st_nlink > 1 else []
        if not others:
            return data, False
        try:
            _write_again(target, data)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                return data, False
            raise NotLasting(error.errno, error.strerror or str(error), path) from error
        for other in others:
            _unlink(other)
        return data, True

    def _put_object(self, path: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with _as_os_error(f"{path} was not put"):
            try:
                self._object_store().put(path, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def _object_store(self) -> ObjectStore:
        if self._objects is None:
            from tidemark.config.storage import open_objects

            self._objects = open_objects(self.uri, self._options)
        return self._objects

    def get(self, path: str) -> bytes:
        """The whole file. FileNotFoundError if it doesn't exist, OSError if it can't be read."""
        if self.folder is not None:
            return (self.folder / path).read_bytes()
        with _as_os_error(f"{path} can't be read"):
            return bytes(self._object_store().get(path).bytes())

    def opened(self, path: str) -> Any:
        """Open a file for random access: a path on a disk, a seekable reader for an object store."""
        if self.folder is not None:
            return str(self.folder / path)
        from tidemark.config.storage import ObjectReader

        return ObjectReader(self._object_store(), path)

    def size(self, path: str) -> int:
        """The size in bytes. FileNotFoundError if the file doesn't exist."""
        if self.folder is not None:
            return (self.folder / path).stat().st_size
        with _as_os_error(f"{path} can't be read"):
            return int(self._object_store().head(path)["size"])

    def has(self, path: str) -> bool:
        """Whether the file exists. OSError if the store doesn't answer."""
        if self.folder is not None:
            return (self.folder / path).is_file()
        try:
            self.size(path)
        except FileNotFoundError:
            return False
        return True

    def listed(self) -> dict[str, int]:
        """All files below the root with their sizes; empty if there is no root."""
        if self.folder is not None:
            return dict(_files_below(self.folder))
        with _as_os_error(f"{self.uri} can't be listed"):
            return {one["path"]: one["size"] for batch in self._object_store().list() for one in batch}

    def names_after(self, folder: str, name: str) -> list[str]:
        """The files of a folder whose names sort after `name`; empty if there is no folder. OSError if it
        can't be listed."""
        if self.folder is not None:
            try:
                # Not with pathlib, which creates an object for each: a log has tens of thousands.
                found = os.listdir(self.folder / folder)  # noqa: PTH208
            except FileNotFoundError:
                return []
        else:
            with _as_os_error(f"{folder} can't be listed"):
                listed = self._object_store().list(folder, offset=f"{folder}/{name}")
                found = [one["path"].removeprefix(f"{folder}/") for batch in listed for one in batch]
        return sorted(one for one in found if one > name)

    def modified_ms(self, paths: Iterable[str]) -> dict[str, int]:
        """The modification times of files; missing files are left out."""
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
        """The names of the folders at the root; empty if there is no root."""
        if self.folder is not None:
            if not self.folder.is_dir():
                return []
            # It knows what is a folder without asking again for each of ten thousand.
            with os.scandir(self.folder) as below:
                return sorted(one.name for one in below if one.is_dir())
        with _as_os_error(f"{self.uri} can't be listed"):
            found = self._object_store().list_with_delimiter()["common_prefixes"]
            return sorted(found)

    def delete(self, path: str) -> None:
        """Delete a file, and on a disk its folders if they are empty. A missing file is not an error."""
        try:
            self._remove(path)
        except FileNotFoundError:
            return
        if self.folder is not None:
            with suppress(OSError):
                for folder in (self.folder / path).parents:
                    if folder == self.folder:
                        break
                    folder.rmdir()

    def delete_all(self) -> None:
        """Delete every file below the root, and on a disk the root."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in self.listed():
            self.delete(path)

    def remove_quietly(self, path: str) -> None:
        """Remove an invisible file of our own. Errors are ignored: maintenance removes leftovers."""
        with suppress(OSError):
            self._remove(path)

    def _remove(self, path: str) -> None:
        if self.folder is not None:
            (self.folder / path).unlink()
            return
        with _as_os_error(f"{path} was not deleted"):
            self._object_store().delete(path)


@contextmanager
def _as_os_error(fact: str) -> Iterator[None]:
    """Raise what an object store's client raises as an OSError; FileNotFoundError it raises by itself."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        raise OSError(f"{fact}: {error}") from error


def _files_below(folder: Path) -> Iterator[tuple[str, int]]:
    """Every file below a folder with its size; none where there is no folder. Only what is removed meanwhile
    may be left out: OSError where a folder can't be listed."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for parent, _, names in os.walk(folder, onerror=refuse, followlinks=True):
        below = Path(parent).relative_to(folder)
        for name in names:
            with suppress(FileNotFoundError):
                yield (below / name).as_posix(), (folder / below / name).stat().st_size


def _write_synced(path: Path, data: bytes) -> None:
    """Create a file and sync it."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, and make their names durable. A folder whose name can't be made
    durable is removed, so that a retry creates it anew."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        try:
            _sync(folder.parent)
        except OSError:
            with suppress(OSError):
                folder.rmdir()
            raise


def _second_name(target: Path) -> Path:
    """A new name beside a file, which shows that the file's own name may not be durable yet."""
    return target.with_name(f"_commit_{target.stem}_{uuid.uuid4().hex}.tmp")


def _second_names(target: Path, inode: int) -> list[Path]:
    """The second names of a file."""
    with os.scandir(target.parent) as found:
        names = [one.name for one in found if one.name.startswith(f"_commit_{target.stem}_")]
    return [path for name in names if _inode_of(path := target.with_name(name)) == inode]


def _write_again(target: Path, data: bytes) -> None:
    """Write a file again under its name, and make the name durable. The new file has a second name too,
    until its folder is synced."""
    second, over = _second_name(target), _second_name(target)
    try:
        _write_synced(second, data)
        os.link(second, over)
        os.rename(over, target)  # noqa: PTH104
    finally:
        if not _is_same(second, target):
            _unlink(over)
            _unlink(second)
    _sync(target.parent)
    _unlink(second)


def _identity(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino


def _is_same(one: Path, other: Path) -> bool:
    found = _inode_of(one)
    return found is not None and found == _inode_of(other)


def _inode_of(path: Path) -> int | None:
    """The number of a file; None if it doesn't exist."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _sync(path: Path) -> None:
    """Sync a file's bytes, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
