"""A Kafka source in a pipeline file: what is taken, and how each mistake is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark.cli.app import app
from tidemark.config import ConfigInvalid, KafkaSource, PipelineConfig, load_pipeline

ROOT = Path(__file__).resolve().parents[2]
GOOD = """\
name: p
source:
  type: kafka
  bootstrap_servers: b1:9092, b2:9092
  topics: [shop.orders]
shards:
  - {name: t, schema: 'a INT, b INT', keys: [a]}
"""


RECORD = "{type: record, name: R, fields: [{name: a, type: int}]}"
ENDLESS = "{type: record, name: R, namespace: x, fields: [{name: a, type: {type: array, items: x.R}}]}"
AVRO = "format: avro\n  "


def loaded(folder: Path, *changes: tuple[str, str]) -> PipelineConfig:
    text = GOOD
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    file = folder / "p.yaml"
    file.write_text(text)
    return load_pipeline(file)


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ("latest", "latest"),
        ("{timestamp: '2026-01-31T00:00:00Z'}", {"timestamp": "2026-01-31T00:00:00Z"}),
        ("{offsets: {shop.orders-0: 100}}", {"offsets": {"shop.orders-0": 100}}),
    ],
)
def test_a_source_is_recorded_as_it_was_written(tmp_path: Path, written: str, start: object) -> None:
    config = loaded(tmp_path, ("topics:", f"start: {written}\n  topics:"))
    again = PipelineConfig.from_canonical_json(config.canonical_json())
    assert again.canonical_json() == config.canonical_json()
    assert isinstance(again.source, KafkaSource)
    assert (again.source.start, again.source.bootstrap_servers) == (start, "b1:9092,b2:9092")


@pytest.mark.parametrize(
    ("change", "path", "fact"),
    [
        (("type: kafka", "type: kafak"), "source.type", "'kafak' is not 'files', 'kafka' or 'postgres'"),
        (("type: kafka\n  ", ""), "source.type", "a required key is missing: add type"),
        (
            ("topics: [shop.orders]", "topic: x"),
            "source.topic",
            "unknown key 'topic': did you mean 'topics'?",
        ),
        (("topics: [shop.orders]", "topics: []"), "source.topics", "at least 1 item"),
        (("[shop.orders]", "[shop.*]"), "source.topics[0]", "'shop.*' is not a topic"),
        (("[shop.orders]", "[a, a]"), "source.topics[1]", "topic 'a' is listed twice"),
        (("b1:9092, b2:9092", "u:hidden@b1:9092"), "source.bootstrap_servers", "can't be read"),
        (("topics:", "kafka_config_id: k\n  topics:"), "source", "either kafka_config_id"),
        (("topics:", "start: soon\n  topics:"), "source.start", "'soon' is not a start"),
        (("topics:", "start: {offsets: {x-0: 1}}\n  topics:"), "source.start", "'x-0' is not a partition of"),
        (
            ("topics:", "start: {offsets: {shop.orders: 1}}\n  topics:"),
            "source.start",
            "not a topic-partition",
        ),
        (("topics:", "start: {offsets: {shop.orders-0: -1}}\n  topics:"), "source.start", "not an offset"),
        (("topics:", "start: {timestamp: '2026-01-31'}\n  topics:"), "source.start", "has no time zone"),
        (("keys: [a]", "keys: [a, b]"), None, ""),
        (("topics:", "format: arvo\n  topics:"), "source.format", "'arvo' is not 'json' or 'avro'"),
        (("topics:", "format: avro\n  topics:"), "source.format", "format: avro needs value_schema"),
        (("topics:", f"value_schema: {RECORD}\n  topics:"), "source.value_schema", "with format: json"),
        (
            ("topics:", AVRO + "value_schema: string\n  topics:"),
            "source.value_schema",
            "a value has to be a row",
        ),
        (("topics:", AVRO + "value_schema: a.avsc\n  topics:"), "source.value_schema", "can't be read, no"),
        (("topics:", AVRO + "value_schema: /a.avsc\n  topics:"), "source.value_schema", "is not relative"),
        (("topics:", AVRO + "value_schema: {7: ../a}\n  topics:"), "source.value_schema.7", "contains"),
        (
            ("topics:", AVRO + f"value_schema: {RECORD.replace('int', 'itn')}\n  topics:"),
            "source.value_schema",
            "'itn' is not an Avro type",
        ),
        (
            ("topics:", AVRO + f"value_schema: {ENDLESS}\n  topics:"),
            "source.value_schema",
            "the schema refers to itself",
        ),
        (
            ("topics:", AVRO + "value_schema: {type: record, fields: []}\n  topics:"),
            "source.value_schema",
            'the schema can\'t be used: "name" is a required field',
        ),
        (
            ("topics:", AVRO + f"value_schema: {{1: {RECORD}, 01: {RECORD}}}\n  topics:"),
            "source.value_schema",
            "a schema id is repeated",
        ),
        (
            ("topics:", AVRO + "value_schema: registry\n  topics:"),
            "source.value_schema",
            "value_schema: registry needs kafka_config_id",
        ),
        (("topics:", "headers: {h: trace}\n  topics:"), "source.headers", "no shard has the column 'h'"),
        (("topics:", "headers: {b: trace}\n  topics:"), "source.headers", "column 'b' is not a STRING"),
        (("topics:", "headers: {a: trace}\n  topics:"), "source.headers", "column 'a' is a key"),
    ],
)
def test_a_mistake_is_named_at_its_place(
    tmp_path: Path, change: tuple[str, str], path: str | None, fact: str
) -> None:
    """Invariant 14."""
    if path is None:
        assert loaded(tmp_path, change)
        return
    with pytest.raises(ConfigInvalid) as found:
        loaded(tmp_path, change)
    assert any(problem.path.startswith(path) for problem in found.value.problems)
    assert fact in str(found.value)
    assert "hidden" not in str(found.value)


def test_a_string_key_needs_one_key_column(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="a string is one key column, but shard 't' has 2"):
        loaded(tmp_path, ("keys: [a]", "keys: [a, b]"), ("topics:", "key_format: string\n  topics:"))


def test_schemas_in_files_are_recorded_as_what_they_said(tmp_path: Path) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "int"]}]}
    (tmp_path / "r.avsc").write_text(json.dumps(schema, indent=2))
    text = AVRO + f"value_schema: {{12: r.avsc, 7: {RECORD}}}\n  key_format: avro\n  key_schema: long\n  "
    config = loaded(tmp_path, ("topics:", text + "topics:"))
    (tmp_path / "r.avsc").unlink()
    again = PipelineConfig.from_canonical_json(config.canonical_json())
    assert again.canonical_json() == config.canonical_json()
    assert isinstance(again.source, KafkaSource)
    assert again.source.value_schema is not None
    assert again.source.value_schema.ids == (7, 12)
    assert json.loads(again.source.value_schema.texts[1]) == schema
    assert again.source.has_single_key
    with pytest.raises(ConfigInvalid, match="a single value is one key column, but shard 't' has 2"):
        loaded(
            tmp_path,
            ("topics:", "key_format: avro\n  key_schema: long\n  topics:"),
            ("keys: [a]", "keys: [a, b]"),
        )


def test_check_says_what_the_example_reads() -> None:
    shown = CliRunner().invoke(app, ["check", str(ROOT / "include/pipelines/payments.yaml")])
    assert shown.exit_code == 0, shown.output
    told = " ".join(shown.output.split())
    for text in (
        "shop.payments",
        "with string keys",
        "from earliest on",
        "up to 500,000 records",
        "kafka_default",
    ):
        assert text in told


def test_regression_limits_that_a_topic_does_not_know_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        loaded(tmp_path, ("shards:", "transaction:\n  max_files: 10000\n  max_bytes: 5\nshards:"))
    assert [(problem.path, problem.line) for problem in caught.value.problems] == [
        ("transaction.max_files", 7),
        ("transaction.max_bytes", 8),
    ]
    assert all("max_records" in problem.hint for problem in caught.value.problems)
    config = loaded(tmp_path, ("shards:", "transaction: {max_records: 5}\nshards:"))
    recorded = config.canonical_json().replace('"max_files":10000', '"max_files":7')
    assert PipelineConfig.from_canonical_json(recorded).transaction.max_files == 7
