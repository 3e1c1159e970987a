"""Records of control tables: their JSON, the Parquet files that hold them, and which files to merge.

A row's `body` is the whole record as JSON, encoded by pydantic from the core's dataclasses and validated
again on every read. The other columns repeat values to filter by. They are derived from the record when it is
written; number and key are compared with it when it is read.

A commit writes one small immutable file; compaction replaces neighbouring files by one. A file's name holds
the table versions that its rows came from, the chain's link before its first row and at its last row, a
digest of its contents, and a checksum of the name and of the statistics that readers skip files by. So the
file list alone shows that no file is missing and no statistic was changed. Contents are checked whenever a
file is opened, links whenever a row is read (`delta.ledger`).

arro3 writes and reads the files, because it loads in a few milliseconds. Loading pyarrow takes longer than a
whole run with nothing to do.

Merges take the newest files, so that they are neighbours in the chain. Files fall into tiers by powers of ten
of their row count. When the newest files up to some tier number `FILES_MAX`, they are merged; full files of
1,000 rows are merged to 10,000 once there are enough newer ones. So a record is rewritten a handful of times,
and a table of n records has about `FILES_MAX` small files per tier, up to twice as many full ones, and n /
10,000 old ones, which are not merged again.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Generic, TypeVar, cast

from arro3.core import Array, DataType, Table
from arro3.io import read_parquet, write_parquet
from deltalake import Field, Schema
from deltalake.schema import PrimitiveType
from pydantic import TypeAdapter, ValidationError

from tidemark.core.binding import Binding, Claim, Configuration
from tidemark.core.checkpoint import Checkpoint
from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation, TidemarkError
from tidemark.core.generation import Candidate
from tidemark.core.history import HistoryRecord, Recovery
from tidemark.core.lease import Lease, LeaseRecord, LeaseSummary
from tidemark.core.ledger import JournalEntry, Record, check_format
from tidemark.core.publish import Cut, Published
from tidemark.core.seal import Evidence, Seal
from tidemark.delta.commit import Action, add_action, remove_action
from tidemark.delta.head import LiveFile
from tidemark.delta.store import Store

R = TypeVar("R", bound=Record)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a control table, without its wall-clock time, on which no decision depends."""

    number: int
    kind: str
    key: str
    txn: int | None
    token: str | None
    run_id: str | None
    format: int
    link: int
    body: str


_NAMED_ONLY: Final = {"configuration": {"texts"}, "staged": {"configuration": {"texts"}}}
"""A record names its configuration; the text lies beside the history (`delta.settings`)."""


def configuration_in(record: object) -> Configuration | None:
    """The configuration that a record names; None if it names none."""
    found = getattr(record, "configuration", None) or getattr(
        getattr(record, "staged", None), "configuration", None
    )
    return cast("Configuration | None", found)


def with_texts(record: R, texts: Mapping[str, str]) -> R:
    """The record, with a configuration whose text can be read."""
    found = configuration_in(record)
    if found is None:
        return record
    own = replace(found, texts=texts)
    if isinstance(record, Evidence) and record.staged is not None:
        return cast("R", replace(record, staged=replace(record.staged, configuration=own)))
    return cast("R", replace(cast("Any", record), configuration=own))


class Codec(Generic[R]):
    """The record kinds of one control table, each with its dataclass."""

    def __init__(self, kinds: Mapping[str, type[Any]]) -> None:
        self._classes = dict(kinds)
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        self._kinds = {cls: kind for kind, cls in kinds.items()}

    def kind_of(self, record: R) -> str:
        kind = self._kinds.get(type(record))
        if kind is None:
            raise InvalidUsage(
                f"{type(record).__name__} is not a record of this table",
                hint=f"it takes {sorted(self._classes)}",
            )
        return kind

    def names_of(self, kinds: tuple[type, ...]) -> frozenset[str]:
        """The names of these record kinds; of all kinds if none is given."""
        return frozenset(self._kinds[cls] for cls in kinds) if kinds else frozenset(self._classes)

    def encode(self, record: R) -> str:
        found = self._adapter(self.kind_of(record)).dump_json(record, exclude=cast("Any", _NAMED_ONLY))
        return found.decode()

    def _adapter(self, kind: str) -> TypeAdapter[Any]:
        # Each takes milliseconds to create, and a process uses few kinds.
        if kind not in self._adapters:
            self._adapters[kind] = TypeAdapter(self._classes[kind])
        return self._adapters[kind]

    def decode(self, row: Row, *, table: str) -> R:
        """Decode a row. `InvariantViolation` if it is not a valid record, or not the record that its columns
        name."""
        check_format(row.format, table=table)
        if row.kind not in self._classes:
            raise InvariantViolation(f"{table}: record {row.number} has the unknown kind {row.kind!r}")
        try:
            record = self._adapter(row.kind).validate_json(row.body)
        except (ValidationError, TidemarkError) as error:
            raise InvariantViolation(
                f"{table}: record {row.number} is not a valid {row.kind}: {error}",
                hint="restore the table's files from a backup",
            ) from error
        known = cast("R", record)
        if (known.number, known.key) != (row.number, row.key):
            raise InvariantViolation(
                f"{table}: the row numbered {row.number} holds record {known.number} of {known.key!r}",
                hint="restore the table's files from a backup",
            )
        return known


def txn_column(record: object) -> int | None:
    return getattr(record, "txn", None)


def token_column(record: object) -> str | None:
    """The token of the writing process; a lease calls it `holder`."""
    return getattr(record, "token", None) or getattr(record, "holder", None)


def run_column(record: object) -> str | None:
    """The run that requested the record, if it names one."""
    owner = getattr(record, "owner", None)
    if owner is not None:
        return cast("str | None", getattr(owner, "run_id", None))
    detail = getattr(record, "detail", None)
    return detail.get("run") if isinstance(detail, Mapping) else None


@cache
def history_codec() -> Codec[HistoryRecord]:
    kinds = {"binding": Binding, "claim": Claim, "seal": Seal, "recovery": Recovery}
    return Codec({**kinds, "candidate": Candidate})


@cache
def attempts_codec() -> Codec[Evidence]:
    return Codec({"evidence": Evidence})


@cache
def checkpoints_codec() -> Codec[Checkpoint]:
    return Codec({"checkpoint": Checkpoint})


@cache
def journal_codec() -> Codec[JournalEntry]:
    return Codec({"event": JournalEntry})


@cache
def publishes_codec() -> Codec[Published]:
    return Codec({"published": Published})


@cache
def cuts_codec() -> Codec[Cut]:
    return Codec({"cut": Cut})


@cache
def leases_codec() -> Codec[LeaseRecord]:
    return Codec({"lease": Lease, "summary": LeaseSummary})


# Record files.
COLUMNS: Final = {
    "number": ("long", False),
    "kind": ("string", False),
    "key": ("string", False),
    "txn": ("long", True),
    "token": ("string", True),
    "run_id": ("string", True),
    "at": ("timestamp", False),
    "format": ("integer", False),
    "link": ("long", False),
    "body": ("string", False),
}
SCHEMA: Final = Schema(
    [Field(name, PrimitiveType(kind), nullable=null) for name, (kind, null) in COLUMNS.items()]
)
ARROW_SCHEMA: Final = SCHEMA.to_arrow()
_REPEATED: Final = ("kind", "key")

# First and last version, link before and last link, the version to be committed and a nonce, the digest of
# the contents, the checksum of the name.
_NAME = re.compile(r"r-(\d{20})-(\d{20})" + 5 * r"-([0-9a-f]{16})" + r"\.parquet\Z")


@dataclass(frozen=True, slots=True)
class RecordFile:
    """An active file: its place in the chain, and the bounds of its contents."""

    path: str
    version_first: int
    version_last: int
    link_before: int
    link_last: int
    rows: int
    bytes: int
    number_min: int
    number_max: int
    key_min: str
    key_max: str

    def may_hold_number(self, lower: int, upper: int) -> bool:
        return self.number_min < upper and lower <= self.number_max

    def may_hold_key(self, key: str) -> bool:
        return self.key_min <= key <= self.key_max

    def add(self, *, at_ms: int, data_change: bool) -> Action:
        stats = {
            "numRecords": self.rows,
            "minValues": {"number": self.number_min, "key": self.key_min},
            "maxValues": {"number": self.number_max, "key": self.key_max},
            "nullCount": {"number": 0, "key": 0},
        }
        text = json.dumps(stats, ensure_ascii=False)
        return add_action(self.path, size=self.bytes, at_ms=at_ms, data_change=data_change, stats=text)

    def remove(self, *, at_ms: int) -> Action:
        return remove_action(self.path, size=self.bytes, at_ms=at_ms, data_change=False)


def _digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _check_of(stem: str, facts: tuple[Any, ...]) -> str:
    return _digest_of(f"{stem}{facts!r}".encode())


def write_file(
    store: Store, table: Table, *, versions: tuple[int, int], link_before: int, version: int
) -> RecordFile:
    """Write consecutive rows of the chain to a file for table version `version`, and sync it to disk. OSError
    if the store rejects it."""
    numbers, keys = list(table["number"].to_pylist()), list(table["key"].to_pylist())
    link_last: int = table["link"][-1].as_py()
    sink = io.BytesIO()
    write_parquet(
        table,
        sink,
        compression="zstd(1)",
        dictionary_enabled=False,
        column_dictionary_enabled=dict.fromkeys(_REPEATED, table.num_rows > 1),
        skip_arrow_metadata=True,
    )
    data = sink.getvalue()
    links = f"{link_before:016x}-{link_last:016x}"
    nonce = f"{version:010x}{secrets.token_hex(3)}"
    stem = f"r-{versions[0]:020}-{versions[1]:020}-{links}-{nonce}-{_digest_of(data)}"
    facts: tuple[Any, ...] = (len(numbers), len(data), min(numbers), max(numbers), min(keys), max(keys))
    path = f"{stem}-{_check_of(stem, facts)}.parquet"
    store.put_synced(path, data)
    return RecordFile(path, *versions, link_before, link_last, *facts)


def version_in(path: str) -> int | None:
    """The table version that a file was written for; None for other files."""
    named = _NAME.match(path)
    return int(named[5][:10], 16) if named else None


def file_of(file: LiveFile, *, table: str) -> RecordFile:
    """An active record file; `InvariantViolation` if its name and statistics disagree."""
    path, stats = file.location, file.stats
    named = _NAME.match(path)
    bounds = [
        stats.get(end, {}).get(name) for name in ("number", "key") for end in ("minValues", "maxValues")
    ]
    facts: tuple[Any, ...] = (stats.get("numRecords"), file.bytes, *bounds)
    if named is None or _check_of(path.rsplit("-", 1)[0], facts) != named[7]:
        raise InvariantViolation(
            f"{table}: the log's entry for {path} was changed, or written by something else: {facts}",
            hint="restore the table's log from a backup",
        )
    return RecordFile(path, int(named[1]), int(named[2]), int(named[3], 16), int(named[4], 16), *facts)


def checked_order(files: Iterable[RecordFile], *, chain: int, table: str) -> tuple[RecordFile, ...]:
    """The files in chain order; `InvariantViolation` unless they reach from its start to the chain mark
    without gaps."""
    ordered = tuple(sorted(files, key=lambda file: file.version_first))
    reached = 0
    for file in ordered:
        if file.link_before != reached:
            raise broken(table, f"the records before {file.path} are missing")
        reached = file.link_last
    if reached != chain:
        raise broken(table, f"the chain ends at {reached:016x}, but its mark is {chain:016x}")
    return ordered


class FileGone(InvariantViolation):
    """A record file is missing. This is no loss if the loaded version predates a merge of the file."""


def broken(table: str, what: str) -> InvariantViolation:
    return InvariantViolation(f"{table}: {what}", hint="records were lost; restore the table from a backup")


def opened_file(store: Store, file: RecordFile, *, table: str) -> Table:
    try:
        data = store.get(file.path)
    except FileNotFoundError as error:
        gone = broken(table, f"the file {file.path} is gone")
        raise FileGone(gone.fact, hint=gone.hint) from error
    except OSError as error:
        raise Determinate(
            f"{table}: {file.path} can't be read: {error}", hint="check the store, then retry"
        ) from error
    if _digest_of(data) != file.path.split("-")[6]:
        raise broken(table, f"the file {file.path} is damaged")
    return read_parquet(data, batch_size=max(file.rows, 1)).read_all()


def read_keys(store: Store, file: RecordFile, *, table: str) -> list[tuple[str, int]]:
    """The key and the number of each record in a file. Other columns are not converted to Python values."""
    found = opened_file(store, file, table=table)
    return list(zip(found["key"].to_pylist(), found["number"].to_pylist(), strict=True))


def table_of(columns: Mapping[str, Sequence[Any]]) -> Table:
    """Build a table of `ARROW_SCHEMA`; times are in microseconds."""
    plain = {name: ARROW_SCHEMA.field(name).type for name in COLUMNS} | {"at": DataType.int64()}
    arrays = [Array(columns[name], type=plain[name]).cast(ARROW_SCHEMA.field(name).type) for name in COLUMNS]
    return Table.from_arrays(arrays, schema=ARROW_SCHEMA)


def joined(tables: Iterable[Table]) -> Table:
    """Concatenate such tables."""
    return Table.from_batches(
        [batch for table in tables for batch in table.to_batches()], schema=ARROW_SCHEMA
    )


def rows_of(table: Table) -> tuple[Row, ...]:
    columns = (table[name].to_pylist() for name in Row.__dataclass_fields__)
    return tuple(Row(*values) for values in zip(*columns, strict=True))


# Merges.
FILES_MAX: Final = 10
ROWS_FULL: Final = 1000
BYTES_FULL: Final = 4 * 1024 * 1024
TIERS: Final = (10, 100, ROWS_FULL)
ROWS_OLD: Final = 10 * ROWS_FULL
BYTES_OLD: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Merge:
    """Neighbouring files to be merged into one."""

    files: tuple[RecordFile, ...]


def choose_merge(files: Sequence[RecordFile]) -> Merge | None:
    """The newest files of the smallest tier that is due, or else old full files; None if none is due."""
    for rows_below in TIERS:
        first = len(files)
        while first > 0 and files[first - 1].rows < rows_below and files[first - 1].bytes < BYTES_FULL:
            first -= 1
        if len(files) - first >= FILES_MAX:
            return Merge(tuple(files[first:]))
    return _old_merge(files)


def _old_merge(files: Sequence[RecordFile]) -> Merge | None:
    """The oldest full files, once there are as many newer ones: the newest records stay in files that are
    quick to read."""
    end = len(files)
    while end > 0 and files[end - 1].rows < ROWS_FULL:
        end -= 1
    first = end
    while first > 0 and ROWS_FULL <= files[first - 1].rows < ROWS_OLD and files[first - 1].bytes < BYTES_OLD:
        first -= 1
    return Merge(tuple(files[first : first + FILES_MAX])) if end - first >= 2 * FILES_MAX else None
