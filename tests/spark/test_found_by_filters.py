"""Spark finds every value through a filter, in files of its own, of the index and of a compaction."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.support.every_value import ROWS, VALUES, by_index, fill
from tidemark.delta.commit import file_folder
from tidemark.delta.state import NewFile, StateTable
from tidemark.delta.state_files import described

pytestmark = pytest.mark.spark
COLUMNS = ("f64", "wide", "text", "at")
WAYS = 3


def test_spark_finds_every_value(spark: SparkSession, tmp_path: Path) -> None:
    def by_spark(table: StateTable, rows: pa.Table) -> list[NewFile]:
        folder = file_folder(table.head().version + 1, uuid4())
        spark.createDataFrame(rows).coalesce(1).write.parquet(f"{table.store.uri}/{folder}")
        return described(table.store, folder)

    table, _ = fill(tmp_path, by_index, by_spark)
    state = spark.read.format("delta").load(str(table))
    cases = [(name, row) for name in COLUMNS for row in range(len(VALUES[name][1]))]
    found: dict[tuple[str, int], set[int]] = {case: set() for case in cases}
    asked = [
        state.where(F.col(name) == literal(name, VALUES[name][1][row])).select(
            F.lit(name).alias("name"), F.lit(row).alias("row"), "k"
        )
        for name, row in cases
    ]
    for one in reduce(DataFrame.unionAll, asked).collect():
        found[one.name, one.row].add(one.k)
    for (name, row), keys in found.items():
        values = VALUES[name][1]
        same = [at for at, one in enumerate(values) if are_equal(one, values[row])]
        assert keys == {way * ROWS + at for way in range(WAYS) for at in same}, (name, values[row])


def are_equal(one: Any, other: Any) -> bool:
    return one == other or all(isinstance(value, float) and math.isnan(value) for value in (one, other))


def literal(name: str, value: Any) -> Column:
    if isinstance(value, dt.datetime):
        kind = "TIMESTAMP" if value.tzinfo is not None else "TIMESTAMP_NTZ"
        return F.expr(f"{kind} '{value.isoformat(sep=' ')}'")
    if isinstance(value, dt.date):
        return F.expr(f"DATE '{value.isoformat()}'")
    if isinstance(value, Decimal):
        return F.expr(f"CAST('{value:f}' AS DECIMAL(38, 9))")
    return F.lit(value).cast("float") if name == "f32" else F.lit(value)
