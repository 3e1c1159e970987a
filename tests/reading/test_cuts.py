"""Several tables at one transaction by other engines, with the examples of docs/reading.md as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import QueryBuilder
from pyspark.sql import SparkSession

from tests.reading.test_together import ITEMS, ORDERS, arrive, opened, tables_at
from tests.support.deployed import attempt
from tidemark.app.publish import publish_now, run_and_publish

pytestmark = pytest.mark.spark

DOCUMENT = Path(__file__).parents[2] / "docs" / "reading.md"


def examples() -> dict[str, str]:
    """The Python examples of the section, by the engine that their first line imports."""
    section = DOCUMENT.read_text().split("### By any other engine", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    return {re.split(r"[ .]", example)[1]: example for example in found}


def test_every_engine_reads_all_tables_at_one_transaction_as_the_examples_say(
    spark: SparkSession, tmp_path: Path
) -> None:
    works = opened(spark, tmp_path)
    for txn in (1, 2, 3):
        arrive(tmp_path, txn)
        run_and_publish(works, attempt())
    # The orders follow every transaction, the items every second one: at 3 they have not met.
    written = examples()
    assert set(written) == {"pyspark", "polars", "deltalake"}
    for engine, example in written.items():
        names: dict[str, Any] = {"spark": spark}
        exec(example.replace("<warehouse>", str(tmp_path / "wh")), names)
        got = [_rows(engine, names[shard]) for shard in (ORDERS, ITEMS)]
        assert tuple(got) == tables_at(2), engine
    publish_now(works, attempt(), works.shards)
    names = {"spark": spark}
    exec(written["polars"].replace("<warehouse>", str(tmp_path / "wh")), names)
    assert tuple(_rows("polars", names[shard]) for shard in (ORDERS, ITEMS)) == tables_at(3)


def _rows(engine: str, found: Any) -> set[tuple[Any, ...]]:
    if engine == "pyspark":
        return {tuple(row) for row in found.collect()}
    if engine == "polars":
        return set(found.rows())
    rows = QueryBuilder().register("t", found).execute("SELECT * FROM t").read_all()
    return set(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))
