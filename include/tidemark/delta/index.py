"""The key index of a state: one large run and a few small ones, which map each key to the place of its row.

The index is a cache in a local folder. It is never the truth: the head that a commit is made on decides
whether a hit counts. The file must be live in it, and its deletion vector must not hide the row. So the index
need not be kept in step with the table. A run that is lost, damaged, or of another table or encoding is
rebuilt from the data files; a file that no run names is added; a removed file is dropped at the next merge.

Runs are merged by size: each run is larger than all smaller runs together. So there are few runs, and a
record is rewritten only a few times.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.delta.deletion_vectors import Rows
from tidemark.delta.head import LiveFile, TableHead
from tidemark.delta.index_runs import (
    DataFile,
    Numbers,
    Records,
    Run,
    RunDamaged,
    RunScope,
    merged_chunks,
    remove_leftovers,
    sorted_records,
    write_run,
)
from tidemark.delta.state_files import RowKeys

MERGE_RECORDS: Final = 1_000_000
"""The number of records in memory while runs are merged."""


@dataclass(frozen=True)
class Hits:
    """The places of the live rows of some keys: for each hit the key's number and its record; `file` is an
    index into `paths`."""

    paths: tuple[str, ...]
    query: npt.NDArray[np.intp]
    records: Records

    @classmethod
    def none(cls) -> Hits:
        return cls((), np.empty(0, np.intp), np.empty(0, _RECORD))

    def places(self, chosen: npt.NDArray[np.bool_] | None = None) -> dict[str, Rows]:
        """The row numbers of the hits (or of the chosen hits) by file."""
        records = self.records if chosen is None else self.records[chosen]
        return {self.paths[number]: Rows(records["row"][at]) for number, at in by_file(records)}


def by_file(records: Records) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """The number of each file that has records, and their positions."""
    files = records["file"]
    # numpy sorts short integers much faster.
    kind = np.min_scalar_type(files.max(initial=0))
    order = np.argsort(files.astype(kind), kind="stable")
    ends = np.flatnonzero(np.diff(files[order])) + 1
    for at in np.split(order, ends):
        if len(at):
            yield int(files[at[0]]), at


class KeyIndex:
    """The runs of one table in one folder."""

    def __init__(self, folder: Path, scope: RunScope) -> None:
        self._folder, self._scope = folder, scope
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._runs: list[Run] = []
        remove_leftovers(folder)
        for path in sorted(folder.glob("*.run")):
            try:
                run = Run(path)
            except RunDamaged:
                path.unlink(missing_ok=True)
                continue
            if run.scope == scope:
                self._runs.append(run)
            else:
                path.unlink(missing_ok=True)
        self._runs.sort(key=lambda run: run.records, reverse=True)

    @property
    def runs(self) -> Sequence[Run]:
        return tuple(self._runs)

    @property
    def bytes(self) -> int:
        return sum(run.path.stat().st_size for run in self._runs)

    def missing(self, head: TableHead) -> list[LiveFile]:
        """The live files that are in no run."""
        named = {file for run in self._runs for file in run.files}
        return [file for file in head.files.values() if _data_file(file) not in named]

    def add(self, files: Mapping[DataFile, RowKeys]) -> None:
        """Write a run of some files; `InvariantViolation` if a file's row count differs from its
        statistics."""
        known = [file for file in files if file.rows]
        for file in known:
            if len(files[file]) != file.rows:
                raise InvariantViolation(
                    f"{file.path} has {len(files[file])} rows, and its statistics say {file.rows}",
                    hint="run `tidemark rebuild PIPELINE SHARD`",
                )
        parts = [
            sorted_records(keys.hi, keys.lo, keys.digest, sequence=keys.sequence, file=number)
            for number, keys in enumerate(files[file] for file in known)
        ]
        if not parts:
            return
        joined = np.concatenate(parts)
        chunk = joined if len(parts) == 1 else joined[np.argsort(joined["hi"], kind="stable")]
        self._put(write_run(self._new_path(), self._scope, known, [chunk]))

    def find(
        self,
        keys: RowKeys,
        head: TableHead,
        hidden: Callable[[list[str]], Mapping[str, Rows]],
        *,
        once: bool = True,
    ) -> Hits:
        """Find the live rows of these keys. Every live file must be in a run (`missing`). With `once`, two
        live rows of one key are an `InvariantViolation`."""
        order = np.argsort(keys.hi)
        hi, lo = keys.hi[order], keys.lo[order]
        paths = tuple(head.files)
        numbers = {_data_file(file): number for number, file in enumerate(head.files.values())}
        queries, found = [], []
        for run in self._runs:
            # If two runs name a file (after an interrupted merge), the first of them is used.
            known = [numbers.pop(file, -1) for file in run.files]
            with self._dropping(run):
                query, records = _found(run, hi, lo)
            files = np.array(known, np.int64)[records["file"]]
            live = files >= 0
            if not live.all():
                query, records, files = query[live], records[live], files[live]
            records["file"] = files
            queries.append(query)
            found.append(records)
        if numbers:
            raise InvariantViolation(
                f"the key index does not have {next(iter(numbers)).path}", hint="add the missing file first"
            )
        query = np.concatenate(queries) if queries else np.empty(0, np.intp)
        records = np.concatenate(found) if found else np.empty(0, _RECORD)
        gone = _is_hidden(paths, records, hidden)
        if gone.any():
            query, records = query[~gone], records[~gone]
        query = order[query]
        if once:
            _check_once(query)
        return Hits(paths, query, records)

    def merge(self, head: TableHead) -> None:
        """Merge runs that break the size rule, and drop files that are no longer live."""
        chosen = chosen_for_merge([run.records for run in self._runs])
        runs = self._runs[chosen:]
        if len(runs) < 2:
            return
        live = {_data_file(file) for file in head.files.values()}
        earlier = {file for run in self._runs[:chosen] for file in run.files}
        files: list[DataFile] = []
        numbers: list[dict[int, int]] = []
        for run in runs:
            known = {}
            for at, file in enumerate(run.files):
                if file in live and file not in earlier:
                    earlier.add(file)
                    known[at] = len(files)
                    files.append(file)
            numbers.append(known)
        chunks = merged_chunks(runs, numbers, chunk_records=MERGE_RECORDS)
        with self._dropping(*runs):
            merged = write_run(self._new_path(), self._scope, files, chunks) if files else None
        self._runs = self._runs[:chosen]
        if merged is not None:
            self._put(merged)
        # If the process dies before this, the next one finds files in two runs, which is harmless.
        for run in runs:
            run.path.unlink(missing_ok=True)

    @contextmanager
    def _dropping(self, *runs: Run) -> Iterator[None]:
        """Delete these runs if the block finds damage, so that the next attempt rebuilds them."""
        try:
            yield
        except RunDamaged as error:
            self._runs = [run for run in self._runs if run not in runs]
            for run in runs:
                run.path.unlink(missing_ok=True)
            raise Determinate(
                f"the key index was damaged: {error}", hint="retry, which builds it again"
            ) from error

    def _put(self, run: Run) -> None:
        self._runs.append(run)
        self._runs.sort(key=lambda one: one.records, reverse=True)

    def _new_path(self) -> Path:
        return self._folder / f"{uuid.uuid4().hex}.run"


def chosen_for_merge(sizes: Sequence[int]) -> int:
    """The position from which on to merge, given sizes from largest to smallest, so that each run is larger
    than all that follow; the number of runs if there is nothing to merge."""
    total = 0
    chosen = len(sizes)
    for at in reversed(range(len(sizes))):
        if at < len(sizes) - 1 and sizes[at] <= total:
            chosen = at
        total += sizes[at]
    return chosen


def _data_file(file: LiveFile) -> DataFile:
    return DataFile(file.path, file.bytes, file.rows)


def _found(run: Run, hi: Numbers, lo: Numbers) -> tuple[npt.NDArray[np.intp], Records]:
    query, records = run.find(hi, lo)
    if len(records) and int(records["file"].max()) >= len(run.files):
        raise RunDamaged(f"{run.path.name} has a record of a file that it does not name")
    return query, records


def _is_hidden(
    paths: tuple[str, ...], records: Records, hidden: Callable[[list[str]], Mapping[str, Rows]]
) -> npt.NDArray[np.bool_]:
    """Which records belong to hidden rows."""
    out = np.zeros(len(records), np.bool_)
    touched = dict(by_file(records))
    vectors = hidden([paths[number] for number in touched])
    for number, at in touched.items():
        vector = vectors.get(paths[number])
        if vector is None:
            continue
        rows = records["row"][at]
        gone = np.frombuffer((Rows(rows) & vector).to_array(), np.uint32)
        out[at] = np.isin(rows, gone)
    return out


def _check_once(query: npt.NDArray[np.intp]) -> None:
    keys, counts = np.unique(query, return_counts=True)
    twice = keys[counts > 1]
    if len(twice):
        raise InvariantViolation(
            f"{len(twice)} keys of the batch have two live rows or more, number {int(twice[0])} first",
            hint="run `tidemark verify PIPELINE`; if it fails, `tidemark rebuild PIPELINE SHARD`",
        )


_RECORD: Any = sorted_records(*(np.empty(0, np.uint64) for _ in range(3))).dtype
