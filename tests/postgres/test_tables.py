"""From a real database, through real Spark, into tables: what is read is what the database has."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal

import psycopg
import pytest
from pyspark.sql import SparkSession

from tests.postgres.kinds import FULL_ROW, TYPES, TYPES_SCHEMA
from tests.support.postgres_pipeline import ITEMS, ITEMS_SCHEMA, Rig, attempt
from tidemark.app.publish import publish_due
from tidemark.app.views import read_together
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Txn
from tidemark.core.replay import Verdict
from tidemark.pipeline.decide import skip
from tidemark.pipeline.run import replay

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


def utc(*fields: int) -> datetime:
    """A moment as Spark hands it to Python: in the local time zone, without naming it."""
    return datetime.fromtimestamp(datetime(*fields, tzinfo=UTC).timestamp())  # noqa: DTZ006


def test_values_of_every_type_come_through_without_loss_by_first_reading_and_by_change(
    rig: MakeRig, spark: SparkSession
) -> None:
    works = rig(spark, kinds=(TYPES_SCHEMA, ["id"]))
    names = [part.split()[0] for part in re.split(r",\s+", TYPES_SCHEMA.strip())]
    listed = ", ".join(names)
    one, two, three, four, five = (f"{n}0000000-0000-0000-0000-000000000000" for n in range(1, 6))
    works.ready(
        "CREATE TYPE mood AS ENUM ('calm', 'wild')", TYPES,
        f"INSERT INTO kinds ({listed}) VALUES ('{one}', {FULL_ROW})",
    )  # fmt: skip
    works.run()
    works.sql(
        f"INSERT INTO kinds ({listed}) VALUES ('{two}', {FULL_ROW})",
        f"INSERT INTO kinds (id, f8, ts) VALUES ('{three}', 'NaN', NULL)",
        f"INSERT INTO kinds (id, f4, f8) VALUES ('{four}', '-0', '-0')",
        f"INSERT INTO kinds (id, tz) VALUES ('{five}', '0044-03-15 12:00:00+00 BC')",
    )
    works.run()
    # A time before Christ is none that a TIMESTAMP has: its row is quarantined.
    first, second, empty, zeros = works.rows("kinds")
    assert first[1:] == second[1:]
    found = dict(zip(names, first, strict=True))
    assert found == {
        "id": one, "b": True, "i2": -32768, "i4": -(2**31), "i8": -(2**63),
        "f4": struct.unpack("f", struct.pack("f", 0.1))[0], "f8": 2.2250738585072014e-308,
        "n": Decimal("-1234567890123456789012345678.0123456789"), "free": f"0.{'0' * 299}1",
        "t": 'tab\t "quoted" \\ line\nä€😀', "v": "", "c": "ab ", "d": date(1, 1, 1),
        "ts": datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
        "tz": utc(2024, 3, 30, 21, 0, 0, 1), "j": '{"a":  1.50, "a": 2}', "jb": '{"k": [1, null, "x"]}',
        "raw": bytearray(b"\x00\xff\x10"), "ints": [1, None, -3], "texts": ["a,b", None, "NULL", "", 'q"\\'],
        "grid": "[[1,2],[3,4]]", "times": [utc(2024, 1, 1)], "sums": [Decimal("1.10"), None],
        "flags": [True, False, None], "span": "P1Y2M3DT4H5M6.789S", "clock": "23:59:59.999999",
        "address": "10.0.0.1/8", "mood": "wild",
    }  # fmt: skip
    assert isinstance(empty[6], float)
    assert math.isnan(empty[6])
    assert [math.copysign(1, zeros[names.index(name)]) for name in ("f4", "f8")] == [-1, -1]
    assert [value for at, value in enumerate(empty) if at not in (0, 6)] == [None] * (len(names) - 2)


def test_m11_f11_one_source_transaction_is_one_transaction_over_its_tables_and_is_let_go_whole(
    rig: MakeRig, spark: SparkSession
) -> None:
    """A 70 KB row, a row of a table that nobody takes, a row of another shard, one commit."""
    works = rig(
        spark, orders=("id INT NOT NULL, body STRING", ["id"]), lines=("id INT NOT NULL, of INT", ["id"])
    )
    works.ready(
        "CREATE TABLE orders (id int PRIMARY KEY, body text)",
        "CREATE TABLE lines (id int PRIMARY KEY, of int)", "CREATE TABLE foreigners (id int)",
    )  # fmt: skip
    works.run()
    before = works.slot()[0]
    body = "".join(chr(97 + n % 26) for n in range(70_000))
    with psycopg.connect(works.postgres.conninfo(works.database)) as db:
        db.execute("INSERT INTO orders VALUES (1, %s)", (body,))
        db.execute("INSERT INTO foreigners VALUES (1)")
        works.run()
        # The rows are in the log of the database, but their commit is not.
        assert works.rows("orders") == []
        inside = works.log_end()
        assert before <= works.slot()[0]
        db.execute("INSERT INTO lines VALUES (10, 1)")
    committed = works.log_end()
    works.run()
    assert works.rows("orders") == [(1, body)]
    assert works.rows("lines") == [(10, 1)]
    assert works.changed("orders") == works.changed("lines")
    assert len(works.changed("orders")) == 1
    assert inside < committed <= works.slot()[0]
    # The next one touches one shard only; the other is stepped over.
    works.sql("INSERT INTO lines VALUES (11, 1)")
    works.run()
    assert works.rows("lines") == [(10, 1), (11, 1)]
    assert len(works.changed("lines")) == len(works.changed("orders")) + 1
    assert works.rows("orders") == [(1, body)]


def test_rows_of_one_commit_that_name_each_other_are_never_read_torn_while_commits_flow(
    rig: MakeRig, spark: SparkSession
) -> None:
    works = rig(
        spark, orders=("id INT NOT NULL, n INT", ["id"]), lines=("id INT NOT NULL, of INT, n INT", ["id"])
    )
    works.ready(
        "CREATE TABLE orders (id int PRIMARY KEY, n int)",
        "CREATE TABLE lines (id int PRIMARY KEY, of int REFERENCES orders, n int)",
    )

    def commit(n: int) -> None:
        works.transaction(
            f"INSERT INTO orders VALUES ({n})", f"INSERT INTO lines VALUES ({n}, {n})",
            f"UPDATE orders SET n = {n}", f"UPDATE lines SET n = {n}",
        )  # fmt: skip
        works.run()

    def check() -> None:
        found = read_together(works.begun())
        orders, lines = ([tuple(row) for row in found.rows[name].collect()] for name in ("orders", "lines"))
        assert {of for _, of, _ in lines} == {key for key, _ in orders}
        assert {n for *_, n in lines} == {n for _, n in orders}
        assert len({n for _, n in orders}) == 1

    commit(1)
    with ThreadPoolExecutor(1) as pool:
        flowing = pool.submit(lambda: [commit(n) for n in (2, 3, 4)])
        while not flowing.done():
            check()
        flowing.result()
    check()
    assert works.rows("orders") == [(n, 4) for n in (1, 2, 3, 4)]


def test_u14_d6_changes_of_keys_and_unsent_values_end_as_the_database(
    rig: MakeRig, spark: SparkSession
) -> None:
    works = rig(spark, notes=("id INT NOT NULL, body STRING, n INT", ["id"]))
    works.ready(
        "CREATE TABLE notes (id int PRIMARY KEY, body text, n int)",
        "ALTER TABLE notes ALTER COLUMN body SET STORAGE EXTERNAL",
        "INSERT INTO notes VALUES (1, 'one', 10), (2, 'two', 20)",
    )
    works.run()
    big = "z" * 9_000
    with works.postgres.connect(works.database) as one, works.postgres.connect(works.database) as two:
        for db in (one, two):
            db.execute("BEGIN")
        one.execute("UPDATE notes SET body = %s, id = 11 WHERE id = 1", (big,))
        two.execute("UPDATE notes SET n = 30, id = 12 WHERE id = 2")
        one.execute("UPDATE notes SET n = 20 WHERE id = 11")
        two.execute("INSERT INTO notes VALUES (5, 'five', 50)")
        two.execute("COMMIT")
        one.execute("INSERT INTO notes VALUES (4, 'four', 40)")
        works.run()
        one.execute("COMMIT")
    works.run()
    assert works.rows("notes") == [(4, "four", 40), (5, "five", 50), (11, big, 20), (12, "two", 30)]
    works.sql("UPDATE notes SET n = n + 1 WHERE id = 11")
    works.run()
    assert works.rows("notes")[2] == (11, big, 21)
    # What was captured is what a replay reads: it is proven against the seals, and the database isn't asked.
    works.sql("DROP TABLE notes", f"SELECT pg_drop_replication_slot('{works.database}')")
    deployment = works.begun()
    last = Txn(deployment.control.bindings.head().upper - 1)
    found = replay(deployment.pipeline, attempt(), txn_from=Txn(1), txn_to=last)
    assert {finding.verdict for finding in found} == {Verdict.IDENTICAL}


def test_p12_a_bad_row_pauses_its_shard_and_the_slot_passes_its_commit(
    rig: MakeRig, spark: SparkSession
) -> None:
    works = rig(spark, orders=("id INT NOT NULL, n INT", ["id"]), lines=("id INT NOT NULL, n INT", ["id"]))
    works.ready(*[f"CREATE TABLE {name} (id int PRIMARY KEY, n int)" for name in ("orders", "lines")])
    positive = {
        "type": "expect_column_values_to_be_between", "kwargs": {"column": "n", "min_value": 0},
        "action": "pause",
    }  # fmt: skip
    [orders, lines] = json.loads(works.config().canonical_json())["shards"]
    works.settings["shards"] = [{**orders, "expectations": [positive]}, lines]
    works.run()
    works.transaction("INSERT INTO orders VALUES (1, -1)", "INSERT INTO lines VALUES (1, 1)")
    committed = works.log_end()
    works.run()
    assert (works.rows("orders"), works.rows("lines")) == ([], [(1, 1)])
    assert works.slot()[0] >= committed


def test_d7_a_truncate_is_refused_by_name_and_nothing_is_acknowledged_until_it_is_skipped(
    rig: MakeRig, spark: SparkSession
) -> None:
    works = rig(spark, items=(ITEMS_SCHEMA, ["id"]))
    works.ready(ITEMS, "INSERT INTO items VALUES (1, 'a', 1)")
    works.run()
    works.sql("TRUNCATE items", "INSERT INTO items VALUES (2, 'b', 2)")
    truncated = works.log_end()
    with pytest.raises(InvalidUsage, match=r"a truncate of public\.items can't be applied"):
        works.run()
    assert works.rows("items") == [(1, "a", Decimal("1.00"))]
    assert works.slot()[0] < truncated
    deployment = works.begun()
    skip(deployment.pipeline, attempt(), Txn(deployment.control.seals.head().upper), reason="truncated")
    works.run()
    assert works.rows("items") == [(1, "a", Decimal("1.00")), (2, "b", Decimal("2.00"))]
    assert works.slot()[0] > truncated


def test_d7_a_truncate_is_applied_to_rows_in_log_and_state_whatever_the_types_of_their_key(
    rig: MakeRig, spark: SparkSession
) -> None:
    keys = ["a", "b", "c", "d", "e"]
    schema = "a TIMESTAMP NOT NULL, b DECIMAL(6,2) NOT NULL, c DATE NOT NULL, d BINARY NOT NULL, e STRING"
    works = rig(spark, odd=(f"{schema}, n INT", keys))
    works.ready(
        "CREATE TABLE odd (a timestamptz, b numeric(6,2), c date, d bytea, e uuid, n int,"
        " PRIMARY KEY (a, b, c, d, e))",
        "INSERT INTO odd VALUES ('2024-03-31 02:30:00.000001+05:30', 1.50, '0001-01-01', '\\x00ff', "
        "'10000000-0000-0000-0000-000000000000', 1)",
    )
    applied = {"source": {**works.config().source.model_dump(), "on_truncate": "apply"}}
    works.run(**applied)
    assert len(publish_due(works.begun(**applied), attempt())) == 1
    works.sql("INSERT INTO odd SELECT a, 2, c, d, e, 2 FROM odd")
    works.run(**applied)
    works.sql("TRUNCATE odd", "INSERT INTO odd VALUES ('epoch', 3, 'epoch', '', gen_random_uuid(), 3)")
    works.run(**applied)
    [row] = works.rows("odd", **applied)
    assert (row[0], row[1], row[-1]) == (utc(1970, 1, 1), Decimal("3.00"), 3)
