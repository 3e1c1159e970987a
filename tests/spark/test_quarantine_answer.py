"""A person answers a red gate with quarantine: the rows that break an expectation are set aside, the rest is
sealed, and a replay finds the same, although the pipeline file still says `fail`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.deployed import begun
from tidemark.app.decisions import Decider, quarantine_red, request_quarantine, verdict_number
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.views import View, read
from tidemark.core.binding import Owner
from tidemark.core.ids import QUARANTINE, Txn
from tidemark.core.replay import Verdict
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.ingest import gather
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.run import replay
from tidemark.pipeline.upsert import seal_judged
from tidemark.pipeline.validate import judge_gathered

pytestmark = pytest.mark.spark

EXPECTATIONS = [
    {"type": "expect_column_values_to_be_between", "kwargs": {"column": "amount", "min_value": 0}},
    {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}},
]
ROWS = [{"id": 1, "amount": 5}, {"id": 2, "amount": -1}, {"id": 3, "amount": 7}]


def process(spark: SparkSession, root: Path) -> Deployment:
    return begun(spark, root, schema="id INT, amount INT", keys=["id"], expectations=EXPECTATIONS)


def test_rows_that_break_an_expectation_are_set_aside_and_the_rest_is_sealed_and_proven(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = process(spark, tmp_path)
    (tmp_path / "in" / "1.json").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    attempt = Attempt(Owner("run"), new_token())
    reclock(first.pipeline, attempt)
    gather(first.pipeline, attempt)
    (red,) = judge_gathered(first.pipeline, attempt)
    assert (red.gated.passed, len(red.gated.opinion.failed)) == (False, 1)

    seen = {"1": verdict_number(first, 1)}
    assert request_quarantine(first, Decider.of("ann", "refunds are booked twice"), seen) == [1]
    again = replace(attempt, token=new_token())
    (green,) = quarantine_red(process(spark, tmp_path), again)
    assert (green.gated.passed, green.gated.opinion.checked) == (True, 2)

    last = process(spark, tmp_path)
    seal_judged(last.pipeline, replace(attempt, token=new_token()))
    last.control.seals.head()
    (seal,) = last.control.seals.read(1, 2)
    assert (str(seal.decision), seal.source.count) == ("committed", 3)
    assert {shard: added.digest.count for shard, added in seal.shards.items()} == {"t": 2, QUARANTINE: 1}
    rows = {row["id"]: row["amount"] for row in read(last, last.shards[0], view=View.FRESH).collect()}
    assert rows == {1: 5, 3: 7}
    proof = Attempt(Owner("proof"), new_token())
    (finding,) = replay(process(spark, tmp_path).pipeline, proof, txn_from=Txn(1), txn_to=Txn(1))
    assert finding.verdict is Verdict.IDENTICAL
