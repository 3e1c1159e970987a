"""A Kafka source in a pipeline file: what is taken, and how each mistake is told."""

from __future__ import annotations

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
        (("topics:", "kafka_config_id: k\n  topics:"), "source", "and not both"),
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
        (("topics:", "format: avro\n  topics:"), "source.format", "'avro' is not 'json'"),
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
    with pytest.raises(ConfigInvalid, match="a string is one key column, and shard 't' has 2"):
        loaded(tmp_path, ("keys: [a]", "keys: [a, b]"), ("topics:", "key_format: string\n  topics:"))


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
