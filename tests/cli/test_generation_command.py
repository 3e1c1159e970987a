"""What `tidemark generation` prints, and runs beside a proposed file. Real control tables, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.crash.generations import deploy, land, run
from tidemark.cli.app import app
from tidemark.cli.generation import _example
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn
from tidemark.core.replay import Difference


def difference(what: str, **values: tuple[str | None, str | None]) -> Difference:
    return Difference(Txn(0), ShardId("t"), {"id": "7", "of": None}, what, values)


def test_a_row_that_would_change_is_shown_by_its_key_with_the_value_now_and_then() -> None:
    assert _example(difference("only in the old generation")) == "id 7, of NULL: only in the old generation"
    changed = difference("differs", status=("new", "old"), amount=(None, "1.0"))
    assert _example(changed) == "id 7, of NULL: status old -> new, amount 1.0 -> NULL"


def test_a_run_that_fails_beside_a_proposed_file_says_whose_settings_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy may be about the pipeline file, which is not in charge."""
    monkeypatch.chdir(tmp_path)
    deploy(tmp_path, 0)
    land(tmp_path)
    run(tmp_path, "first")
    source = {"type": "files", "path": "in", "format": "json", "settle_seconds": 0}
    shard = {"name": "a", "schema": "id BIGINT NOT NULL, value STRING", "keys": ["id"]}
    settings = {"name": "tides", "generation": 1, "source": source, "warehouse": "wh", "shards": [shard]}
    Path("tides.yaml").write_text(yaml.safe_dump(settings))
    Path("in/000000.json").write_text("changed")
    result = CliRunner().invoke(app, ["run", "tides.yaml"], env={"COLUMNS": "200"})
    assert isinstance(result.exception, InvalidUsage)
    assert "generation 0 is in charge, and the file proposes 1" in result.output
