"""From a real database, through real Spark, into tables: what is read is what the database has."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from tests.postgres.rig import ITEMS, ITEMS_SCHEMA, Rig

pytestmark = [pytest.mark.server, pytest.mark.spark, pytest.mark.slow]
MakeRig = Callable[..., Rig]


def test_rows_that_were_there_and_changes_after_them_arrive_once(rig: MakeRig, spark: SparkSession) -> None:
    works = rig(spark, items=(ITEMS_SCHEMA, ["id"]))
    works.ready(ITEMS, "INSERT INTO items VALUES (1, 'a', 1.5), (2, 'b', NULL)")
    works.sql("UPDATE items SET name = 'b2' WHERE id = 2")
    report = works.run()
    assert report.checkpoint >= 1
    assert works.rows("items") == [(1, "a", Decimal("1.50")), (2, "b2", None)]
    works.sql(
        "INSERT INTO items VALUES (3, 'c', 3)", "DELETE FROM items WHERE id = 1", "UPDATE items SET price = 7"
    )
    works.run()
    assert works.rows("items") == [(2, "b2", Decimal("7.00")), (3, "c", Decimal("7.00"))]
