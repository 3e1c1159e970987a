"""`tidemark watermark` shows the watermark and sets it back, on real control tables, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidemark.app.workspace import open_deployment
from tidemark.cli.app import app
from tidemark.core.checksum import Digest
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.seal import Decision, Seal
from tidemark.pipeline.upsert import put_seal

PIPELINE = """\
name: shop
warehouse: wh
source: {type: files, path: in, format: json}
shards:
  - {name: t, schema: 'id INT, at TIMESTAMP', keys: [id], sequence_by: at, lateness: 60}
"""
FAR = 4_070_908_800_000_000


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "shop.yaml").write_text(PIPELINE)


def told(*words: str) -> Any:
    result = CliRunner().invoke(app, ["watermark", "shop.yaml", *words, "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.output)


def test_the_watermark_is_shown_and_set_back_for_a_reason_that_the_journal_keeps() -> None:
    assert told() == {"shard": "t", "watermark": None, "shown": None, "from_txn": None}
    pipeline = open_deployment("shop.yaml", None).pipeline
    put_seal(pipeline, Seal(Txn(1), WriterToken("w"), 0, Decision.COMMITTED, Digest(), watermark=FAR))
    assert told()["shown"] == "2099-01-01 00:00:00"
    back = told("--to", "2026-01-31 12:00", "--reason", "a device with a wrong clock")
    assert (back["shown"], back["from_txn"]) == ("2026-01-31 12:00:00", 2)
    assert told()["shown"] == "2026-01-31 12:00:00"
    journal = CliRunner().invoke(app, ["journal", "shop.yaml", "--json"]).output
    assert "a device with a wrong clock" in journal
    said = CliRunner().invoke(app, ["watermark", "shop.yaml"]).output
    assert said == "the watermark of shard t is 2026-01-31 12:00:00\n"


def test_a_pipeline_without_a_lateness_has_none(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(PIPELINE.replace(", lateness: 60", ""))
    error = CliRunner().invoke(app, ["watermark", "shop.yaml"]).exception
    assert isinstance(error, InvalidUsage)
    assert "no shard of pipeline 'shop' declares a lateness" in str(error)
