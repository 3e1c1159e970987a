"""Files that an engine has written for a commit: described by their footers alone, and cleaned up."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.state_table import Hand
from tidemark.core.errors import Determinate
from tidemark.core.ledger import Committed
from tidemark.delta import state_files
from tidemark.delta.commit import file_folder, file_version
from tidemark.delta.state import Change
from tidemark.delta.state_files import described, footer_statistics, statistics
from tidemark.delta.store import Store
from tidemark.delta.vacuum import vacuum

ROWS = pa.table(
    {
        "n": pa.array([3, None, -1], pa.int64()),
        "small": pa.array([1, 2, 3], pa.int8()),
        "s": pa.array([{"a.b": 1, "tags": ["x"], "t": "q"}, None, {"a.b": 2, "tags": [], "t": None}]),
        "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        "text": pa.array(["a", "\u00e9" * 40, "b"]),
        "d": pa.array([Decimal("1.10"), None, Decimal("-2.50")], pa.decimal128(10, 2)),
        "at": pa.array([datetime(2020, 1, 1, 0, 0, 0, 1500, UTC), None, None], pa.timestamp("us", "UTC")),
        "naive": pa.array([-999, None, None], pa.timestamp("us")),
        "day": pa.array([date(1900, 1, 1), None, date(2030, 1, 1)]),
        "flag": pa.array([True, None, False]),
        "none": pa.array([None, None, None], pa.int64()),
        "f": pa.array([1.5, float("nan"), None]),
        "bytes": pa.array([b"a", None, b"b"]),
    }
)


def footer_of(folder: Path, rows: pa.Table, **options: Any) -> pq.FileMetaData:
    pq.write_table(rows, folder / "x.parquet", **options)
    return pq.read_metadata(folder / "x.parquet")


def without(stats: dict[str, Any], *names: str) -> dict[str, Any]:
    ends = ("minValues", "maxValues", "nullCount")
    return stats | {end: {k: v for k, v in stats[end].items() if k not in names} for end in ends}


@pytest.mark.parametrize("group", [1, 2, 100])
def test_a_footer_tells_what_the_rows_tell(tmp_path: Path, group: int) -> None:
    found = json.loads(footer_statistics(footer_of(tmp_path, ROWS, row_group_size=group)))
    told = json.loads(statistics(ROWS))
    # A footer says nothing of what is inside of lists and maps, and is not asked for bounds of fractions.
    assert without(found, "m", "f", "s") == without(told, "m", "f", "s")
    assert found["nullCount"]["f"] == 1
    assert not {"f", "m", "flag", "bytes", "none"} & found["minValues"].keys()
    assert (found["minValues"]["s"], found["maxValues"]["s"]) == ({"a.b": 1, "t": "q"}, {"a.b": 2, "t": "q"})
    assert found["nullCount"]["s"] == {"a.b": 1, "t": 2}


def test_columns_beyond_the_limit_have_no_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "COLUMNS_MAX", 2)
    footer = footer_of(tmp_path, pa.table({f"c{at}": [at] for at in range(5)}))
    found = json.loads(footer_statistics(footer))
    assert set(found["minValues"]) == set(found["nullCount"]) == {"c0", "c1"}


def test_only_files_with_rows_are_described_and_nothing_else_stays(tmp_path: Path) -> None:
    folder = file_folder(3, uuid.uuid4())
    (tmp_path / folder).mkdir()
    rows = pa.table({"k": [1, 2]})
    pq.write_table(rows, tmp_path / folder / "part-1.parquet")
    pq.write_table(rows.slice(0, 0), tmp_path / folder / "part-2.parquet")
    (tmp_path / folder / ".part-1.parquet.crc").write_bytes(b"x")
    store = Store(str(tmp_path), {})
    (file,) = described(store, folder)
    assert (file.path, file.rows) == (f"{folder}/part-1.parquet", 2)
    assert file.bytes == (tmp_path / file.path).stat().st_size
    assert [path.name for path in (tmp_path / folder).iterdir()] == ["part-1.parquet"]
    (tmp_path / file.path).write_bytes(b"PAR1")
    with pytest.raises(Determinate, match="can't be read back"):
        described(store, folder)
    assert described(store, file_folder(4, uuid.uuid4())) == []


def test_what_an_engine_left_behind_goes_when_its_version_is_there_without_it(tmp_path: Path) -> None:
    hand = Hand(tmp_path / "state")
    hand.create()
    used, lost, early = (file_folder(version, uuid.uuid4()) for version in (1, 1, 2))
    for folder in (used, lost, early):
        (hand.root / folder / "_temporary").mkdir(parents=True)
        (hand.root / folder / "_temporary" / "part-0.parquet").write_bytes(b"half")
        (hand.root / folder / ".part-0.parquet.crc").write_bytes(b"x")
    pq.write_table(pa.table({"k": [1], "v": ["a"]}), hand.root / used / "part-0.parquet")
    assert file_version(f"{used}/part-0.parquet") == 1
    (hand.root / used / "_temporary" / "part-0.parquet").unlink()
    (hand.root / used / "_temporary").rmdir()
    files = described(hand.table.store, used)
    assert hand.table.commit(hand.table.head(), Change("WRITE", 1, added=files)) == Committed(1)
    vacuum(hand.table.store, now_ms=10**15, kept_ms=0)
    assert {path.name for path in hand.root.iterdir() if path.name.startswith("v")} == {used, early}
    assert hand.by_delta_rs() == {1: "a"}
