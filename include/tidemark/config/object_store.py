"""The client of an object store: where it is, with which options, and how a file of it is read in pieces."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import obstore
from obstore.exceptions import UnknownConfigurationKeyError
from obstore.store import ObjectStore, from_url

from tidemark.config.paths import is_uri
from tidemark.core.errors import InvalidUsage

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


def opened(path: str) -> Any:
    """A file to be read in pieces: a path of a disk as it is, else an object that reads and seeks."""
    if not is_uri(path):
        return path
    folder, _, name = path.rpartition("/")
    return ObjectReader(_shared(folder), name)


@lru_cache(maxsize=64)
def _shared(uri: str) -> ObjectStore:
    return open_objects(uri, {})


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
