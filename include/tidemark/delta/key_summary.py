"""Where a key's records are in a control table with many files, or that there are none: a file beside it.

A run is found by its name. Names such as `manual__…` say nothing of their time, so each file of records might
have one. The summary has, for all records up to a link of the table's chain, the hash of the key and the
number. A link identifies every record before it, so a summary is right for exactly the tables that have one
of its links, however old or new the loaded version is, and whatever was merged since. Its contents are in
buckets by hash, each with a checksum; a look reads one of them.

It is a cache and never trusted to be there, to be new, or to be intact: files after its last known link are
looked at one by one, and without a summary all are. A hash may stand for two keys, so the records are read.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import uuid
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from tidemark.config.storage import cache_folder
from tidemark.delta.records import ROWS_FULL, RecordFile
from tidemark.delta.store import Store

logger = logging.getLogger(__name__)

BUCKETS: Final = 256
ENTRY_BYTES: Final = 16
_MAGIC: Final = b"tidemark keys 1\n"
_HEAD: Final = struct.Struct(f"<{BUCKETS}Q")
_CHECK_BYTES: Final = 8

Keys = Sequence[tuple[str, int]]
"""The key and the number of each record."""


@dataclass(frozen=True, slots=True)
class Summarized:
    """The records with a key: in the first `covered` files those with one of these `numbers`, and no others.
    The other files are to be looked at."""

    covered: int = 0
    numbers: frozenset[int] = frozenset()

    def may_hold(self, place: int, file: RecordFile) -> bool:
        """Whether the file in a place may have one of the records."""
        if place >= self.covered:
            return True
        return any(file.may_hold_number(number, number + 1) for number in self.numbers)


class KeySummary:
    """The summary of one table's keys."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def look(
        self, key: str, files: Sequence[RecordFile], keys_of: Callable[[RecordFile], Keys]
    ) -> Summarized:
        """Where the records with a key are, for the files of a loaded version. Full files that the summary
        lacks are added to it first."""
        try:
            path = self._path()
            links, found = _looked_up(path, key)
            covered = _covered(files, links)
            full = _leading_full(files[covered:])
            if not full:
                return Summarized(covered, found)
            _extend(path, files[covered : covered + full], keys_of, continues=covered > 0, links=links)
            links, found = _looked_up(path, key)
            return Summarized(_covered(files, links), found)
        except OSError as error:
            logger.info("the summary of keys of %s can't be used: %s", self._store.uri, error)
            return Summarized()

    def _path(self) -> Path:
        return cache_folder(self._store.folder, uri=self._store.uri) / "keys"


def _covered(files: Sequence[RecordFile], links: frozenset[int]) -> int:
    """How many of the files, from the first one, are before a link of the summary."""
    places = (place for place in range(len(files), 0, -1) if files[place - 1].link_last in links)
    return next(places, 0)


def _leading_full(files: Sequence[RecordFile]) -> int:
    """How many files, from the first one, are up to the last full one."""
    return max((place for place, file in enumerate(files, 1) if file.rows >= ROWS_FULL), default=0)


def _hash(key: str) -> bytes:
    return hashlib.blake2b(key.encode(), digest_size=8).digest()


def _check(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECK_BYTES).digest()


@dataclass(frozen=True, slots=True)
class _Header:
    """The sizes and the checksums of the buckets, and the links in the order of the chain."""

    sizes: tuple[int, ...]
    checks: tuple[bytes, ...]
    links: tuple[int, ...]
    begins: int

    def bytes(self) -> bytes:
        body = _HEAD.pack(*self.sizes) + b"".join(self.checks) + array("Q", self.links).tobytes()
        return _MAGIC + struct.pack("<Q", len(body)) + _check(body) + body


_START: Final = len(_MAGIC) + 8 + _CHECK_BYTES


def _header(file: BinaryIO) -> _Header | None:
    """The header; None if it is damaged."""
    start = file.read(_START)
    if len(start) < _START or not start.startswith(_MAGIC):
        return None
    (size,) = struct.unpack_from("<Q", start, len(_MAGIC))
    body = file.read(min(size, os.fstat(file.fileno()).st_size))
    if _check(body) != start[-_CHECK_BYTES:] or len(body) < _HEAD.size + BUCKETS * _CHECK_BYTES:
        return None
    checks = body[_HEAD.size : _HEAD.size + BUCKETS * _CHECK_BYTES]
    links = array("Q")
    links.frombytes(body[_HEAD.size + len(checks) :])
    return _Header(
        _HEAD.unpack_from(body),
        tuple(checks[at : at + _CHECK_BYTES] for at in range(0, len(checks), _CHECK_BYTES)),
        tuple(links),
        _START + len(body),
    )


def _bucket(file: BinaryIO, header: _Header, number: int) -> bytes | None:
    """A bucket; None if it is damaged."""
    file.seek(header.begins + sum(header.sizes[:number]))
    data = file.read(header.sizes[number])
    return data if _check(data) == header.checks[number] else None


def _looked_up(path: Path, key: str) -> tuple[frozenset[int], frozenset[int]]:
    """The links of the summary, and the numbers that it has for a key; no links if it can't be used."""
    nothing: tuple[frozenset[int], frozenset[int]] = frozenset(), frozenset()
    try:
        with path.open("rb") as file:
            header = _header(file)
            wanted = _hash(key)
            data = _bucket(file, header, wanted[0]) if header is not None else None
    except FileNotFoundError:
        return nothing
    if header is None or data is None:
        return nothing
    numbers: set[int] = set()
    at = data.find(wanted)
    while at >= 0:
        if at % ENTRY_BYTES == 0:
            numbers.add(int.from_bytes(data[at + 8 : at + ENTRY_BYTES], "little"))
        at = data.find(wanted, at + 1)
    return frozenset(header.links), frozenset(numbers)


def _extend(
    path: Path,
    files: Iterable[RecordFile],
    keys_of: Callable[[RecordFile], Keys],
    *,
    continues: bool,
    links: frozenset[int],
) -> None:
    """Add the keys of files to the summary, or begin a new one. `links` are those of the summary that was
    looked at: if another process has replaced it since, it stays as it is."""
    buckets = [bytearray() for _ in range(BUCKETS)]
    known: tuple[int, ...] = ()
    if continues:
        with path.open("rb") as file:
            header = _header(file)
            if header is None or frozenset(header.links) != links:
                return
            known = header.links
            for number in range(BUCKETS):
                data = _bucket(file, header, number)
                if data is None:
                    file.close()
                    path.unlink(missing_ok=True)
                    return
                buckets[number] += data
    added: list[int] = []
    for one in files:
        for key, number in keys_of(one):
            hashed = _hash(key)
            buckets[hashed[0]] += hashed + number.to_bytes(8, "little")
        added.append(one.link_last)
    sizes, checks = tuple(map(len, buckets)), tuple(_check(bytes(one)) for one in buckets)
    header = _Header(sizes, checks, (*known, *added), 0)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with os.fdopen(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(header.bytes())
            for bucket in buckets:
                file.write(bucket)
        aside.replace(path)
    finally:
        with suppress(OSError):
            aside.unlink()
