"""A history that has lost its newest commits, brought forward with real Spark (scenario W2)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidemark.app import decisions
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.views import View, read
from tidemark.config import load_pipeline
from tidemark.core.binding import Owner
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import ShardId, Txn
from tidemark.core.replay import Verdict
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.publish import publish
from tidemark.pipeline.run import replay, run

pytestmark = pytest.mark.spark

SHARD = ShardId("t")
PIPELINE = """\
name: p
warehouse: wh
source: {type: files, path: in, format: json, settle_seconds: 0}
shards:
  - {name: t, schema: 'id INT, age INT', keys: [id]}
"""


class Works:
    def __init__(self, root: Path, spark: SparkSession) -> None:
        self.root, self._spark = root, spark
        (root / "in").mkdir()
        (root / "p.yaml").write_text(PIPELINE)
        self.config = load_pipeline(root / "p.yaml").at(root)

    def opened(self) -> Deployment:
        return Deployment(self.config, lambda: self._spark)

    def run(self, number: int, *rows: tuple[int, int]) -> None:
        """One transaction with these rows, published."""
        lines = [json.dumps({"id": key, "age": age}) + "\n" for key, age in rows]
        (self.root / "in" / f"{number}.json").write_text("".join(lines))
        works = self.opened()
        run(works.pipeline, Attempt(Owner(f"run-{number}"), new_token()))
        publish(works.control, works.state(), SHARD, token=new_token())

    def newest(self, table: str) -> Path:
        return max((self.root / "wh" / "p" / table / "_delta_log").glob("*.json"))

    def recover(self) -> decisions.Report:
        return decisions.recover(self.config, self.opened, Attempt(Owner("recover"), new_token()))

    def rows(self, view: View) -> list[tuple[int, int]]:
        found = read(self.opened(), SHARD, view=view).select("id", "age").collect()
        return sorted((row.id, row.age) for row in found)

    def verdicts(self) -> list[Verdict]:
        works = self.opened()
        last = Txn(works.control.seals.head().upper - 1)
        attempt = Attempt(Owner("proof"), new_token())
        return [one.verdict for one in replay(works.pipeline, attempt, txn_from=Txn(1), txn_to=last)]


def test_w2_lost_seals_are_read_again_and_lost_bindings_are_named(
    tmp_path: Path, spark: SparkSession
) -> None:
    works = Works(tmp_path, spark)
    works.run(1, (1, 1), (2, 1))
    works.run(2, (2, 2), (3, 2))
    works.newest("_control/history").write_bytes(b"")
    with pytest.raises(InvariantViolation, match="is lost: it is empty"):
        works.run(3, (3, 3), (4, 3))
    done = works.recover()
    assert ([entry.table for entry in done.entries], done.read_again, done.lost) == (
        ["_control/history"],
        (2,),
        {},
    )
    # What was sealed again, the epoch, and the binding of transaction 2, which other tables name.
    for _ in range(3):
        works.newest("_control/history").unlink()
    done = works.recover()
    works.run(3, (3, 3), (4, 3))
    wanted = [(1, 1), (2, 2), (3, 3), (4, 3)]
    assert works.rows(View.STATE) == works.rows(View.FRESH) == wanted
    assert list(done.lost) == [2]
    assert "t has 2 rows of it" in done.lost[Txn(2)]
    assert works.verdicts() == [Verdict.IDENTICAL, Verdict.LOST, Verdict.IDENTICAL]
