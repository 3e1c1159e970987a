"""`add_columns` is refused where no column could be added, and taken elsewhere; Invariant 14."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tidemark.config import ConfigInvalid, PipelineConfig, load_pipeline
from tidemark.core.ids import ShardId

SHARD: dict[str, Any] = {"name": "t", "schema": "id INT", "keys": ["id"]}
TABLE: dict[str, Any] = {**SHARD, "route": {"table": "public.t"}}
FILES = {"type": "files", "path": "in"}
KAFKA = {"type": "kafka", "kafka_config_id": "k", "topics": ["t"]}
POSTGRES = {"type": "postgres", "postgres_conn_id": "db", "slot": "p", "publication": "p"}


def settings(source: dict[str, Any], shard: dict[str, Any], policy: str) -> dict[str, Any]:
    envelope = "debezium" if "route" in shard else "upsert"
    shards = [{**shard, "on_schema_change": policy}]
    return {"name": "p", "envelope": envelope, "source": source, "shards": shards}


def load(folder: Path, pipeline: dict[str, Any]) -> PipelineConfig:
    (folder / "p.yaml").write_text(yaml.safe_dump(pipeline))
    return load_pipeline(folder / "p.yaml", root=folder)


@pytest.mark.parametrize(
    ("source", "shard"),
    [
        ({**FILES, "format": "json"}, SHARD),
        ({**FILES, "format": "csv"}, SHARD),
        (KAFKA, SHARD),
        (POSTGRES, TABLE),
    ],
)
def test_regression_add_columns_is_refused_by_name_where_it_adds_none(
    tmp_path: Path, source: dict[str, Any], shard: dict[str, Any]
) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load(tmp_path, settings(source, shard, "add_columns"))
    (problem,) = refused.value.problems
    assert problem.path == "shards[0].on_schema_change"
    assert "add_columns needs records that carry the types of new columns" in problem.fact
    assert "missing_as_null" in problem.hint
    for policy in ("fail", "missing_as_null"):
        assert load(tmp_path, settings(source, shard, policy)).shards[0].on_schema_change == policy


@pytest.mark.parametrize(
    ("source", "shard"),
    [
        ({**FILES, "format": "parquet"}, SHARD),
        ({**FILES, "format": "json"}, TABLE),
        (KAFKA, TABLE),
        ({**KAFKA, "format": "avro", "value_schema": "registry"}, SHARD),
        ({**KAFKA, "format": "avro", "value_schema": "registry"}, TABLE),
    ],
)
def test_add_columns_is_taken_where_records_tell_their_types(
    tmp_path: Path, source: dict[str, Any], shard: dict[str, Any]
) -> None:
    config = load(tmp_path, settings(source, shard, "add_columns"))
    assert config.grows(config.shards[0])
    assert config.shapes[ShardId("t")].grows
    assert not load(tmp_path, settings(source, shard, "missing_as_null")).shapes[ShardId("t")].grows


def test_a_recorded_configuration_that_has_it_is_still_replayed(tmp_path: Path) -> None:
    """P10."""
    config = load(tmp_path, settings({**FILES, "format": "json"}, SHARD, "missing_as_null"))
    text = config.canonical_json().replace("missing_as_null", "add_columns")
    assert PipelineConfig.from_canonical_json(text).shards[0].on_schema_change == "add_columns"
