"""A shop's pipeline on real tables: its settings, its input, what its tables must hold, and its steps.

What the tables must hold is worked out by hand from the files that land.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tidemark.app import maintenance
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.maintenance import Terms
from tidemark.app.views import View, read
from tidemark.config import PipelineConfig
from tidemark.core.binding import Owner
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.publish import Published
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.leases import Leases
from tidemark.pipeline.maintain import compact, reclaim
from tidemark.pipeline.publish import publish
from tidemark.pipeline.run import replay, run

SHARD = ShardId("items")
FED = 5
PUBLISHED = 4
KEYS = 40


def config_at(root: Path) -> PipelineConfig:
    (root / "in").mkdir(parents=True, exist_ok=True)
    shard = {
        "name": SHARD, "schema": "id BIGINT NOT NULL, note STRING, version INT", "keys": ["id"],
        "sequence_by": "version", "apply_as_deletes": "op = 'D'", "publish": "manual",
    }  # fmt: skip
    source = {"type": "files", "path": "in", "format": "json", "settle_seconds": 0}
    return PipelineConfig.model_validate(
        {
            "name": "shop",
            "source": source,
            "shards": [shard],
            "warehouse": "wh",
            "transaction": {"max_files": 1},
        }
    ).at(root)


def land(root: Path, number: int) -> None:
    """File n: every key with n % 3 == key % 3 changes, one in five goes; and one record is broken."""
    lines = []
    for key in range(number % 3, KEYS, 3):
        gone = (key + number) % 5 == 0
        lines.append(
            json.dumps({"id": key, "version": number, **({"op": "D"} if gone else {"note": f"n{number}"})})
        )
    lines.append("{broken")
    (root / "in" / f"{number:04}.json").write_text("".join(f"{line}\n" for line in lines))


def expected(files: int) -> list[tuple[Any, ...]]:
    """The current rows after so many files, by hand."""
    rows: dict[int, tuple[Any, ...]] = {}
    for number in range(1, files + 1):
        for key in range(number % 3, KEYS, 3):
            if (key + number) % 5 == 0:
                rows.pop(key, None)
            else:
                rows[key] = (key, f"n{number}", number)
    return sorted(rows.values(), key=repr)


class Shop:
    """The pipeline below a folder."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        self.deployment = Deployment(config_at(root), lambda: spark)

    def run(self) -> None:
        run(self.deployment.pipeline, self.attempt())

    def attempt(self) -> Attempt:
        token = new_token()
        return Attempt(Owner(token), token)

    def publish(self) -> Any:
        return publish(self.deployment.control, self.deployment.state(), SHARD, token=new_token())

    def rows(self, view: View, as_of: int | None = None) -> list[tuple[Any, ...]]:
        found = read(self.deployment, SHARD, view=view, as_of=as_of).collect()
        return sorted((tuple(row) for row in found), key=repr)

    def verdict(self, txn: int = 2) -> str:
        pipeline = self.deployment.pipeline
        (found,) = replay(pipeline, self.attempt(), txn_from=Txn(txn), txn_to=Txn(txn))
        return str(found.verdict)

    def maintain(self, *, window: int = 1, kept_ms: int = 10**18) -> maintenance.MaintenanceReport:
        terms = Terms(time.time_ns() // 1_000_000, Txn(window), Txn(window), kept_ms)
        return maintenance.maintain(self.deployment, WriterToken(new_token()), terms)

    def compact(self) -> None:
        control = self.deployment.control
        compact(control, control.log(SHARD), self.deployment.plane().log_rows, SHARD, token=new_token())

    def reclaim(self) -> None:
        """As long after as nobody can have looked before."""
        control = self.deployment.control
        reclaim(control, control.log(SHARD), SHARD, Leases(control.leases), now_ms=10**15, kept_ms=0)

    @property
    def folder(self) -> Path:
        return self.root / "wh" / "shop" / SHARD


def feed(spark: SparkSession, root: Path) -> None:
    """Five transactions; published at 2 and at 4, so that there is a tail and a state with hidden rows."""
    shop = Shop(spark, root)
    for number in range(1, FED + 1):
        land(root, number)
        if number in (2, PUBLISHED, FED):
            shop.run()
        if number in (2, PUBLISHED):
            assert isinstance(shop.publish(), Published)
