"""Part files: their paths, their description by footers, their checks and their removal.

A part is inside the log's folder, `<shard>/log/_txn-<20 digits>/<token>/`, and is invisible until a commit
of the log adds it. VACUUM ignores folders that begin with an underscore, whatever its retention: a part
that waits for its seal or its append is safe from it. This module reads names and footers, and rows only to
find out whether a file is damaged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.seal import Part
from tidemark.delta.state_files import DIGEST, KEY, time_bound
from tidemark.delta.store import Store
from tidemark.spark.session import FILES_AT_ONCE, in_parallel

_TXN_FOLDER = re.compile(r"_txn-(\d{20})\Z")
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
_TEXT_CHARACTERS_MAX: Final = 64
_READ_ROWS: Final = 65_536


def attempt_folder(txn: Txn, token: WriterToken) -> str:
    """An attempt's folder, relative to a log's root."""
    if not _TOKEN.match(token):
        raise InvalidUsage(f"token {token!r} can't name a folder", hint="use letters, digits, - and _")
    return f"_txn-{txn:020d}/{token}"


@dataclass(frozen=True, slots=True)
class PartStore:
    """The part files of one pipeline, below `<warehouse>/<pipeline>`, on a disk or in an object store."""

    location: str

    @property
    def _store(self) -> tuple[fs.FileSystem, str]:
        if "://" not in self.location:
            return fs.LocalFileSystem(), self.location
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(self.location.replace("s3a://", "s3://", 1))
        return found

    def log_root(self, shard: ShardId) -> str:
        return f"{self.location}/{shard}/log"

    def parts(self, shard: ShardId, txn: Txn, token: WriterToken) -> tuple[Part, ...]:
        """The attempt's parts that have rows, described by their footers. Removes all other files."""
        return self.described(shard, attempt_folder(txn, token))

    def described(self, shard: ShardId, folder: str) -> tuple[Part, ...]:
        """`parts` for any folder below a log that the caller owns."""
        store, root = self._store
        log = f"{root}/{shard}/log"

        def described(info: fs.FileInfo) -> Part | None:
            name = info.path.rsplit("/", 1)[-1]
            footer = pq.read_metadata(info.path, filesystem=store) if name.endswith(".parquet") else None
            if footer is None or footer.num_rows == 0:
                store.delete_file(info.path)
                return None
            return Part(f"{folder}/{name}", footer.num_rows, info.size, stats_of(footer))

        listed = self._listed(f"{log}/{folder}")
        found = [part for part in in_parallel(described, listed, at_once=FILES_AT_ONCE) if part is not None]
        if not found:
            self._remove(f"{log}/{folder}")
        try:
            self._sync(shard, [part.path for part in found])
        except Determinate:
            # With the folders that are empty then, so that a retry makes their names anew, too.
            for part in found:
                with suppress(OSError):
                    Store(self.log_root(shard), {}).delete(part.path)
            raise
        return tuple(sorted(found, key=lambda part: part.path))

    def _sync(self, shard: ShardId, paths: Sequence[str]) -> None:
        """Make parts and their names durable before they are sealed. A failed sync is not repeated on the
        same file, which may be damaged: a retry stages new parts."""
        files = Store(self.log_root(shard), {})
        try:
            files.sync_files(paths)
            files.sync_folders(paths)
        except OSError as error:
            raise Determinate(
                f"the parts of {shard} can't be made durable: {error}", hint="check the disk, then retry"
            ) from error

    def existing(self, shard: ShardId, parts: Sequence[Part]) -> list[str]:
        """The paths of those parts that exist, as Spark spells them."""
        store, root = self._store
        infos = store.get_file_info([f"{root}/{shard}/log/{part.path}" for part in parts])
        return [
            f"{self.log_root(shard)}/{part.path}"
            for part, info in zip(parts, infos, strict=True)
            if info.type == fs.FileType.File
        ]

    def readable(self, shard: ShardId, parts: Sequence[Part]) -> list[str]:
        """The paths of those parts that have a readable footer, as Spark spells them."""
        store, root = self._store
        paths = [f"{root}/{shard}/log/{part.path}" for part in parts]
        rows = in_parallel(lambda path: _rows_in(store, path), paths, at_once=FILES_AT_ONCE)
        return [
            f"{self.log_root(shard)}/{part.path}"
            for part, found in zip(parts, rows, strict=True)
            if found is not None
        ]

    def damaged(self, shard: ShardId, parts: Sequence[Part]) -> list[Part]:
        """Those parts whose file is missing, truncated, or has no readable footer."""
        store, root = self._store
        paths = [f"{root}/{shard}/log/{part.path}" for part in parts]

        def is_damaged(known: tuple[Part, fs.FileInfo]) -> bool:
            part, info = known
            there = info.type == fs.FileType.File and info.size == part.bytes
            return not there or _rows_in(store, info.path) != part.rows

        known = list(zip(parts, store.get_file_info(paths), strict=True))
        damaged = in_parallel(is_damaged, known, at_once=FILES_AT_ONCE)
        return [part for part, is_so in zip(parts, damaged, strict=True) if is_so]

    def are_whole(self, shard: ShardId, parts: Sequence[Part]) -> bool:
        """Whether those parts that exist can be read to their ends, with the checksums of their pages.
        Raises `OSError` if the store does not answer, because then nothing is known about the parts."""
        store, root = self._store
        paths = [f"{root}/{shard}/log/{part.path}" for part in parts]
        there = [info.path for info in store.get_file_info(paths) if info.type == fs.FileType.File]
        return all(in_parallel(lambda path: _is_whole(store, path), there))

    def restore(self, shard: ShardId, *, lost: Part, copy: Part) -> None:
        """Move a staged part's file to a lost part's path. It is a rename, so readers see all of it or
        nothing."""
        store, root = self._store
        log = f"{root}/{shard}/log"
        store.create_dir(f"{log}/{lost.path}".rsplit("/", 1)[0])
        store.move(f"{log}/{copy.path}", f"{log}/{lost.path}")
        self._sync(shard, [lost.path])

    def discard(self, txn: Txn, token: WriterToken) -> None:
        """Remove one attempt's folders in every shard."""
        _, root = self._store
        for shard in self._shards():
            self._remove(f"{root}/{shard}/log/{attempt_folder(txn, token)}")

    def has(self, txn: Txn, token: WriterToken) -> bool:
        """Whether the attempt has a folder in some shard."""
        store, root = self._store
        folder = attempt_folder(txn, token)
        infos = store.get_file_info([f"{root}/{shard}/log/{folder}" for shard in self._shards()])
        return any(info.type == fs.FileType.Directory for info in infos)

    def attempts(self) -> list[tuple[Txn, WriterToken]]:
        """Every attempt that has files in some shard, committed or not."""
        _, root = self._store
        found: set[tuple[Txn, WriterToken]] = set()
        for shard in self._shards():
            for name in self._folders(f"{root}/{shard}/log"):
                match = _TXN_FOLDER.match(name)
                tokens = self._folders(f"{root}/{shard}/log/{name}") if match else ()
                found.update((Txn(int(match[1])), WriterToken(token)) for token in tokens if match)
        return sorted(found)

    def _listed(self, folder: str) -> list[fs.FileInfo]:
        store, _ = self._store
        infos = store.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True))
        return [info for info in infos if info.type == fs.FileType.File]

    def _folders(self, folder: str) -> Iterator[str]:
        store, _ = self._store
        for info in store.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
            if info.type == fs.FileType.Directory:
                yield info.path.rsplit("/", 1)[-1]

    def _shards(self) -> list[str]:
        """The folders of shards; the control tables' folder begins with an underscore."""
        _, root = self._store
        return [name for name in self._folders(root) if not name.startswith("_")]

    def _remove(self, folder: str) -> None:
        """Remove a folder. If a concurrent removal deletes a file first, try again. A store that still lists
        a folder that it has removed is not asked again: it would never end."""
        store, _ = self._store
        while store.get_file_info(folder).type == fs.FileType.Directory:
            with suppress(FileNotFoundError):
                store.delete_dir(folder)
                return


def _is_whole(store: fs.FileSystem, path: str) -> bool:
    try:
        with pq.ParquetFile(path, filesystem=store, page_checksum_verification=True) as file:
            for _ in file.iter_batches(_READ_ROWS, use_threads=False):
                pass
    except (OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        return False
    return True


def _rows_in(store: fs.FileSystem, path: str) -> int | None:
    """The number of rows in a file's footer; None if there is no readable footer."""
    try:
        rows: int = pq.read_metadata(path, filesystem=store).num_rows
    except (OSError, ValueError):
        return None
    return rows


def stats_of(footer: pq.FileMetaData) -> str:
    """A part's statistics for the Delta log, from its footer: exact, but for times in whole milliseconds, or
    left out.

    It gives bounds for integers, dates, times and short text; readers treat missing bounds as unknown.
    """
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(footer.num_columns):
        name = footer.row_group(0).column(index).path_in_schema
        chunks = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if name in (KEY, DIGEST) or "." in name or not all(chunks):
            continue
        if all(chunk.has_null_count for chunk in chunks):
            nulls[name] = sum(chunk.null_count for chunk in chunks)
        filled = [chunk for chunk in chunks if not (chunk.has_null_count and chunk.num_values == 0)]
        if not filled or not all(chunk.has_min_max for chunk in filled):
            continue
        try:
            low, high = (
                _bound(pick(getattr(chunk, end) for chunk in filled), is_high=pick is max)
                for pick, end in _ENDS
            )
        except (OverflowError, ValueError):
            # A value that Python can't represent, such as a time after the year 9999.
            continue
        if low is not None and high is not None:
            lowest[name], highest[name] = low, high
    found = {"numRecords": footer.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


_ENDS: Final = ((min, "min"), (max, "max"))


def _bound(value: object, *, is_high: bool) -> object:
    """A bound as the Delta log writes it; None for a type without an exact bound."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int) or (isinstance(value, str) and len(value) <= _TEXT_CHARACTERS_MAX):
        return value
    if type(value) is datetime:
        return time_bound(value, is_high=is_high)
    return value.isoformat() if type(value) is date else None
