"""What a shard may get from its records, beyond what its file declares."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.config import PipelineConfig
from tidemark.config.load import new_columns, with_new_columns
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId

T = ShardId("t")


def config(**shard: Any) -> PipelineConfig:
    given = {"name": "t", "schema": "id INT", "keys": ["id"], "on_schema_change": "add_columns", **shard}
    source = {"type": "files", "path": "in", "format": "json"}
    return PipelineConfig.model_validate(
        {"name": "p", "envelope": "debezium", "source": source, "shards": [given]}
    )


def test_new_columns_are_nullable_and_stand_at_the_end() -> None:
    wider = with_new_columns(config(), {T: {"id": "BIGINT", "age": "INT", "at": "ARRAY<DATE>"}})
    assert wider.shards[0].columns.ddl == "`id` INT, `age` INT, `at` ARRAY<DATE>"
    assert new_columns(config(), wider) == {T: {"age": "INT", "at": "ARRAY<DATE>"}}
    assert PipelineConfig.from_canonical_json(wider.canonical_json()) == wider
    assert with_new_columns(wider, {T: {"age": "STRING"}}) is wider, "a column keeps its type"


def test_only_growing_shards_get_columns_and_none_gets_its_error_column_twice() -> None:
    for unchanged in (config(on_schema_change="missing_as_null"), config(on_error="inline")):
        assert with_new_columns(unchanged, {T: {"id": "INT", "_error": "STRING"}}) is unchanged
    assert with_new_columns(config(), {ShardId("other"): {"age": "INT"}}) == config()


@pytest.mark.parametrize(
    ("columns", "fact"),
    [
        ({"ID": "INT"}, "'ID' of shard t: column 'ID' is declared twice"),
        ({"_txn": "INT"}, "'_txn' of shard t: column name '_txn' is reserved"),
        ({"a b": "INT"}, "'a b' of shard t: 'a b' is not a column name"),
        ({"s": "STRUCT<`x y`:INT>"}, "'s' of shard t: 'x y' is not a column name"),
        (
            {"price": "DECIMAL(12,2)"},
            "'price' of shard t: column 'price' is a DECIMAL, and debezium.decimal_handling_mode",
        ),
    ],
)
def test_what_no_column_can_be_is_refused_by_name(columns: dict[str, str], fact: str) -> None:
    with pytest.raises(InvalidUsage) as refused:
        with_new_columns(config(), {T: columns})
    assert refused.value.fact.startswith(f"new columns of the records can't be added, {fact}")
    assert "rename the column at the producer" in refused.value.hint
