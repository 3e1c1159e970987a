"""Which settings decide what a record becomes in a shard."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.app.correction import settings_by_shard
from tidemark.config import PipelineConfig
from tidemark.core.binding import Configuration

SHARDS: list[dict[str, Any]] = [
    {"name": name, "schema": "id BIGINT NOT NULL, v STRING, n BIGINT", "keys": ["id"],
     "route": {"column": "v", "equals": name}}
    for name in ("a", "b")
]  # fmt: skip
SOURCE = {"type": "files", "path": "in", "format": "json"}


def found(*shards: dict[str, Any], **settings: Any) -> dict[str, str]:
    """The settings of each shard of a pipeline file."""
    declared = [{**one, **other} for one, other in zip(SHARDS, shards or ({}, {}), strict=True)]
    given = {"name": "p", "source": SOURCE, "shards": declared, **settings}
    config = PipelineConfig.model_validate(given)
    return dict(settings_by_shard(Configuration.of(config.canonical_json())))


def test_each_shard_has_its_own_settings_and_those_of_the_pipeline() -> None:
    first, second = found(), found({}, {"apply_as_deletes": "op = 'D'"})
    assert first.keys() == {"a", "b"}
    assert first["a"] == second["a"]
    assert first["b"] != second["b"]


@pytest.mark.parametrize(
    "settings",
    [
        {"generation": 1},
        {"schedule": "@daily"},
        {"retention": {"log_days": 3}},
        {"transaction": {"max_files": 7}},
        {"warehouse": "elsewhere"},
        {"alarms": {"behind": "1d"}},
    ],
    ids=lambda one: next(iter(one)),
)
def test_settings_that_make_no_other_row_do_not_count(settings: dict[str, Any]) -> None:
    assert found(**settings) == found()


@pytest.mark.parametrize(
    "shard",
    [
        {"schema": "id BIGINT NOT NULL, v STRING, n BIGINT, more STRING"},
        {"schema": "id BIGINT NOT NULL, v STRING NOT NULL, n BIGINT"},
        {"keys": ["id", "v"]},
        {"sequence_by": "n"},
        {"on_error": "fail"},
        {"on_error": "inline"},
        {"on_schema_change": "missing_as_null"},
        {"expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "v"}}]},
        {"masked": ["v"]},
        {"route": {"column": "v", "equals": "other"}},
    ],
    ids=lambda one: next(iter(one)),
)
def test_every_setting_of_a_shard_counts(shard: dict[str, Any]) -> None:
    assert found(shard, {})["a"] != found()["a"]
    assert found(shard, {})["b"] == found()["b"]


@pytest.mark.parametrize("settings", [{"envelope": "append"}, {"source": {**SOURCE, "format": "csv"}}])
def test_settings_of_the_records_count_for_all_shards(settings: dict[str, Any]) -> None:
    before, after = found(), found(**settings)
    assert not set(before.values()) & set(after.values())


def test_a_setting_that_is_not_known_counts() -> None:
    text = '{"shards": [{"name": "a", "new": 1}], "also": %d}'
    one, other = (settings_by_shard(Configuration.of(text % number)) for number in (1, 2))
    assert one != other


def test_a_shard_that_forgets_tombstones_has_none() -> None:
    assert found({"sequence_by": "n", "lateness": 5}, {}).keys() == {"b"}


def test_of_a_configuration_without_the_shard_nothing_is_known() -> None:
    assert settings_by_shard(Configuration.of("{}")).get("a") is None
