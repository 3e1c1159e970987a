"""What a real Debezium sent, fed through a broker: every table becomes what the database held.

The records were written by `make debezium`, under the settings that their file begins with. What the database
held at the end is written out here by hand, from the statements of `tests/debezium/workload.py`.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.debezium.recorded import FOLDER, read
from tests.support.kafka import Broker
from tests.support.kafka_pipeline import QUARANTINE, Rig, Row
from tidemark.core.ids import ShardId
from tidemark.core.replay import Verdict
from tidemark.spark.failures import Refused

pytestmark = [pytest.mark.spark, pytest.mark.server]

ITEMS = (
    "id INT NOT NULL, title STRING NOT NULL, price DECIMAL(12,2), big {big}, free {free}, at TIMESTAMP_NTZ,"
    " at_ms TIMESTAMP_NTZ, zoned TIMESTAMP, day DATE, clock STRING, doc STRING, ref STRING, raw BINARY,"
    " tags ARRAY<STRING>, counts ARRAY<INT>, sums ARRAY<DECIMAL(5,2)>, days ARRAY<DATE>,"
    " stamps ARRAY<TIMESTAMP_NTZ>, moments ARRAY<TIMESTAMP>, flag BOOLEAN, amount DOUBLE, long BIGINT,"
    " small SMALLINT"
)
PARTS = "item INT, code STRING, day DATE, name STRING NOT NULL, weight DECIMAL(12,2)"
NOTES = (
    "id INT, title STRING, body STRING, doc STRING, raw BINARY, tags ARRAY<STRING>, refs ARRAY<STRING>,"
    " flags ARRAY<BOOLEAN>, shorts ARRAY<SMALLINT>, counts ARRAY<INT>, longs ARRAY<BIGINT>,"
    " floats ARRAY<FLOAT>, doubles ARRAY<DOUBLE>, sums ARRAY<DECIMAL(5,2)>, days ARRAY<DATE>,"
    " stamps ARRAY<TIMESTAMP_NTZ>, moments ARRAY<TIMESTAMP>"
)
ODDS = "id INT, at TIMESTAMP_NTZ, zoned TIMESTAMP, day DATE"
KEYS = {"items": ["id"], "parts": ["item", "code", "day"], "notes": ["id"], "odds": ["id"]}

CODE = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
LEAP = date(2024, 2, 29)
AT = datetime.fromisoformat("2018-06-20T15:13:16.945104")
AT_MS = datetime.fromisoformat("2018-06-20T15:13:16.945")
ZONED = datetime(2020, 2, 29, 4, 30, 0, 123456, tzinfo=UTC)
FULL: Row = {
    "price": Decimal("1234.56"), "big": Decimal("1234567890123456789012345678.0123456789"),
    "free": Decimal("0.000001"), "at": AT, "at_ms": AT_MS, "zoned": ZONED, "day": LEAP,
    "clock": "23:59:59.999999", "doc": '{"k": [1, null, "x"], "n": 1.50}', "ref": CODE,
    "raw": b"\x00\xff\x10", "tags": ["a,b", None, "", 'q"\\'], "counts": [1, None, -3],
    "sums": [Decimal("1.10"), None, Decimal("-999.99")], "days": [LEAP, None, date(1969, 12, 31)],
    "stamps": [AT], "moments": [ZONED], "flag": False, "amount": 0.1, "long": 2**63 - 1, "small": -32768,
}  # fmt: skip
NEGATIVE: Row = {
    "title": 'tab\t "quoted" \\ line\nä€😀', "price": Decimal("-0.01"),
    "big": Decimal("-9999999999999999999999999999.9999999999"), "free": Decimal("-1e20"),
    "at": datetime.fromisoformat("1969-12-31T23:59:59.999999"),
    "at_ms": datetime.fromisoformat("1969-12-31T23:59:59.999"), "zoned": datetime(1900, 1, 1, tzinfo=UTC),
    "day": date(1582, 10, 4), "clock": "00:00:00", "doc": '"text"',
    "ref": "ffffffff-ffff-ffff-ffff-ffffffffffff", "raw": b"", "tags": [], "counts": [],
    "sums": [Decimal("0.00")], "days": [], "stamps": [], "moments": [], "flag": True,
    "amount": -2.2250738585072014e-308, "long": -(2**63), "small": 32767,
}  # fmt: skip
ITEMS_HELD: dict[int, Row] = {
    1: {
        **FULL, "title": "first", "price": Decimal("99.90"), "doc": "[]", "tags": None,
        "at": datetime.fromisoformat("2024-12-31T23:59:59.5"),
    },
    2: {**FULL, "title": "second again"},
    3: {**dict.fromkeys(FULL), "title": "third"},
    4: NEGATIVE,
    6: {**FULL, "title": "sixth", "price": Decimal(0)},
    50: {**FULL, "title": "fiftieth"},
}  # fmt: skip
PARTS_HELD = {
    (1, CODE, LEAP): {"name": "lid", "weight": Decimal("12.34")},
    (6, CODE, date(9999, 12, 31)): {"name": "rim", "weight": Decimal("-0.01")},
}
BIG: Row = {
    "body": "b" * 300, "doc": '{"k": "%s"}' % ("j" * 300), "raw": b"\xab" * 300, "tags": ["t"] * 40,
    "refs": [CODE] * 15, "flags": [True] * 250, "shorts": [5] * 80, "counts": [7] * 50, "longs": [8] * 30,
    "floats": [0.5] * 50, "doubles": [0.1] * 30, "sums": [Decimal("1.25")] * 20, "days": [LEAP] * 50,
    "stamps": [AT_MS] * 30, "moments": [ZONED] * 30,
}  # fmt: skip
# The updates of these rows don't have all that the rows hold, so the rows stay as they were inserted.
NOTES_KEPT = {number: {"title": title, **BIG} for number, title in ((1, "one"), (2, "two"), (3, "three"))}
LAST = datetime.fromisoformat("9999-12-31T23:59:59.999999")
FIRST = datetime.fromisoformat("0001-01-01T00:00:00")
ODDS_HELD: dict[int, Row] = {
    1: {"at": datetime(2024, 2, 29), "zoned": datetime(2024, 2, 29, tzinfo=UTC), "day": LEAP},  # noqa: DTZ001
    7: {"at": FIRST, "zoned": FIRST.replace(tzinfo=UTC), "day": FIRST.date()},
    8: {"at": LAST, "zoned": LAST.replace(tzinfo=UTC), "day": LAST.date()},
}


NULLS = "value.converter.replace.null.with.default"
CLOCKS = {
    "adaptive": ("86399999999", "0"), "microseconds": ("86399999999", "0"),
    "nanoseconds": ("86399999999000", "0"), "connect": ("86399999", "0"),
    "isostring": ("23:59:59.999999Z", "00:00:00Z"),
}  # fmt: skip
SCALED = {
    Decimal("0.000001"): '{"scale":6,"value":"AQ=="}',
    Decimal("-1e20"): '{"scale":0,"value":"+pQ4odKc8AAA"}',
}


class Replayed:
    """A recording in topics of its own, and the pipeline that reads its tables."""

    def __init__(self, spark: SparkSession, root: Path, broker: Broker, name: str, *tables: str) -> None:
        recording = read(FOLDER / f"{name}.jsonl")
        self.settings = recording.settings
        self.decimals = self.settings.get("decimal.handling.mode", "precise")
        self.times = self.settings.get("time.precision.mode", "adaptive")
        schemas = {"items": ITEMS.format(**self.wide()), "parts": PARTS, "notes": NOTES, "odds": ODDS}
        shards = [
            {
                "name": table,
                "schema": schemas[table],
                "keys": KEYS[table],
                "route": {"table": f"shop.{table}"},
            }
            for table in tables
        ]
        topics = recording.send(broker, *(f"shop.{table}" for table in tables))
        given = {"envelope": "debezium", "shards": shards}
        given["debezium"] = {"decimal_handling_mode": self.decimals, "time_precision_mode": self.times}
        self.rig = Rig(spark, root, broker, *topics, name=name, **given)
        self.rig.run()

    def wide(self) -> dict[str, str]:
        """Numerics that a mode does not bring as decimals: digits are lost, or each has its own scale."""
        wide = {"big": "DECIMAL(38,10)", "free": "DECIMAL(38,10)"}
        others = {"precise": {**wide, "free": "STRING"}, "double": dict.fromkeys(wide, "DOUBLE")}
        return others.get(self.decimals, wide)

    def table(self, name: str) -> dict[Any, Row]:
        shard = self.rig.config.shard(ShardId(name))
        names = [column.name for column in shard.columns if column.name not in shard.keys]
        found = self.rig.table(ShardId(name))
        return {key: dict(zip(names, values, strict=True)) for key, values in found.items()}

    def bad(self, table: str) -> dict[int, str]:
        """The ids in quarantine, with the reasons."""
        rows = [row for row in self.rig.rows(QUARANTINE) if row["_shard"] == table]
        return {json.loads(row["_key"])["id"]: row["_reason"] for row in rows}

    def told(self, held: dict[int, Row]) -> dict[int, Row]:
        """What the database held, as the connector's settings leave it."""
        return {
            key: {name: self._told(name, value) for name, value in row.items()} for key, row in held.items()
        }

    def _told(self, name: str, value: Any) -> Any:
        if value is None:
            # By default the converter writes a column's default where the row has NULL.
            return True if name == "flag" and NULLS not in self.settings else None
        if name in ("big", "free") and self.decimals == "double":
            return float(value)
        if name == "free" and self.decimals == "precise":
            return SCALED[value]
        if name == "clock":
            return CLOCKS[self.times][value == "00:00:00"]
        if self.times == "connect" and name in ("at", "stamps"):
            return _cut(value) if name == "at" else [_cut(one) for one in value]
        return value


def _cut(at: datetime) -> datetime:
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


NAMES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


@pytest.mark.parametrize("name", NAMES)
def test_what_debezium_sent_becomes_what_the_database_held(
    spark: SparkSession, broker: Broker, tmp_path: Path, name: str
) -> None:
    """Scenario E4: a snapshot, insertions, updates, deletions with their tombstones, changed keys, and a
    transaction over both tables."""
    replayed = Replayed(spark, tmp_path, broker, name, "items", "parts")
    assert replayed.rig.rows(QUARANTINE) == []
    assert replayed.table("items") == replayed.told(ITEMS_HELD)
    assert replayed.table("parts") == PARTS_HELD
    if name == "defaults":
        assert [finding.verdict for finding in replayed.rig.replayed()] == [Verdict.IDENTICAL]


SENT = ": an update does not send it; ALTER TABLE … REPLICA IDENTITY FULL has it sent"
UNSENT = {1: "tags", 2: "counts", 3: "flags", 40: "flags"}


@pytest.mark.parametrize("name", ["defaults", "string_isostring"])
def test_regression_a_big_array_that_was_not_sent_is_never_taken_for_a_value(
    spark: SparkSession, broker: Broker, tmp_path: Path, name: str
) -> None:
    """It comes as the numbers of a text's characters, as a uuid, or as NULL; the record is bad, and the row
    keeps its value. A time that no table has is bad too, and does not hold a deletion up."""
    replayed = Replayed(spark, tmp_path, broker, name, "notes", "odds")
    assert replayed.bad("notes") == {
        key: f"column '{column}' is not in the record{SENT}" for key, column in UNSENT.items()
    }
    assert replayed.table("notes") == NOTES_KEPT
    assert sorted(replayed.bad("odds")) == [2, 3, 4, 5, 6, 9]
    assert replayed.table("odds") == ODDS_HELD


@pytest.mark.parametrize("name", ["defaults", "string_isostring"])
def test_d7_a_truncate_as_debezium_sends_it_is_refused_by_its_place(
    spark: SparkSession, broker: Broker, tmp_path: Path, name: str
) -> None:
    recording = read(FOLDER / f"{name}.jsonl")
    (topic,) = recording.send(broker, "shop.scraps")
    shard = {"schema": "id INT, name STRING", "keys": ["id"]}
    rig = Rig(spark, tmp_path, broker, topic, envelope="debezium", shard=shard)
    place = rf"refused at {topic}-\d, offset \d: a truncate of shop\.scraps can't be applied"
    with pytest.raises(Refused, match=place):
        rig.run()
    assert rig.seals() == []
