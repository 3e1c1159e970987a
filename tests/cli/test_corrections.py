"""Quarantined records that are corrected and come back through their source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tidemark.app import bad_records
from tidemark.cli import rows
from tidemark.cli.app import app
from tidemark.cli.rows import ROWS_MAX
from tidemark.config import load_pipeline
from tidemark.core.errors import InvalidUsage

PIPELINE = """\
name: p
source: {type: files, path: in, format: json, settle_seconds: 0}
shards:
  - {name: t, schema: "id BIGINT NOT NULL, n INT, at INT", keys: [id], sequence_by: at}
"""
MASKED = PIPELINE.replace("sequence_by: at", "masked: [n]")


class Shop:
    """One pipeline in the current folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "in").mkdir()
        self.says(PIPELINE)

    def says(self, text: str) -> None:
        (self.folder / "p.yaml").write_text(text)

    def land(self, name: str, *lines: str) -> None:
        (self.folder / "in" / name).write_text("".join(f"{line}\n" for line in lines))

    def tell(self, *words: str) -> Result:
        return CliRunner().invoke(app, list(words))

    def done(self, *words: str) -> str:
        told = self.tell(*words)
        assert told.exit_code == 0, (words, told.output, told.exception)
        return told.stdout


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path)


@pytest.mark.spark
def test_quarantined_records_are_corrected_through_the_source(shop: Shop) -> None:
    """The second correction is older by its sequence than the good row of its key, and replaces nothing."""
    good = '{"id": 1, "n": 10, "at": 10}'
    bad = ['{"id": 2,  "n": "two", "at": 1}', '{"n": "five", "at": 5, "id": 1}']
    shop.land("1.json", good, *bad)
    shop.done("run", "p")
    assert "p --open --raw" in shop.done("quarantine", "p")
    given = shop.done("quarantine", "p", "--open", "--raw")
    assert given.splitlines() == bad
    shop.land("2.json", *given.replace('"two"', "2").replace('"five"', "5").splitlines())
    shop.done("run", "p")
    assert shop.done("quarantine", "p", "--open") == "no key has an open error\n"
    assert shop.done("quarantine", "p", "--open", "--raw") == ""
    for view in ("fresh", "state"):
        found = json.loads(shop.done("read", "p", "t", "--view", view, "--json"))
        assert found == [{"id": 1, "n": 10, "at": 10}, {"id": 2, "n": 2, "at": 1}], view


def kept(*raws: str | None, shard: str | None = "t") -> list[dict[str, Any]]:
    """Records as quarantine keeps them, the newest first."""
    every = enumerate(raws)
    newest = [
        {"_txn": txn, "_partition": "files", "_offset": 1, "_ordinal": 1, "_shard": shard, "_raw": raw}
        for txn, raw in every
    ]
    return newest[::-1]


def test_raw_is_in_the_order_of_the_source_and_says_what_is_cut(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def newest(uri: str, *, txn: int | None, limit: int) -> list[dict[str, Any]]:
        asked.append(limit)
        return kept("a", "b", "c")[:limit]

    monkeypatch.setattr(bad_records, "quarantined", newest)
    told = shop.tell("quarantine", "p", "--raw")
    assert (told.stdout, told.stderr) == ("a\nb\nc\n", "")
    told = shop.tell("quarantine", "p", "--raw", "--limit", "2")
    assert (told.stdout, told.stderr) == ("b\nc\n", "there are more: these are the newest 2\n")
    assert asked == [ROWS_MAX + 1, 3]
    refused = shop.tell("quarantine", "p", "--raw", "--json").exception
    assert "exclude each other" in str(refused)


@pytest.mark.parametrize("shard", ["t", None], ids=["its-shard-masks", "no-shard-took-it"])
def test_raw_shows_no_record_that_may_have_a_masked_value(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, shard: str | None
) -> None:
    """A masked record that is given back would put the mask into the table."""
    shop.says(MASKED)
    found = kept('{"id": "x", "n": "canary"}', "canary", shard=shard)
    monkeypatch.setattr(bad_records, "quarantined", lambda uri, *, txn, limit: found)
    placed = [{**one, "place": f"line {one['_txn']}"} for one in found[::-1]]
    monkeypatch.setattr(rows, "with_places", lambda deployment, records: placed)
    told = shop.tell("quarantine", "p", "--raw")
    assert told.stdout == ""
    assert isinstance(told.exception, InvalidUsage)
    assert "canary" not in str(told.exception)
    assert "2 of 2 records are not shown" in str(told.exception)
    assert "line 0 (transaction 0); line 1 (transaction 1)" in str(told.exception)


@pytest.mark.parametrize(
    ("source", "way"),
    [
        ("{type: files, path: in, format: json}", "into the source folder as a new file"),
        ("{type: kafka, kafka_config_id: k, topics: [t], format: json}", "produce them again"),
        ("{type: postgres, postgres_conn_id: c, publication: p, slot: s}", "source reread p TABLE"),
    ],
)
def test_the_hint_says_the_way_of_each_source(shop: Shop, source: str, way: str) -> None:
    route = ", route: {table: public.t}" if "postgres" in source else ""
    shard = f"{{name: t, schema: id BIGINT NOT NULL, keys: [id]{route}}}"
    envelope = "debezium" if route else "upsert"
    shop.says(f"name: p\nenvelope: {envelope}\nsource: {source}\nshards: [{shard}]\n")
    assert way in rows.how_to_correct(load_pipeline(shop.folder / "p.yaml"))
