"""A run of the key index: one file with the places of the rows of some data files, sorted by key hash.

A run is a pure function of the data files that it names, which never change: one fixed-size record per row,
sorted by hash. It does not depend on deletion vectors. So any process can rebuild it, and a complete run has
exactly as many records of a file as the file has rows.

File format: a header (magic, sizes, checksum), a description as JSON, a directory (the first hash and the
checksum of each block), then the blocks. Opening a run checks header and directory; every read checks its
blocks. Checksums are weighted sums of 64-bit words with odd weights: they detect every change of a single
word, and numpy computes them at memory speed.

Restrictions: a run must be on a local disk, because it is memory-mapped; on a network disk, truncation by
another machine would crash the process. Only its owner may read it. Damage raises `RunDamaged`: rebuild the
run.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

FORMAT: Final = 1
BLOCK_RECORDS: Final = 16
FIND_KEYS: Final = 1 << 14
"""How many keys are looked up at once: their blocks, of 640 bytes each, fit in a processor's cache."""
_MAGIC: Final = b"tm.run\r\n"
_HEAD: Final = struct.Struct("<8sQQQ")
_ALIGNED: Final = 4096
_ONE: Final = np.uint64(1)
_NO_FILE: Final = 0xFFFFFFFF

RECORD: Final = np.dtype(
    [("hi", "<u8"), ("lo", "<u8"), ("file", "<u4"), ("row", "<u4"), ("digest", "<u8"), ("sequence", "<i8")]
)
"""A row: the two halves of its key's hash, its file's number in the run, its row number in the file, its
digest, and its sequence (0 if the shard has none)."""
_BYTES: Final = np.dtype((np.void, RECORD.itemsize))
_WORDS: Final = RECORD.itemsize // 8 * BLOCK_RECORDS

Records = npt.NDArray[Any]
Numbers = npt.NDArray[np.uint64]


class RunDamaged(Exception):
    """A run's file is damaged, or is not a run."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a table."""

    path: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class RunScope:
    """The table and the encoding of keys and rows that a run is for."""

    table: str
    encoding: int


class Run:
    """An open run. Opening checks header and directory; reading checks blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                head = file.read(_HEAD.size)
                magic, described, blocks, check = _HEAD.unpack(head)
                if magic != _MAGIC:
                    raise RunDamaged(f"{path.name} is not a run of this format")
                size = path.stat().st_size
                start = _start(described, blocks)
                if size != start + blocks * BLOCK_RECORDS * RECORD.itemsize:
                    raise RunDamaged(f"{path.name} has {size} bytes")
                body = file.read(described + 16 * blocks)
            if zlib.crc32(body) != check:
                raise RunDamaged(f"the directory of {path.name} does not agree with its checksum")
            facts = json.loads(body[:described])
            self.scope = RunScope(facts["table"], facts["encoding"])
            self.files = tuple(DataFile(*one) for one in facts["files"])
            # As words: numpy copies rows of a 2-D array much faster than records.
            self._map: Numbers | None = None
            if blocks:
                self._map = np.memmap(path, "<u8", "r", start, (blocks, _WORDS)).view(np.ndarray)
        except (OSError, struct.error, ValueError, KeyError, TypeError) as error:
            raise RunDamaged(f"{path.name} can't be read: {error}") from error
        self.firsts, self._sums = np.frombuffer(body[described:], "<u8").reshape(2, blocks)
        self.records = sum(file.rows for file in self.files)
        if blocks != -(-self.records // BLOCK_RECORDS):
            raise RunDamaged(f"{path.name} has {blocks} blocks for {self.records} records")

    def blocks(self, wanted: npt.NDArray[np.intp]) -> Records:
        """The records of these blocks, in order, without the padding of the last block."""
        if self._map is None or not len(wanted):
            return np.empty(0, RECORD)
        words = np.take(self._map, wanted, axis=0)
        if not np.array_equal(_sums(words, wanted), self._sums[wanted]):
            raise RunDamaged(f"blocks of {self.path.name} don't agree with their checksums")
        records: Records = words.reshape(-1).view(RECORD)
        over = len(self.firsts) * BLOCK_RECORDS - self.records
        return records[: len(records) - over] if over and wanted[-1] == len(self.firsts) - 1 else records

    def all(self) -> Records:
        return self.blocks(np.arange(len(self.firsts)))

    def between(self, low: int, high: int) -> Records:
        """The records whose hash begins with low <= hi < high; `high` may be 2**64."""
        first = max(int(np.searchsorted(self.firsts, np.uint64(low), "left")) - 1, 0)
        last = (
            len(self.firsts)
            if high >= 1 << 64
            else int(np.searchsorted(self.firsts, np.uint64(high), "left"))
        )
        found = self.blocks(np.arange(first, last))
        begin = np.searchsorted(found["hi"], np.uint64(low), "left")
        end = len(found) if high >= 1 << 64 else np.searchsorted(found["hi"], np.uint64(high), "left")
        return found[begin:end]

    def find(self, hi: Numbers, lo: Numbers) -> tuple[npt.NDArray[np.intp], Records]:
        """The records of these keys, and for each the number of its key. The keys must be sorted by `hi`."""
        queries, found = [np.empty(0, np.intp)], [np.empty(0, _BYTES)]
        for at in range(0, len(hi), FIND_KEYS):
            query, records = self._find(hi[at : at + FIND_KEYS], lo[at : at + FIND_KEYS])
            queries.append(query + at)
            found.append(records.view(_BYTES))
        return np.concatenate(queries), np.concatenate(found).view(RECORD)

    def _find(self, hi: Numbers, lo: Numbers) -> tuple[npt.NDArray[np.intp], Records]:
        before = np.searchsorted(self.firsts, hi, "left").astype(np.intp) - 1
        through = np.searchsorted(self.firsts, hi, "right").astype(np.intp) - 1
        # A key's records may span blocks: one at the end of a block may continue in the next, and one at the
        # start may have begun in the previous.
        wide = through - before > 1
        spans = [np.arange(a, b) for a, b in zip(before[wide], through[wide], strict=True)]
        wanted = np.sort(np.concatenate([before, through, *spans]), kind="stable")
        wanted = wanted[np.flatnonzero(np.diff(wanted, prepend=-1))]
        found = self.blocks(wanted)
        keys = np.ascontiguousarray(found["hi"])
        left, right = np.searchsorted(keys, hi, "left"), np.searchsorted(keys, hi, "right")
        counts = right - left
        query = np.repeat(np.arange(len(hi)), counts)
        at = np.repeat(left - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        hits: Records = found.view(_BYTES)[at].view(RECORD)
        same = hits["lo"] == lo[query]
        return (query, hits) if same.all() else (query[same], hits[same])


def write_run(path: Path, scope: RunScope, files: Sequence[DataFile], chunks: Iterable[Records]) -> Run:
    """Write a run of all rows of these files. All chunks together must be sorted by `hi`."""
    records = sum(file.rows for file in files)
    blocks = -(-records // BLOCK_RECORDS)
    facts = {"format": FORMAT, "table": scope.table, "encoding": scope.encoding}
    described = json.dumps({**facts, "files": [[one.path, one.bytes, one.rows] for one in files]}).encode()
    described += b" " * (-len(described) % 8)
    firsts, sums = np.zeros(blocks, "<u8"), np.zeros(blocks, "<u8")
    attempt = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    handle = os.open(attempt, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.seek(_start(len(described), blocks))
            at = 0
            for whole in _blocks_of(chunks):
                number = np.arange(at, at + len(whole))
                if number[-1] >= blocks:
                    raise RunDamaged(f"more than {records} records for {path.name}")
                data = whole.tobytes()
                words = np.frombuffer(data, "<u8").reshape(len(whole), _WORDS)
                firsts[number], sums[number] = whole["hi"][:, 0], _sums(words, number)
                file.write(data)
                at += len(whole)
            if at != blocks:
                raise RunDamaged(f"{at} blocks instead of {blocks} for {path.name}")
            file.seek(0)
            body = described + firsts.tobytes() + sums.tobytes()
            file.write(_HEAD.pack(_MAGIC, len(described), blocks, zlib.crc32(body)) + body)
        # Open it before other processes can see, merge and remove it.
        run = Run(attempt)
        attempt.replace(path)
        run.path = path
    except BaseException:
        attempt.unlink(missing_ok=True)
        raise
    return run


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of processes that no longer run on this machine."""
    for path in folder.glob("*.tmp"):
        try:
            os.kill(int(path.suffixes[-2].removeprefix(".")), 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except (PermissionError, ValueError, IndexError):
            continue


def _blocks_of(chunks: Iterable[Records]) -> Iterable[Records]:
    """Yield the records in whole blocks; the last one is padded with records of no file."""
    rest = np.empty(0, RECORD)
    for chunk in chunks:
        joined = np.concatenate([rest, chunk]) if len(rest) else chunk
        whole = len(joined) // BLOCK_RECORDS * BLOCK_RECORDS
        if whole:
            yield joined[:whole].reshape(-1, BLOCK_RECORDS)
        rest = joined[whole:]
    if len(rest):
        last = np.zeros(BLOCK_RECORDS, RECORD)
        last["hi"], last["file"] = np.iinfo(np.uint64).max, _NO_FILE
        last[: len(rest)] = rest
        yield last.reshape(1, -1)


def _start(described: int, blocks: int) -> int:
    """The offset of the first block."""
    return -(-(_HEAD.size + described + 16 * blocks) // _ALIGNED) * _ALIGNED


def _weights() -> Numbers:
    """Pseudorandom odd numbers. They belong to the file format and never change."""
    with np.errstate(over="ignore"):
        found = np.arange(1, _WORDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        return (found ^ (found >> np.uint64(27))) | _ONE


_WEIGHTS: Final = _weights()


def _sums(words: Numbers, numbers: npt.NDArray[np.intp]) -> Numbers:
    """The checksum of each block's words and position."""
    with np.errstate(over="ignore"):
        found: Numbers = (
            np.einsum("ij,j->i", words, _WEIGHTS) + (numbers.astype(np.uint64) + _ONE) * _WEIGHTS[0]
        )
    return found


def sorted_records(
    hi: Numbers,
    lo: Numbers,
    digest: npt.NDArray[Any],
    *,
    sequence: npt.NDArray[np.int64] | None = None,
    file: int = 0,
) -> Records:
    """The sorted records of one file's rows, which are given in file order."""
    order = np.argsort(hi)
    found = np.zeros(len(hi), RECORD)
    found["hi"], found["lo"], found["file"], found["row"] = hi[order], lo[order], file, order
    found["digest"] = digest[order].view(np.uint64)
    if sequence is not None:
        found["sequence"] = sequence[order]
    return found


def merged_chunks(
    runs: Sequence[Run], numbers: Sequence[Mapping[int, int]], *, chunk_records: int
) -> Iterable[Records]:
    """Merge the records of several runs, one range of hashes at a time. `numbers` maps, for each run, the
    files to keep to their numbers in the new run."""
    parts = max(1, sum(run.records for run in runs) // chunk_records)
    edges = [(1 << 64) * at // parts for at in range(parts + 1)]
    tables = []
    for run, known in zip(runs, numbers, strict=True):
        table = np.full(len(run.files) + 1, _NO_FILE, np.uint32)
        for old, new in known.items():
            table[old] = new
        tables.append(table)
    for low, high in itertools.pairwise(edges):
        found = []
        for run, table in zip(runs, tables, strict=True):
            records = run.between(low, high)
            if len(records) and records["file"].max() >= len(run.files):
                raise RunDamaged(f"{run.path.name} has a record of a file that it does not name")
            records = records.copy()
            records["file"] = table[records["file"]]
            found.append(records[records["file"] != _NO_FILE])
        joined = np.concatenate(found)
        yield joined[np.argsort(joined["hi"], kind="stable")]
