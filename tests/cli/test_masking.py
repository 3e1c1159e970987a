"""No command shows what a masked column held: a canary is put wherever a record may hide one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tidemark.app.bad_records import masked_record
from tidemark.cli.app import app
from tidemark.config import KafkaSource, PipelineConfig

CANARY = "canary-4711"
KAFKA = KafkaSource.model_validate({"type": "kafka", "topics": ["t"], "bootstrap_servers": "b:9092"})
PIN = {"name": "a", "schema": "id BIGINT, pin STRING, n INT", "keys": ["id"], "masked": ["pin"]}


def config(*shards: dict[str, Any], **settings: Any) -> PipelineConfig:
    source = {"type": "files", "path": "in", "format": "json", **settings.pop("source", {})}
    return PipelineConfig.model_validate(
        {"name": "p", "source": source, "warehouse": "wh", "shards": list(shards), **settings}
    )


def record(raw: Any, *, shard: str | None = "a", key: Any = None, reason: str = "?") -> dict[str, Any]:
    text = raw if isinstance(raw, str) else json.dumps(raw)
    return {"_txn": 1, "_shard": shard, "_key": key, "_raw": text, "_reason": reason}


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ({"id": 1, "pin": CANARY, "n": "x"}, {"id": 1, "pin": "***", "n": "x"}),
        ({"id": 1, "PIN": CANARY}, {"id": 1, "PIN": "***"}),
        ({"pin": {"deep": CANARY}, "n": [{"pin": [CANARY]}]}, {"pin": "***", "n": [{"pin": "***"}]}),
        (f'{{"pin": "{CANARY}", "id": 1, "pin": "{CANARY}"}}', {"pin": "***", "id": 1}),
    ],
)
def test_fields_of_masked_columns_are_masked_and_the_others_are_shown(raw: Any, shown: Any) -> None:
    assert json.loads(masked_record(record(raw), config(PIN))["_raw"]) == shown


@pytest.mark.parametrize("raw", [CANARY, f'"{CANARY}"', f'["{CANARY}"]', f'{{"pin":"{CANARY}', "[" * 99_999])
def test_what_is_no_object_is_masked_as_a_whole(raw: str) -> None:
    assert masked_record(record(raw), config(PIN))["_raw"] == "***"
    csv = config(PIN, source={"format": "csv"})
    assert masked_record(record({"x": CANARY}), csv)["_raw"] == "***"


def test_both_rows_of_a_debezium_change_are_masked() -> None:
    row = {"id": 1, "pin": CANARY}
    change = {"before": row, "after": row, "op": "u"}
    works = config(PIN, envelope="debezium")
    hidden = {"id": 1, "pin": "***"}
    expected = {"before": hidden, "after": hidden, "op": "u"}
    for raw, shown in ((change, expected), ({"payload": change}, {"payload": expected})):
        assert json.loads(masked_record(record(raw), works)["_raw"]) == shown
    as_text = masked_record(record({"before": None, "after": json.dumps(row)}), works)
    assert json.loads(as_text["_raw"]) == {"before": None, "after": "***"}


def test_key_value_and_headers_of_a_topics_record_are_masked_each() -> None:
    works = config(PIN).model_copy(update={"source": KAFKA})
    row = json.dumps({"id": 1, "pin": CANARY})
    headers = [{"key": "pin", "value": CANARY}, {"key": "trace", "value": "t"}]
    shown = masked_record(record({"key": row, "value": row, "headers": headers}), works)
    hidden = '{"id":1,"pin":"***"}'
    assert json.loads(shown["_raw"]) == {
        "key": hidden,
        "value": hidden,
        "headers": [{"key": "pin", "value": "***"}, {"key": "trace", "value": "t"}],
    }
    for raw in ({"key": CANARY}, {"value": f"base64:{CANARY}"}):
        (part,) = raw
        assert json.loads(masked_record(record(raw), works)["_raw"]) == {part: "***"}
    for raw in (CANARY, f'["{CANARY}"]'):
        assert masked_record(record(raw), works)["_raw"] == "***"


def test_keys_and_reasons_are_masked_too() -> None:
    keyed = config({**PIN, "keys": ["id", "pin"], "sequence_by": "n", "masked": ["pin", "n"]})
    key = json.dumps({"id": 1, "pin": CANARY})
    shown = masked_record(record({}, key=key, reason=f"column 'pin' is INT, found {CANARY}\n x"), keyed)
    assert (json.loads(shown["_key"]), shown["_reason"]) == (
        {"id": 1, "pin": "***"},
        "column 'pin' is INT, found ***",
    )
    late = "too late: sequence 4711 is more than 5 below the watermark 4800"
    assert masked_record(record({}, reason=late), keyed)["_reason"] == "too late: ***"
    other = record({}, key='{"id":1}', reason="column 'id' is BIGINT, found x")
    assert masked_record(other, keyed) == other


def test_a_record_that_no_shard_took_loses_what_any_shard_masks() -> None:
    plain = {"name": "b", "schema": "id BIGINT, pin STRING", "keys": ["id"]}
    routes = [{"route": {"column": "side", "equals": side}} for side in "ab"]
    works = config({**PIN, **routes[0]}, {**plain, **routes[1]})
    raw = {"id": 1, "pin": CANARY}
    for shard in (None, "gone"):
        assert json.loads(masked_record(record(raw, shard=shard), works)["_raw"])["pin"] == "***"
    of_another = record(raw, shard="b")
    assert masked_record(of_another, works) == of_another


def test_what_the_overrides_of_tables_mask_is_masked() -> None:
    columns = {"schema": "id BIGINT, pin STRING", "keys": ["id"]}
    tables = {"include": ["shop.a"], "overrides": [{"match": "shop.*", **columns, "masked": ["pin"]}]}
    works = config(envelope="debezium", tables=tables)
    shown = masked_record(record({"after": {"id": 1, "pin": CANARY}}, shard="shop__a"), works)
    assert json.loads(shown["_raw"]) == {"after": {"id": 1, "pin": "***"}}


PIPELINE = """
name: p
source: {type: files, path: in, format: json, settle_seconds: 0}
warehouse: wh
shards:
  - name: a
    schema: "id BIGINT, pin STRING, n INT"
    keys: [id]
    masked: [pin]
"""


@pytest.mark.spark
def test_the_command_shows_no_canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("pipelines", "in"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pipelines/p.yaml").write_text(PIPELINE)
    broken = f'{{"id": 2, "pin": "{CANARY}'
    lines = [
        json.dumps({"id": 1, "pin": CANARY, "n": "x"}),
        broken,
        f'{{"id": 3, "pin": "{CANARY}", "n": 1}}',
    ]
    (tmp_path / "in/1.json").write_text("\n".join(lines) + "\n")
    assert CliRunner().invoke(app, ["run", "p"]).exit_code == 0
    seen = {}
    for words in (["quarantine", "p"], ["quarantine", "p", "--open"], ["read", "p", "a"]):
        for more in ([], ["--json"]):
            result = CliRunner().invoke(app, [*words, *more])
            assert result.exit_code == 0, result.output
            assert "canary" not in result.output
            assert "***" in result.output
            seen[words[-1]] = result.output
    assert [one["_raw"] for one in json.loads(seen["p"])] == ['{"id":1,"pin":"***","n":"x"}', "***"]
    (still,) = json.loads(seen["--open"])
    assert (still["_key"], still["_reason"]) == ('{"id":1}', "column 'n' is INT, found 'x'")

    # A replay that differs shows what differs, and a masked column only by its name.
    (part,) = (tmp_path / "wh/p/a/log").rglob("part-*.parquet")
    table = pq.read_table(part)
    (row,) = table.to_pylist()
    pq.write_table(pa.Table.from_pylist([{**row, "pin": f"{CANARY}x", "n": 2}], table.schema), part)
    for more in ([], ["--json"]):
        result = CliRunner().invoke(app, ["replay", "p", *more])
        assert (result.exit_code, "canary" in result.output) == (3, False)
        seen["replay"] = result.output
        assert "pin, n" in result.output
    (differing,) = json.loads(seen["replay"])["differing_rows"]
    assert (differing["key"], differing["values"]) == (
        {"id": "3"},
        {"pin": ["***", "***"], "n": ["1", "2"]},
    )
