"""The input of the campaign: a pipeline of two shards, and seeded files of changes for it.

There are updates, deletes and re-inserts, late records in the shard with a sequence, NULL key parts in
the one without, and three kinds of broken records.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tidemark.config import PipelineConfig

PIPELINE = "trade"
ORDERS, PARTIES = "orders", "parties"
INPUT, WAREHOUSE = "in", "wh"
FILES_PER_TRANSACTION = 2


def config_at(root: Path) -> PipelineConfig:
    """The pipeline, with its files and its warehouse below `root`."""
    (root / INPUT).mkdir(parents=True, exist_ok=True)
    return PipelineConfig.model_validate(
        {
            "name": PIPELINE,
            "source": {"type": "files", "path": INPUT, "format": "json", "settle_seconds": 0},
            "envelope": "upsert",
            "transaction": {"max_files": FILES_PER_TRANSACTION},
            "warehouse": WAREHOUSE,
            "shards": [
                {
                    "name": ORDERS,
                    "schema": "id BIGINT NOT NULL, note STRING, amount INT, version INT",
                    "keys": ["id"],
                    "sequence_by": "version",
                    "apply_as_deletes": "op = 'D'",
                    "route": {"column": "kind", "equals": "order"},
                },
                {
                    "name": PARTIES,
                    "schema": "code STRING, region STRING, name STRING",
                    "keys": ["code", "region"],
                    "apply_as_deletes": "op = 'D'",
                    "route": {"column": "kind", "equals": "party"},
                    "publish": {"every_transactions": 6},
                },
            ],
        }
    ).at(root)


def order(rng: random.Random) -> dict[str, Any]:
    key, version = rng.randrange(20), rng.randrange(60)
    if rng.random() < 0.25:
        return {"kind": "order", "id": key, "version": version, "op": "D"}
    note = rng.choice(["", "é", "paid", None])
    return {"kind": "order", "id": key, "note": note, "amount": rng.randrange(5), "version": version}


def party(rng: random.Random) -> dict[str, Any]:
    key = {"kind": "party", "code": f"c{rng.randrange(8)}", "region": rng.choice(["eu", "us", None])}
    return {**key, "op": "D"} if rng.random() < 0.25 else {**key, "name": f"n{rng.randrange(4)}"}


def broken(rng: random.Random) -> str:
    wrong_type = {"kind": "order", "id": f"x{rng.randrange(9)}", "note": "", "amount": 1, "version": 1}
    no_shard = {"kind": "nobody", "id": rng.randrange(9)}
    return rng.choice(["{not json", json.dumps(wrong_type), json.dumps(no_shard)])


def write_file(root: Path, number: int, *, seed: int, records: int = 30) -> Path:
    """File `number` of a seed's stream; the same arguments give the same bytes."""
    rng = random.Random(f"{seed}/{number}")
    lines = []
    for _ in range(records):
        kind = rng.random()
        if kind < 0.06:
            lines.append(broken(rng))
        else:
            lines.append(json.dumps(order(rng) if kind < 0.55 else party(rng), ensure_ascii=False))
    path = root / INPUT / f"{number:06}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # A file lands whole: under another name first, then by a rename.
    hidden = path.with_suffix(".tmp")
    hidden.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    hidden.rename(path)
    return path
