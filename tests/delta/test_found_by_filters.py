"""Every value of every type is found through a filter, by each reader that needs no Spark: bounds in the log
never leave a file out that has it."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.support.every_value import ROWS, SCHEMA, VALUES, by_engine, by_index, fill
from tidemark.delta.head import read_head
from tidemark.delta.store import Store

WAYS = 3
CASES = [
    (name, sign, value)
    for name, (_, values) in VALUES.items()
    for value in values
    for sign in ("=", "<=", ">=")
    if sign == "=" or name not in ("yes", "raw")
]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return fill(tmp_path_factory.mktemp("every"), by_index, by_engine)


def test_the_files_have_bounds_that_can_leave_them_out(tables: tuple[Path, Path]) -> None:
    table, twin = (read_head(Store(str(path), {})) for path in tables)
    assert len(table.files) == WAYS * ROWS
    assert all("minValues" in file.add["stats"] for file in table.files.values())
    assert not any("minValues" in file.add["stats"] for file in twin.files.values())


def test_polars_finds_every_value(tables: tuple[Path, Path]) -> None:
    found = [by_polars(path) for path in tables]
    assert found[0] == found[1]
    assert_found(found[0])


def test_delta_rs_finds_every_value(tables: tuple[Path, Path]) -> None:
    found = [by_delta_rs(path) for path in tables]
    assert found[0] == found[1]
    assert_found(found[0])


def assert_found(found: list[set[int]]) -> None:
    """Once in each of the ways; that the twins agree would be so too if nothing was found at all."""
    for (name, sign, value), keys in zip(CASES, found, strict=True):
        if sign != "=" or value == 0:
            continue  # 0.0 and -0.0 are one value for some readers, and two for others.
        values = enumerate(VALUES[name][1])
        at = [row for row, one in values if one == value or (is_nan(one) and is_nan(value))]
        assert keys == {way * ROWS + row for way in range(WAYS) for row in at}, (name, value)


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def by_polars(path: Path) -> list[set[int]]:
    frame = pl.scan_delta(str(path))
    kinds = frame.collect_schema()
    found = []
    for name, sign, value in CASES:
        column, literal = pl.col(name), pl.lit(value, dtype=kinds[name])
        compared = {"=": column == literal, "<=": column <= literal, ">=": column >= literal}[sign]
        found.append(set(frame.filter(compared).select("k").collect()["k"]))
    return found


def by_delta_rs(path: Path) -> list[set[int]]:
    builder = QueryBuilder().register("t", DeltaTable(str(path)))
    found = []
    for name, sign, value in CASES:
        query = f"select k from t where {name} {sign} {literal(name, value)}"
        found.append(set(pa.table(builder.execute(query).read_all())["k"].to_pylist()))
    return found


def literal(name: str, value: Any) -> str:
    """A value as delta-rs's SQL has it."""
    kind = SCHEMA.field(name).type
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}'"
    text = value.isoformat() if isinstance(value, dt.date) else repr(value)
    text = format(value, "f") if isinstance(value, Decimal) else text
    arrow = {
        pa.int8(): "Int8", pa.int16(): "Int16", pa.int32(): "Int32", pa.int64(): "Int64",
        pa.float32(): "Float32", pa.float64(): "Float64", pa.date32(): "Date32",
        pa.timestamp("us", "UTC"): 'Timestamp(Microsecond, Some("UTC"))',
        pa.timestamp("us"): "Timestamp(Microsecond, None)",
    }.get(kind) or f"Decimal128({kind.precision}, {kind.scale})"  # fmt: skip
    return f"arrow_cast('{text}', '{arrow}')"
