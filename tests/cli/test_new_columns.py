"""`check` tells which columns came with records, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.support.growing import INT, Typed, land, settings_with
from tidemark.cli.app import app


def test_check_tells_the_columns_that_came_with_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    (tmp_path / "in").mkdir()
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump(settings_with()))

    def told() -> list[str]:
        result = CliRunner().invoke(app, ["check", str(file), "--json"])
        assert result.exit_code == 0, result.output
        (pipeline,) = json.loads(result.output)["pipelines"]
        return list(pipeline["compared"])

    land(tmp_path)
    assert Typed(tmp_path).run() == [1]
    assert told() == []
    land(tmp_path, age=INT)
    assert Typed(tmp_path).run() == [2]
    assert told() == ["shard points has columns that came with its records: age INT"]
    changed = settings_with(shard={"schema": "id BIGINT, value STRING, age INT"})
    file.write_text(yaml.safe_dump(changed))
    assert told() == []
