"""The client of an object store: its address and options, and random access to an object.

The extra `s3`; the client is imported when an object store is first used.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tidemark.config.paths import is_uri
from tidemark.core.errors import InvalidUsage, require

if TYPE_CHECKING:
    from obstore.store import ObjectStore

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
