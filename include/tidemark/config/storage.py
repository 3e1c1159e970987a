"""The paths that a pipeline file may use, the folders of caches, and the client of an object store.

The *root* is `$TIDEMARK_ROOT`, else the project folder (for a file in `<project>/include/pipelines`), else
the folder of the pipeline file. A pipeline file's own `path` and `warehouse` must be relative and inside
the root, also after symlinks are resolved. Absolute paths and URIs are accepted only from the
`environments` section and from `$TIDEMARK_WAREHOUSE`, where an operator sets them. `..` is always refused.

A URI must not have a user, a password or a query: secrets come from the environment, so a configuration,
which every binding copies, never has one.

A cache is beside the table that it belongs to or, if that is not on a local disk, in a temporary folder:
files on a network file system can't be mapped into memory safely, and locks on them are unreliable. Both
folders are used by one user only.

The client needs the extra `s3`, and is imported when an object store is first used.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidemark.config.document import shown
from tidemark.core.errors import InvalidUsage, require

if TYPE_CHECKING:
    from obstore.store import ObjectStore

WAREHOUSE: Final = ".tidemark/warehouse"
"""The default folder for tables, inside the root."""
PATH_CHARACTERS_MAX: Final = 1_024
SCHEMES: Final = ("s3", "s3a", "gs", "abfs", "abfss")
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)\Z", re.DOTALL)


def default_root(file: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The root for relative paths of a pipeline file: `$TIDEMARK_ROOT`, or the project whose `pipelines` or
    `include/pipelines` folder has the file, or the file's own folder."""
    chosen = environ.get("TIDEMARK_ROOT")
    if chosen:
        return Path(chosen).absolute()
    if file is None:
        return Path.cwd()
    folder = file.absolute().parent
    if folder.name != "pipelines":
        return folder
    return folder.parents[1] if folder.parent.name == "include" else folder.parent


def is_uri(text: str) -> bool:
    return _URI.match(text) is not None


def is_relative(text: str) -> bool:
    return not is_uri(text) and not Path(text).is_absolute()


def shown_place(text: str) -> str:
    """A path or a URI for a message; a URI is reduced to its scheme, since it may contain a secret."""
    uri = _URI.match(text)
    return f"'{uri['scheme'][:20]}://…'" if uri is not None else shown(text)


def checked_path(text: str) -> str:
    """A well-formed path or URI. Raises `InvalidUsage`. Whether it may be used depends on where it is set."""
    if not text or len(text) > PATH_CHARACTERS_MAX or any(ord(c) < 32 or ord(c) == 127 for c in text):
        hint = f"use 1 to {PATH_CHARACTERS_MAX} characters without control characters"
        raise InvalidUsage(f"{shown_place(text)} is not a path", hint=hint)
    uri = _URI.match(text)
    if uri is not None:
        authority = uri["rest"].partition("/")[0]
        # Azure writes container@account; a colon before the @ is a password.
        is_secret = "@" in authority and (not uri["scheme"].startswith("abfs") or ":" in authority)
        if is_secret or "?" in text or "#" in text:
            hint = "pass credentials in the environment or a connection"
            raise InvalidUsage(f"the {uri['scheme']} location carries a user or a query", hint=hint)
        if uri["scheme"] not in SCHEMES:
            hint = f"use a path or one of {', '.join(SCHEMES)}"
            raise InvalidUsage(f"{shown(uri['scheme'])} is not a known kind of store", hint=hint)
    if ".." in (uri["rest"] if uri else text).split("/"):
        raise InvalidUsage(f"{shown_place(text)} contains '..'", hint="write the path without it")
    if text.startswith("~"):
        raise InvalidUsage(f"{shown(text)} needs a home folder", hint="write the path out")
    return text


def resolved(text: str, *, root: Path) -> str:
    """The absolute location. Refuses a relative path that leaves the root, also through a symlink."""
    checked_path(text)
    if is_uri(text):
        # Spark supports S3 only under the scheme s3a.
        return re.sub(r"\As3://", "s3a://", text.rstrip("/"))
    if Path(text).is_absolute():
        return str(Path(text))
    base = _resolved_link(root)
    target = _resolved_link(base / text)
    if target != base and base not in target.parents:
        raise InvalidUsage(
            f"{shown(text)} is outside the root",
            hint="remove the symlink, or give the absolute path in the environments section",
        )
    return str(target)


def _resolved_link(path: Path) -> Path:
    """The path with symlinks resolved; it need not exist. Raises `InvalidUsage` for a loop of symlinks."""
    try:
        target = path.resolve()
        # Only Python up to 3.12 detects loops, and then it raises RuntimeError.
        is_circle = _is_symlink_loop(target)
    except RuntimeError:
        is_circle = True
    if is_circle:
        fact = f"the symlinks of {shown(path.name)} form a loop"
        raise InvalidUsage(fact, hint="remove one of them")
    return target


def _is_symlink_loop(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP  # Any other error appears when the path is opened.
    return False


def read_named(text: str, *, root: Path, hint: str) -> tuple[str, bytes]:
    """The location and content of a file that a pipeline file names. Raises `InvalidUsage`, with this
    `hint`, if it may not or can't be read."""
    if not is_relative(text):
        raise InvalidUsage(f"{shown_place(text)} is not relative", hint=hint)
    place = resolved(text, root=root)
    try:
        return place, Path(place).read_bytes()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InvalidUsage(f"{shown_place(text)} can't be read, {why}", hint=hint) from None


_ELSEWHERE: Final = (
    "9p", "afs", "ceph", "cifs", "fuse", "gluster", "lustre", "ncpfs", "nfs", "smb", "vboxsf",
)  # fmt: skip


def cache_folder(folder: Path | None, *, uri: str) -> Path:
    """The cache folder of a table's folder: beside it, so that both move together, if it is on a local disk
    and no other user has a cache there; else a temporary folder. `uri` names the cache of a table that is
    in no folder."""
    if folder is not None and not _is_remote(folder):
        beside = folder.parent / "_index"
        if not beside.exists() or beside.stat().st_uid == os.getuid():
            return beside / folder.name
    found = Path(tempfile.gettempdir()) / f"tidemark-{os.getuid()}"
    found.mkdir(mode=0o700, exist_ok=True)
    if found.stat().st_uid != os.getuid():
        raise InvalidUsage(f"{found} belongs to another user", hint="remove it, or set TMPDIR")
    return found / hashlib.sha256(uri.encode()).hexdigest()[:32]


def _is_remote(folder: Path) -> bool:
    """Whether a folder is on a network file system, as far as /proc shows."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return False
    wanted = folder.absolute()
    kinds = {Path(mount[1]): mount[2] for mount in mounts if wanted.is_relative_to(mount[1])}
    return bool(kinds) and kinds[max(kinds, key=lambda one: len(one.parts))].startswith(_ELSEWHERE)


_CLIENT_OPTIONS = ("allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout")
# Options of delta-rs alone: locking, which conditional puts don't need.
_OF_DELTA_RS = ("dynamo", "locking_provider", "unsafe_rename")


def open_objects(uri: str, options: Mapping[str, str]) -> ObjectStore:
    """Open the object store at an address, with the options of delta-rs."""
    require("s3")
    from obstore.exceptions import UnknownConfigurationKeyError
    from obstore.store import from_url

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


def opened(path: str) -> Any:
    """Open a file for random access: a path on a disk as it is, a seekable reader for an object."""
    if not is_uri(path):
        return path
    folder, _, name = path.rpartition("/")
    return ObjectReader(_shared(folder), name)


@lru_cache(maxsize=64)
def _shared(uri: str) -> ObjectStore:
    return open_objects(uri, {})


class ObjectReader(io.RawIOBase):
    """A seekable reader of an object. The client's own reader lacks `closed`, which pyarrow needs."""

    def __init__(self, objects: ObjectStore, path: str) -> None:
        import obstore

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
