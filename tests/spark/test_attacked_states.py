"""Whatever is appended, published, lost, switched and rewritten: a state is the fold of its log.

The settings are drawn too: every type of sequence, a change feed, deletion vectors. `tests/delta` does the
same without Spark, with deaths between any two steps.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.support.state import SHARD, Row, StateRig, gone, ordered
from tidemark.pipeline import publish as step
from tidemark.spark.state import SparkStatePlane
from tidemark.spark.state_table import StateSpecs

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.sweep]

LONG = "x" * 1_000_000
SEQUENCES: dict[str, list[Any]] = {
    "BIGINT": [-(1 << 63), -1, 0, 7, (1 << 63) - 1],
    "INT": [-5, 0, 1, 2, 3],
    "DATE": [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(2026, 1, 1), date(9999, 12, 31)],
    "TIMESTAMP": [datetime(1900 + 50 * n, 1, 1, 0, 0, 0, n, tzinfo=UTC) for n in range(5)],
    "TIMESTAMP_NTZ": [datetime(1900 + 50 * n, 1, 1, 0, 0, 0, n) for n in range(5)],  # noqa: DTZ001
    "DECIMAL(38,2)": [Decimal(n) / 100 for n in (-(10**37), -1, 0, 99, 10**37)],
    "STRING": ["", "10", "9", "é", "\U0001f600"],
}
KEYS: st.SearchStrategy[tuple[Any, ...]] = st.tuples(
    st.sampled_from(["x", "y", "z", "", None, LONG]), st.sampled_from([0, 1, None])
)
RECORDS = st.lists(
    st.tuples(KEYS, st.sampled_from(["1", "2", "", None]), st.booleans(), st.integers(0, 4)),
    min_size=1, max_size=6, unique_by=lambda record: record[0],
)  # fmt: skip
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), RECORDS),
        st.tuples(
            st.sampled_from(
                ["publish", "publish", "lose the index", "OPTIMIZE", "REORG", "vectors", "feed", "rebuild"]
            ),
            st.none(),
        ),
    ),
    min_size=4, max_size=12,
)  # fmt: skip


@dataclass
class Attacked:
    """A shard, and what its records say in plain Python."""

    rig: StateRig
    sequence: str | None
    appended: list[tuple[tuple[Any, ...], Any, int, Row | None]] = field(default_factory=list)
    published: int = 0

    def append(self, records: list[tuple[tuple[Any, ...], Any, bool, int]]) -> None:
        rows: list[Row] = []
        for key, value, deletes, at in records:
            order = (SEQUENCES[self.sequence][at],) if self.sequence else ()
            row = (*key, value, *order)
            rows.append(gone(*key, *order) if deletes else row)
            self.appended.append((key, order, self.rig.txn + 1, None if deletes else row))
        self.rig.append(*rows)

    def fold(self, upper: int) -> list[Row]:
        last: dict[tuple[Any, ...], tuple[Any, int, Row | None]] = {}
        for key, order, txn, row in self.appended:
            if txn <= upper and (key not in last or (order, txn) >= last[key][:2]):
                last[key] = (order, txn, row)
        return [row for _, _, row in last.values() if row is not None]

    def publish(self) -> None:
        before = self.fold(self.published)
        made = self.rig.publish()
        after = self.fold(self.rig.txn)
        if hasattr(made, "version") and self.published and self.rig.change_data_feed:
            self.check_feed(made.version, before, after)
        self.published = self.rig.txn
        self.check()

    def check_feed(self, version: int, before: list[Row], after: list[Row]) -> None:
        """The feed's changes lead from one state to the next, and a row that stays is no change."""
        told = Counter(map(seen, self.rig.changes(version)))
        there, now = Counter(map(seen, before)), Counter(map(seen, after))
        assert told == Counter({("-", *row): n for row, n in (there - now).items()}) + Counter(
            {("+", *row): n for row, n in (now - there).items()}
        )

    def check(self) -> None:
        assert ordered(map(seen, self.rig.state())) == ordered(map(seen, self.fold(self.published)))
        step.verify_state(self.rig.control, self.rig.plane, SHARD)

    def switch(self, name: str) -> None:
        """As a person does it with Spark, while nothing is published."""
        there = self.rig.spark.sql(f"SHOW TBLPROPERTIES delta.`{self.rig.spec.state}`").collect()
        is_on = dict(map(tuple, there)).get(f"delta.{name}") == "true"
        value = str(not is_on).lower()
        self.rig.spark.sql(
            f"ALTER TABLE delta.`{self.rig.spec.state}` SET TBLPROPERTIES ('delta.{name}' = '{value}')"
        )


def seen(row: Row) -> Row:
    """The same text for the same row, whatever has read it; long keys by their ends."""
    return tuple(
        one.replace(tzinfo=None).isoformat() if isinstance(one, datetime)
        else f"{one[:1]}{len(one)}" if isinstance(one, str) and len(one) > 1000
        else one
        for one in row
    )  # fmt: skip


@pytest.mark.parametrize("sequence", [None, *SEQUENCES])
@given(steps=STEPS, feed=st.booleans(), vectors=st.booleans(), says_keys=st.booleans())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_state_is_the_fold_of_its_log_whatever_its_settings_are(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    sequence: str | None,
    steps: list[tuple[str, Any]],
    feed: bool,
    vectors: bool,
    says_keys: bool,
) -> None:
    root = tmp_path_factory.mktemp("attacked")
    rig = StateRig(
        spark, root, ddl="a STRING, b BIGINT, v STRING" + (f", s {sequence}" if sequence else ""),
        keys=("a", "b"), sequence_by="s" if sequence else None, change_data_feed=feed,
        deletion_vectors=vectors, says_keys=says_keys,
    )  # fmt: skip
    log = Attacked(rig, sequence)
    last = [((key, 0), "last", False, 4) for key in ("x", "y")]
    for what, records in [*steps, ("append", last), ("publish", None)]:
        if what == "append":
            log.append(records)
            if log.published:
                assert ordered(map(seen, rig.fresh())) == ordered(map(seen, log.fold(rig.txn)))
        elif what == "publish" and rig.txn:
            log.publish()
        elif what == "lose the index":
            shutil.rmtree(Path(rig.spec.uri) / "_index", ignore_errors=True)
            rig.plane = SparkStatePlane(spark, StateSpecs("p", {SHARD: rig.spec}))
        elif what == "rebuild" and log.published:
            rig.rebuild()
            log.published = rig.txn
            log.check()
        elif what in ("vectors", "feed") and log.published:
            log.switch({"vectors": "enableDeletionVectors", "feed": "enableChangeDataFeed"}[what])
            rig.change_data_feed = rig.change_data_feed and what != "feed"
        elif what in ("OPTIMIZE", "REORG") and log.published:
            purge = " APPLY (PURGE)" if what == "REORG" else ""
            rig.spark.sql(f"{what}{' TABLE' if purge else ''} delta.`{rig.spec.state}`{purge}")
            log.check()
    shutil.rmtree(root, ignore_errors=True)
