"""The story of a pipeline file that is changed and put back, with the real command.

Each change was once sealed before it was refused; whoever followed the hint got a log that can't be read,
rows folded by the wrong key, or a value that the wrong order chose.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidemark.cli.app import app
from tidemark.core.shape import Misfit

PIPELINE = """\
name: shop
warehouse: wh
source: {{type: files, path: in, format: json, settle_seconds: 0}}
shards:
  - {{name: {name}, schema: 'id INT, age {age}', keys: [{keys}]{more}}}
"""


class Shop:
    def __init__(self, folder: Path) -> None:
        self.folder, self.landed = folder, 0
        (folder / "in").mkdir()
        self.declare()

    def declare(self, *, name: str = "t", age: str = "INT", keys: str = "id", more: str = "") -> None:
        text = PIPELINE.format(name=name, age=age, keys=keys, more=more)
        (self.folder / "shop.yaml").write_text(text)

    def land(self, *rows: tuple[int, int]) -> None:
        self.landed += 1
        lines = [json.dumps({"id": key, "age": age}) + "\n" for key, age in rows]
        (self.folder / "in" / f"{self.landed}.json").write_text("".join(lines))

    def json(self, *words: str) -> Any:
        result = CliRunner().invoke(app, [*words[:1], "shop.yaml", *words[1:], "--json"])
        assert result.exit_code == 0, (words, result.output, result.exception)
        return json.loads(result.output)

    def refused(self) -> str:
        there = self.tree()
        error = CliRunner().invoke(app, ["run", "shop.yaml"]).exception
        assert isinstance(error, Misfit), error
        assert self.tree() == there, "nothing is bound, staged or sealed"
        return error.fact

    def tree(self) -> set[str]:
        """What is durable; caches are not."""
        files = [path for path in (self.folder / "wh").rglob("*") if path.is_file()]
        return {str(path) for path in files if "_index" not in path.parts}

    def rows(self) -> list[tuple[int, int]]:
        return sorted((row["id"], row["age"]) for row in self.json("read", "--view", "fresh"))


@pytest.mark.spark
@pytest.mark.slow
def test_c1_c2_c3_c4_a_file_that_is_changed_and_put_back_leaves_every_record_applied_once_and_rightly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shop = Shop(tmp_path)
    shop.land((1, 1), (2, 1))
    shop.json("run")

    shop.land((1, 2**40), (1, 9), (1, 3))
    for changed, fact in [
        ({"age": "BIGINT"}, "column 'age' is recorded as INT, and the pipeline file says BIGINT"),
        ({"more": ", sequence_by: age"}, "sequence_by is recorded as none, and the pipeline file says age"),
        ({"keys": "age"}, "keys is recorded as [id], and the pipeline file says [age]"),
        ({"name": "u"}, "shard t has rows up to transaction 1, but is not in the pipeline file"),
    ]:
        shop.declare(**changed)
        assert fact in shop.refused()
    shop.declare()
    shop.json("run")
    assert shop.rows() == [(1, 3), (2, 1)]
    (bad,) = shop.json("quarantine")
    assert "'age' is INT" in bad["_reason"]
    assert [finding["verdict"] for finding in shop.json("replay")["findings"]] == ["identical"] * 2
