"""A table with the awkward values of every type, in files that were written each way, and its twin whose
files have no bounds. Whatever a reader's filter finds in the twin, it must find in the table."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.state_table import new_table
from tidemark.core.ledger import Committed
from tidemark.delta import state_maintenance
from tidemark.delta.commit import entry_bytes, file_folder
from tidemark.delta.deletion_vectors import Rows
from tidemark.delta.state import Change, NewFile, StateTable
from tidemark.delta.state_files import described, write_rows

NAN, INF = float("nan"), float("inf")
TIMES = [
    dt.datetime.fromisoformat(text)
    for text in (
        "0001-01-01T00:00:00.000001", "1969-12-31T23:59:59.999999", "2020-02-29T12:00:00.000001",
        "2020-02-29T12:00:00.000999", "9999-12-31T23:59:59.999999",
    )
]  # fmt: skip
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "yes": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 0, 127]),
    "i16": (pa.int16(), [-32768, 32767]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "i64": (pa.int64(), [-(2**63), 2**53 + 1, 2**63 - 1]),
    "f32": (pa.float32(), [NAN, -0.0, 0.0, INF, -INF, 1.5, 1e-45]),
    "f64": (pa.float64(), [NAN, -0.0, 0.0, INF, -INF, 0.1, 5e-324]),
    "wide": (pa.decimal128(38, 9), [Decimal("1E-9"), Decimal("9" * 29 + ".999999999"), Decimal("-0.1")]),
    "price": (pa.decimal128(7, 2), [Decimal("-99999.99"), Decimal("0.10"), Decimal("99999.99")]),
    "text": (
        pa.string(),
        ["", "a" * 32, "a" * 40, "a" * 32 + "b", "b" * 33, "\U0010ffff" * 40, "\u00e9" * 33, "\ue000" * 40],
    ),
    "raw": (pa.binary(), [b"", b"\x00\xff", b"\xff" * 40]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "at": (pa.timestamp("us", "UTC"), [time.replace(tzinfo=dt.UTC) for time in TIMES]),
    "local": (pa.timestamp("us"), TIMES),
}
SCHEMA = pa.schema([("k", pa.int64()), *((name, kind) for name, (kind, _) in VALUES.items())])
ROWS = max(len(values) for _, values in VALUES.values())
Write = Callable[[StateTable, pa.Table], list[NewFile]]


def by_index(table: StateTable, rows: pa.Table) -> list[NewFile]:
    """As a publish by the key index writes them."""
    return [write_rows(table.store, rows, version=table.head().version + 1, nonce=uuid.uuid4())]


def by_engine(table: StateTable, rows: pa.Table) -> list[NewFile]:
    """As an engine writes them, and Python describes them from their footers."""
    folder = file_folder(table.head().version + 1, uuid.uuid4())
    path = Path(str(table.store.folder)) / folder / "part-0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(rows, path)
    return described(table.store, folder)


def fill(root: Path, *ways: Write) -> tuple[Path, Path]:
    """Make the table and its twin below `root`. Each way to write makes a file of each row, and of one that
    is hidden beside it; the files of the first one are there twice, once written anew by compaction."""
    table = StateTable(str(root / "state"))
    assert table.commit(table.head(), Change("CREATE TABLE", 0, **new_table(SCHEMA))) == Committed(0)
    key = 0
    for way in (ways[0], *ways):
        for at in range(ROWS):
            rows = [{"k": key, **row(at)}, {"k": -1, **row(at + 1)}]
            key += 1
            _commit(table, way(table, pa.Table.from_pylist(rows, schema=SCHEMA)))
        if key == ROWS:
            _compact(table)
    twin = root / "twin"
    for path in (root / "state").rglob("*"):
        if path.is_file():
            copy = twin / path.relative_to(root / "state")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(_boundless(path) if path.suffix == ".json" else path.read_bytes())
    return root / "state", twin


def row(at: int) -> dict[str, Any]:
    """The values of a row; a type that has fewer values has NULLs as well."""
    found = {}
    for name, (_, values) in VALUES.items():
        number = at % ROWS
        found[name] = values[number] if number < len(values) else None
    return found


def _commit(table: StateTable, files: list[NewFile]) -> None:
    head = table.head()
    change = Change("WRITE", head.rows + sum(file.rows for file in files), added=files)
    assert isinstance(table.commit(head, change), Committed)
    head = table.head()
    hidden = {file.path: Rows([1]) for file in files}
    change = Change("WRITE", head.rows - len(files), hidden=hidden)
    assert isinstance(table.commit(head, change), Committed)


def _compact(table: StateTable) -> None:
    """File by file, so that their bounds leave something out."""
    for path in list(table.head().files):
        state_maintenance._replace(table, [path], lambda _: True, "REORG", 1)
    assert {file.rows for file in table.head().files.values()} == {1}


def _boundless(entry: Path) -> bytes:
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            rows = json.loads(line["add"]["stats"])["numRecords"]
            line["add"]["stats"] = json.dumps({"numRecords": rows, "tightBounds": False})
    return entry_bytes(lines)
