"""A whole pipeline on a folder of files, with its control tables: let records arrive, and look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tidemark.app.deployment import Deployment, new_token
from tidemark.config import PipelineConfig
from tidemark.core.binding import Owner
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.run import run


def attempt() -> Attempt:
    return Attempt(Owner(new_token()), new_token())


def begun(spark: SparkSession, root: Path, **shard: Any) -> Deployment:
    """A process of its own: nothing but the folder is shared with the last one."""
    (root / "in").mkdir(exist_ok=True)
    source = {"type": "files", "path": "in", "format": "json", "settle_seconds": 0}
    settings = {"name": "p", "source": source, "warehouse": "wh", "shards": [{"name": "t", **shard}]}
    return Deployment(PipelineConfig.model_validate(settings).at(root), lambda: spark)


def arrive(works: Deployment, *records: dict[str, Any] | str) -> None:
    """One file, one transaction."""
    folder = Path(works.config.source_location)
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    (folder / f"{len(list(folder.iterdir())):03}.json").write_text("".join(f"{line}\n" for line in lines))
    run(works.pipeline, attempt())
