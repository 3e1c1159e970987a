"""The command as a person uses it, on a real Spark and real files: one pipeline from its first day on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import tidemark
from tidemark.cli.app import app
from tidemark.core.errors import TidemarkError

pytestmark = pytest.mark.spark


class Shell:
    """Runs commands in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(app, list(words))

    def json(self, *words: str) -> Any:
        result = self.run(*words, "--json")
        assert result.exit_code == 0, (words, result.output, result.exception)
        return json.loads(result.output)

    def refused(self, *words: str) -> str:
        result = self.run(*words)
        assert isinstance(result.exception, TidemarkError), (words, result.output)
        return str(result.exception)

    def tree(self, below: str) -> dict[str, int]:
        root = self.folder / below
        return {str(p.relative_to(root)): p.stat().st_size for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path)


def no_spark(*args: object, **kwargs: object) -> None:
    raise AssertionError("Spark was started")


def test_a_pipeline_from_its_first_day_on(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [shell.run(word, "customers").exit_code for word in ("init", "check")] == [0, 0]

    first = shell.json("run", "customers", "--run-id", "monday")
    seal = first["report"]["decided"][0]["seal"]
    assert first["report"]["checkpoint"] == 1
    assert (seal["source"]["count"], seal["shards"]["customers"]["digest"]["count"]) == (6, 3)
    assert seal["shards"]["quarantine"]["digest"]["count"] == 1

    rows = shell.json("read", "customers", "customers")
    assert [(row["id"], row["name"], row["city"], row["version"]) for row in rows] == [
        (1, "Ada", "London", 1),
        (2, "Emmy", "Göttingen", 2),
    ]
    assert shell.json("read", "customers", "customers", "--view", "state") == rows
    assert [row["_op"] for row in shell.json("read", "customers", "customers", "--view", "log")] == list(
        "UUD"
    )
    assert shell.json("read", "customers", "customers", "--as-of", "0") == []

    # A replay proves, and writes nothing but its verdict.
    before = shell.tree(".tidemark/warehouse/customers/customers")
    assert [f["verdict"] for f in shell.json("replay", "customers")["findings"]] == ["identical"]
    assert shell.tree(".tidemark/warehouse/customers/customers") == before

    lost = next((shell.folder / ".tidemark/warehouse/customers/customers/log").rglob("part-*.parquet"))
    kept = lost.read_bytes()
    lost.write_bytes(kept[: len(kept) // 2])
    assert "replay customers --from 1 --to 1 --mode repair" in shell.run("replay", "customers").output
    repaired = shell.json("replay", "customers", "--mode", "repair")
    assert [path.endswith(lost.name) for _, _, path in repaired["restored"]] == [True]
    assert lost.read_bytes() == kept

    with monkeypatch.context() as patched:
        patched.setattr("tidemark.spark.session.build_session", no_spark)
        again = shell.json("run", "customers", "--run-id", "monday")
        assert (again["report"]["decided"], again["published"]) == ([], {})
        looked = shell.json("status", "customers")
        assert (looked["bound"], looked["sealed"], looked["checkpoint"], looked["open"]) == (1, 1, 1, [])
        first_shard = looked["shards"][0]
        assert (first_shard["shard"], first_shard["published"]) == ("customers", 1)
        assert [(one["verdict"], one["deletes"]) for one in shell.json("txns", "customers")] == [
            ("identical", {"customers": 1})
        ]
        assert shell.json("show", "customers", "1")["binding"]["owner"]["run_id"] == "monday"
        bad = tidemark.quarantine("customers")
        assert [(r["_offset"], r["_ordinal"], r["_reason"], r["place"]) for r in bad] == [
            (1, 2, "column 'id' is BIGINT, found 'four'", "file '0002.json', line 3")
        ]
        assert "0002.json" in shell.run("show", "customers", "1").output
        told = {
            words[0]: words[1:]
            for words in map(str.split, shell.run("status", "customers").output.splitlines())
        }
        assert (told["customers"], told["quarantine"]) == (["1", "1", "0"], ["1", "-"]), "it has no state"

    # Its key could not be read: nobody's error.
    assert [shell.json("quarantine", "customers", *words) for words in ((), ("--open",))] == [bad, []]

    # Input that the policy refuses stops before anything is written; a person may pass over it.
    (shell.folder / "data/customers/0003.json").write_text(
        '{"id": 9, "name": "x", "city": "y", "version": 1, "z": 1}\n'
    )
    before = shell.tree(".tidemark/warehouse/customers/customers")
    assert "undeclared column 'z'" in shell.refused("run", "customers")
    assert shell.tree(".tidemark/warehouse/customers/customers") == before
    assert "no reason" in shell.refused("skip", "customers", "2", "--reason", " ")
    assert shell.json("skip", "customers", "2", "--reason", "a test export")["checkpoint"] == 2
    assert "already skipped" in shell.refused("skip", "customers", "2", "--reason", "again")
    assert shell.json("show", "customers", "2")["seal"]["reason"] == "a test export"

    # A bound file that changed is named, and no replay calls it identical.
    (shell.folder / "data/customers/0001.json").write_text("{}\n")
    replayed = shell.run("replay", "customers", "--to", "1", "--json")
    assert replayed.exit_code == 3
    finding = json.loads(replayed.output)["findings"][0]
    assert (finding["verdict"], "0001.json" in finding["why"]) == ("input gone", True)


@pytest.mark.parametrize("name", ["../x", "a'b", "A", "x" * 65, "a;drop", "", "a/b"])
def test_hostile_names_are_refused_before_spark_starts(
    name: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.spark.session.build_session", no_spark)
    assert "is not a name" in shell.refused("init", name)
    assert not any(shell.folder.iterdir())
    assert "no pipeline" in shell.refused("run", name)


EVOLVING = """\
name: shop
warehouse: wh
source: {{type: files, path: in, format: json, settle_seconds: 0}}
shards:
  - {{name: rows, schema: '{schema}', keys: [{keys}], on_schema_change: {policy}}}
"""


def test_e4_a_column_is_added_to_a_pipeline_that_has_rows(shell: Shell) -> None:
    """The record that has it is refused; the pipeline file is mended, and the same transaction goes on."""

    def declare(schema: str, *, keys: str = "id", policy: str = "fail") -> None:
        (shell.folder / "shop.yaml").write_text(EVOLVING.format(schema=schema, keys=keys, policy=policy))

    def land(name: str, *records: dict[str, Any]) -> None:
        (shell.folder / "in" / name).write_text("".join(json.dumps(one) + "\n" for one in records))

    (shell.folder / "in").mkdir()
    declare("id BIGINT, v STRING")
    land("1.json", {"id": 1, "v": "x"}, {"id": 2, "v": "x"})
    shell.json("run", "shop.yaml")
    land("2.json", {"id": 2, "v": "y", "more": 7})
    assert "undeclared column 'more'" in shell.refused("run", "shop.yaml")
    why = "transaction 2 is refused at file '2.json', line 1: undeclared column 'more'"
    assert [one["why"] for one in shell.json("status", "shop.yaml")["blocked"]] == [why]
    assert [entry["event"] for entry in shell.json("show", "shop.yaml", "2")["journal"]] == ["refused"]
    declare("id BIGINT, more INT, v STRING", policy="missing_as_null")
    (decided,) = shell.json("run", "shop.yaml")["report"]["decided"]
    assert decided["seal"]["txn"] == 2
    assert shell.json("status", "shop.yaml")["blocked"] == []
    land("3.json", {"id": 3, "v": "z"})
    shell.json("run", "shop.yaml")
    expected = [(1, None, "x"), (2, 7, "y"), (3, None, "z")]
    for view in ("state", "fresh"):
        rows = shell.json("read", "shop.yaml", "--view", view)
        assert sorted((row["id"], row["more"], row["v"]) for row in rows) == expected
    assert [f["verdict"] for f in shell.json("replay", "shop.yaml")["findings"]] == ["identical"] * 3
    (proven,) = shell.json("verify", "shop.yaml")
    assert (proven["published"]["commit"]["txn"], proven["published"]["commit"]["digest"]["count"]) == (3, 3)
    assert shell.json("rebuild", "shop.yaml")["same_rows"]


EXACT = """\
name: money
warehouse: wh
source: {type: files, path: in, format: json, settle_seconds: 0}
shards:
  - name: rows
    schema: id BIGINT, d DECIMAL(38,2), x DOUBLE
    keys: [id]
    expectations:
      - {type: expect_column_values_to_be_between, kwargs: {column: x, max_value: 1}, action: warn}
"""


def test_decimals_are_shown_to_their_last_digit_and_warnings_are_told(shell: Shell) -> None:
    (shell.folder / "in").mkdir()
    (shell.folder / "money.yaml").write_text(EXACT)
    digits = "123456789012345678901234567890.10"
    (shell.folder / "in" / "1.json").write_text(f'{{"id": 1, "d": {digits}, "x": 1.5}}\n')
    (said,) = shell.json("run", "money")["warned"]["1"]
    assert "expect_column_values_to_be_between" in said
    assert "expect_column_values_to_be_between" in shell.run("show", "money", "1").output.replace("\n", "")
    assert shell.json("read", "money") == [{"id": 1, "d": digits, "x": 1.5}]
    assert digits in shell.run("read", "money").output
