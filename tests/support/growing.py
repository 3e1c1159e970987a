"""A pipeline whose records tell the types of their columns, with real control tables and logs; no Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.deployed import attempt
from tests.support.light import SHARD, LightPlane
from tidemark.app.deployment import Deployment
from tidemark.app.publish import run_and_publish
from tidemark.config import PipelineConfig
from tidemark.core.binding import Binding
from tidemark.core.ids import WriterToken
from tidemark.core.seal import Sealed, Staged
from tidemark.core.shape import NewColumns

COLUMNS = {"id": "BIGINT", "value": "STRING"}
INT, LONG, TEXT = 7, 3_000_000_000, "old"


def kind_of(value: object) -> str:
    return "STRING" if isinstance(value, str) else "INT" if value == INT else "BIGINT"


class TypedPlane(LightPlane):
    """Records tell the types of their columns; those that the settings lack are new."""

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        (shard,) = PipelineConfig.from_canonical_json(binding.configuration.text).shards
        files = json.loads(binding.manifest)["files"]
        rows = [row for file in files for _, _, row in self._records(self._folder, file)]
        found = {name: kind_of(row[name]) for row in rows for name in row if name != "_op"}
        new = {name: kind for name, kind in found.items() if name not in shard.columns.names}
        if new:
            raise NewColumns(binding.txn, {SHARD: new})
        return super().stage(binding, token)


def settings_with(**settings: Any) -> dict[str, Any]:
    """What the pipeline's file says."""
    source = {"type": "files", "path": "in", "format": "json", "settle_seconds": 0}
    shard: dict[str, Any] = {"name": str(SHARD), "schema": "id BIGINT, value STRING", "keys": ["id"]}
    shard |= {"publish": "manual", "on_schema_change": "add_columns", **settings.pop("shard", {})}
    own = {"name": "p", "envelope": "debezium", "source": source, "warehouse": "wh"}
    return {**own, "shards": [shard], "transaction": {"max_files": 1}, **settings}


class Typed(Deployment):
    """A process of its own on a folder; it never starts Spark."""

    def __init__(self, root: Path, **settings: Any) -> None:
        config = PipelineConfig.model_validate(settings_with(**settings)).at(root)
        super().__init__(config, lambda: pytest.fail("Spark was started"))

    def plane(self) -> Any:
        return TypedPlane(Path(self.root), Path(self.config.source_location))

    def run(self, **settings: Any) -> list[int]:
        report = run_and_publish(self, attempt(), publishes=False, **settings).report
        assert all(isinstance(outcome, Sealed) for outcome in report.decided)
        return [outcome.seal.txn for outcome in report.decided if isinstance(outcome, Sealed)]

    def recorded(self) -> dict[str, str]:
        shape = self.unchecked.control.log(SHARD).shape()
        return dict(shape.columns) if shape is not None else {}

    def sealed_columns(self) -> list[str]:
        """By transaction, those that its rows were made with beyond the declared ones."""
        seals = self.control.seals
        made = [seal.configuration for seal in seals.read(1, seals.head().upper)]
        texts = [one.text if one is not None else "" for one in made]
        return [name for text in texts for name in [json.loads(text)["shards"][0]["schema"] if text else ""]]


def land(root: Path, **row: object) -> None:
    """One file, one transaction."""
    number = len(list((root / "in").iterdir()))
    (root / "in" / f"{number:03}.json").write_text(json.dumps({"id": number, "value": "v", **row}) + "\n")
