"""The steps as tasks, on real tables: several open transactions staged before any of them is sealed."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidemark.app import deployment as assemble
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.views import View, read
from tidemark.config import PipelineConfig
from tidemark.core.binding import Owner
from tidemark.core.errors import Determinate
from tidemark.core.ids import Txn
from tidemark.pipeline.context import Attempt, watermark_below
from tidemark.pipeline.decide import skip
from tidemark.pipeline.ingest import gather
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.run import run
from tidemark.pipeline.upsert import seal_judged
from tidemark.pipeline.validate import judge_gathered
from tidemark.ports.control import Control

pytestmark = pytest.mark.spark

# Sequences by file; with a lateness of 10, what counts as too late depends on the files before.
FILES = (
    [("a", 1, 100), ("b", 1, 95)],
    [("a", 2, 130), ("c", 1, 91)],
    [("b", 2, 121), ("c", 2, 119), ("d", 1, 140)],
)


def deployment(spark: SparkSession, root: Path) -> Deployment:
    config = PipelineConfig.model_validate(
        {
            "name": "late",
            "source": {"type": "files", "path": "in", "format": "json", "settle_seconds": 0},
            "warehouse": "wh",
            "transaction": {"max_files": 1},
            "shards": [
                {
                    "name": "t",
                    "schema": "k STRING NOT NULL, v INT, s BIGINT",
                    "keys": ["k"],
                    "sequence_by": "s",
                    "lateness": 10,
                }
            ],
        }
    ).at(root)
    (root / "in").mkdir(parents=True)
    for number, records in enumerate(FILES):
        lines = [json.dumps({"k": k, "v": v, "s": s}) for k, v, s in records]
        (root / "in" / f"{number}.json").write_text("\n".join(lines) + "\n")
    return Deployment(config, lambda: spark)


def attempt() -> Attempt:
    return Attempt(Owner("run"), new_token())


def test_u11_lateness_is_the_same_for_transactions_that_were_staged_ahead(
    spark: SparkSession, tmp_path: Path
) -> None:
    ahead, plain = deployment(spark, tmp_path / "ahead"), deployment(spark, tmp_path / "plain")
    run(plain.pipeline, attempt())
    reclock(ahead.pipeline, attempt())
    assert [one.txn for one in gather(ahead.pipeline, attempt())] == [1, 2, 3]
    assert all(one.gated.passed for one in judge_gathered(ahead.pipeline, attempt()))
    seal_judged(ahead.pipeline, attempt())
    expected = [(seal.watermark, seal.digests) for seal in plain.control.seals.read(1, 4)]
    ahead.control.seals.head()
    assert [(seal.watermark, seal.digests) for seal in ahead.control.seals.read(1, 4)] == expected
    assert [watermark for watermark, _ in expected] == [100, 130, 140]
    rows = {row["k"]: row["v"] for row in read(ahead, ahead.shards[0], view=View.FRESH).collect()}
    # b's 121 is late by 9 and taken; c's 119 is late by 11 and set aside, like its 91 before it by 9.
    assert rows == {"a": 2, "b": 2, "c": 1, "d": 1}


def test_u11_what_was_staged_above_another_past_than_was_sealed_is_staged_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    works = deployment(spark, tmp_path)
    reclock(works.pipeline, attempt())
    gather(works.pipeline, attempt())
    judge_gathered(works.pipeline, attempt())
    skip(works.pipeline, attempt(), Txn(1), reason="poisoned")
    with pytest.raises(Determinate, match="staged with another watermark"):
        seal_judged(works.pipeline, attempt())
    cleared = Attempt(Owner("run"), new_token(), cleared=True, round=1)
    gather(works.pipeline, cleared)
    judge_gathered(works.pipeline, cleared)
    seal_judged(works.pipeline, cleared)
    assert works.control.seals.head().upper == 4


def test_regression_a_thread_that_stages_ahead_asks_no_ledger_of_another_thread(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as no record has had a sequence there is no watermark, and transactions are staged ahead."""
    works = deployment(spark, tmp_path)
    for number in range(2):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"k": "a", "v": number, "s": None}) + "\n")
    asked: list[tuple[Control, int]] = []

    def heard(control: Control, txn: Txn) -> int | None:
        asked.append((control, threading.get_ident()))
        return watermark_below(control, txn)

    monkeypatch.setattr(assemble, "watermark_below", heard)
    with ThreadPoolExecutor(1) as background:
        run(works.pipeline, attempt(), background=background)
    elsewhere = [control for control, thread in asked if thread != threading.get_ident()]
    assert len(elsewhere) == 2
    assert works.control not in elsewhere
