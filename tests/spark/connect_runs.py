"""A client process of scenario V1: `python -m tests.spark.connect_runs URL ROOT NAME FROM TO` lands a file
in every round from FROM up to TO and runs the pipeline below ROOT over Spark Connect. Without a round it
finishes what is open, proves every transaction, and prints the verdicts and the states' rows as JSON."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from tests.support.deployed import attempt
from tidemark.app.deployment import Deployment
from tidemark.app.publish import publish_due
from tidemark.config import PipelineConfig
from tidemark.core.ids import Txn
from tidemark.pipeline.run import replay, run
from tidemark.spark.session import connect_session

SHARDS = ("a", "b", "c")


def config_at(root: Path) -> PipelineConfig:
    shards = [
        {
            "name": name,
            "schema": "id STRING NOT NULL, t STRING, v INT",
            "keys": ["id"],
            "route": {"column": "t", "equals": name},
        }
        for name in SHARDS
    ]
    source = {"type": "files", "path": "in", "format": "json", "settle_seconds": 0}
    settings = {"name": "p", "source": source, "warehouse": "wh", "shards": shards}
    return PipelineConfig.model_validate(settings).at(root)


def land(root: Path, name: str, number: int) -> None:
    """One file: each shard gets a key of this round and the client's own key, and one record is broken."""
    records = [{"id": key, "t": t, "v": number} for t in SHARDS for key in (f"{name}-{number}", name)]
    lines = [*map(json.dumps, records), "broken"]
    hidden = root / "in" / f".{name}-{number}.json"
    hidden.write_text("".join(f"{line}\n" for line in lines))
    hidden.rename(root / "in" / f"{name}-{number}.json")


def main() -> None:
    url, folder, name, *numbers = sys.argv[1:]
    rounds = range(*map(int, numbers))
    root = Path(folder)
    (root / "in").mkdir(exist_ok=True)
    spark = connect_session(url)
    works = Deployment(config_at(root), lambda: spark)
    for number in rounds:
        land(root, name, number)
        one = attempt()
        run(works.pipeline, one)
        publish_due(works, one)
    if not rounds:
        one = attempt()
        last = run(works.pipeline, one).checkpoint
        publish_due(works, one)
        verdicts = Counter(
            finding.verdict.value for finding in replay(works.pipeline, one, txn_from=Txn(1), txn_to=last)
        )
        tables = {
            shard: sorted(
                (row.id, row.v)
                for row in spark.read.format("delta").load(f"{works.shard_uri(shard)}/state").collect()
            )
            for shard in works.shards
        }
        sys.stdout.write(json.dumps({"checkpoint": last, "verdicts": verdicts, "tables": tables}))
    works.close()
    spark.stop()


if __name__ == "__main__":
    main()
