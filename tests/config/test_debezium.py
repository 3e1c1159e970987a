"""What a connector's settings may be, and where one is needed."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tidemark.config import PipelineConfig

KAFKA = {"type": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["t"]}
SHARD = {"name": "t", "schema": "id INT, price DECIMAL(10,2)", "keys": ["id"]}
PRECISE = {"decimal_handling_mode": "precise"}


def made(**settings: Any) -> PipelineConfig:
    given = {"name": "p", "source": KAFKA, "envelope": "debezium", "shards": [SHARD], **settings}
    return PipelineConfig.model_validate(given)


def facts(**settings: Any) -> list[str]:
    with pytest.raises(ValidationError) as refused:
        made(**settings)
    return [flaw.fact for error in refused.value.errors() for flaw in error.get("ctx", {}).get("flaws", ())]


def test_the_settings_go_into_the_recorded_configuration() -> None:
    config = made(debezium={**PRECISE, "time_precision_mode": "connect"})
    again = PipelineConfig.from_canonical_json(config.canonical_json())
    assert again.debezium == config.debezium
    assert again.debezium is not None
    assert again.debezium.time_precision_mode == "connect"


@pytest.mark.parametrize("schema", ["price DECIMAL(10,2)", "o STRUCT<l: ARRAY<DECIMAL(5,1)>>"])
def test_a_decimal_needs_the_mode_that_it_is_written_in(schema: str) -> None:
    """Invariant 14: a text may be the number, or the bytes of another."""
    name = schema.split(maxsplit=1)[0]
    fact = f"column {name!r} is a DECIMAL, and debezium.decimal_handling_mode is not set"
    assert facts(shards=[{**SHARD, "schema": f"id INT, {schema}"}]) == [fact]
    table = {"match": "public.t", "schema": f"id INT, {schema}", "keys": ["id"]}
    assert facts(shards=[], tables={"include": ["public.t"], "overrides": [table]}) == [fact]


def test_where_no_decimal_is_read_from_json_nothing_need_be_said() -> None:
    assert made(shards=[{**SHARD, "schema": "id INT, at TIMESTAMP"}]).debezium is None
    record = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    assert made(source={**KAFKA, "format": "avro", "value_schema": record}).debezium is None
    assert made(envelope="upsert").debezium is None


def test_settings_of_a_connector_are_refused_where_there_is_none() -> None:
    assert facts(envelope="upsert", debezium=PRECISE) == ["debezium settings with envelope: upsert"]
    captured = {"type": "postgres", "postgres_conn_id": "db", "slot": "s", "publication": "p"}
    shard = {**SHARD, "route": {"table": "public.t"}}
    fact = "changes captured from a database do not come from a connector"
    assert facts(source=captured, shards=[shard], debezium=PRECISE) == [fact]
