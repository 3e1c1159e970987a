"""What differs, key by key, once a replay has said that something does; hand-made expectations throughout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support.deployed import arrive, attempt, begun
from tests.support.ingest import KV, TABLE, Rig, make_rig
from tidemark.app.deployment import Deployment
from tidemark.app.tasks import differing_rows, replay_range
from tidemark.core.binding import Binding
from tidemark.core.ledger import Event
from tidemark.core.replay import Difference, Verdict
from tidemark.core.seal import Part
from tidemark.sources.files.source import FileSource

pytestmark = pytest.mark.spark

CANARY = "canary"
SHARD = {"schema": "a STRING, b INT, v STRING, pin STRING", "keys": ["a", "b"], "masked": ["pin"]}
RECORDS = [
    {"a": "x", "b": 1, "v": "one", "pin": f"{CANARY}1"},
    {"a": "x", "b": None, "v": "two", "pin": f"{CANARY}2"},
    {"a": None, "b": 3, "v": "w" * 200, "pin": f"{CANARY}3"},
    {"a": "y", "b": 4, "v": "four", "pin": f"{CANARY}4"},
]


def replayed(works: Deployment) -> tuple[str, list[Difference]]:
    """The verdict on transaction 1, and the sample."""
    by = attempt()
    findings, _ = replay_range(works, by, txn_from=1, txn_to=1, mode="verify")
    return findings[0].verdict, list(differing_rows(works, by, findings))


def told(found: list[Difference]) -> list[tuple[Any, ...]]:
    return [(tuple(one.key.values()), one.what, dict(one.values)) for one in found]


def changed(path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Write a part anew with other rows, in the same schema."""
    table = pq.read_table(path)
    rows = sorted(table.to_pylist(), key=lambda row: row["_ordinal"])
    pq.write_table(pa.Table.from_pylist(change(rows), table.schema), path)


def test_a_changed_source_record_is_shown_by_its_key_with_both_values(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = begun(spark, tmp_path, **SHARD)
    arrive(works, *RECORDS)
    assert replayed(works) == (Verdict.IDENTICAL, [])
    (file,) = (tmp_path / "in").iterdir()
    text = file.read_text().replace('"two"', '"TWO"').replace(f"{CANARY}1", f"{CANARY}9")
    text = text.replace('"y"', '"z"').replace("www", "Www", 1)
    file.write_text(text)
    # A source that does not notice: nothing but the digests can.
    monkeypatch.setattr(FileSource, "inspect", lambda source, binding: "")
    verdict, found = replayed(works)
    assert verdict == Verdict.DIFFERS
    assert told(found) == [
        ((None, "3"), "v", {"v": ("W" + "w" * 79, "w" * 80)}),
        (("x", None), "v", {"v": ("TWO", "two")}),
        (("x", "1"), "pin", {"pin": ("***", "***")}),
        (("y", "4"), "only in the table", {}),
        (("z", "4"), "only in the input", {}),
    ]
    assert {(one.txn, one.shard) for one in found} == {(1, "t")}
    works.control.journal.head()
    entries = works.control.journal.find("1")
    *_, verdict_noted, sampled = entries
    recorded = json.loads(sampled.detail["keys"])
    assert (sampled.event, sampled.token) == (Event.SAMPLED, verdict_noted.token)
    assert recorded[1] == {"shard": "t", "key": {"a": "x", "b": None}, "what": "v"}, "no value but the key's"
    assert [one["what"] for one in recorded] == [one.what for one in found]
    noted = json.dumps([dict(entry.detail) for entry in entries])
    assert "differs" in noted
    assert CANARY not in noted + repr(found)
    assert "TWO" not in noted


def test_a_changed_part_is_shown_against_what_the_input_gives(spark: SparkSession, tmp_path: Path) -> None:
    works = begun(spark, tmp_path, **SHARD)
    arrive(works, *RECORDS)
    (part,) = (tmp_path / "wh/p/t/log").rglob("part-*.parquet")
    changed(
        part,
        lambda rows: [
            {**rows[0], "v": None},
            {**rows[1], "_op": "D"},
            rows[2],
            rows[2],
            {**rows[3], "a": "n"},
        ],
    )
    verdict, found = replayed(works)
    assert verdict == Verdict.DIFFERS
    assert told(found) == [
        ((None, "3"), "1 times in the input, 2 times in the table", {}),
        (("n", "4"), "only in the table", {}),
        (("x", None), "_op", {"_op": ("U", "D")}),
        (("x", "1"), "v", {"v": ("one", None)}),
        (("y", "4"), "only in the input", {}),
    ]
    # A part that is not there any more has no rows; nor has one that can't be opened.
    for damage in (lambda: part.write_bytes(part.read_bytes()[:100]), part.unlink):
        damage()
        _, found = replayed(works)
        assert [one.what for one in found] == ["only in the input"] * 4


def rewound(rig: Rig) -> Binding:
    """The binding of the rig's last transaction, which has one file."""
    rig.bound, rig.txn = 0, 0
    return rig.bind(["f0.json"])


def sample(rig: Rig, parts: tuple[Part, ...], limit: int = 10) -> list[tuple[Any, ...]]:
    return told(list(rig.plane().sample(rewound(rig), {TABLE: parts}, limit=limit)))


def test_a_sample_has_no_more_keys_than_asked_for_and_a_masked_key_is_told_apart_by_a_digest_of_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = make_rig(spark, tmp_path, {**KV, "masked": ["k"]})
    staged = rig.stage([{"k": f"{n:03}", "v": "x"} for n in range(100)])
    parts = staged.shards[TABLE].parts
    assert sample(rig, parts) == []
    rig.write("f0.json", [json.dumps({"k": f"{n:03}", "v": "y"}) for n in range(100)])
    first, again = ([key for (key,), _, _ in sample(rig, parts, limit=3)] for _ in range(2))
    assert len(set(first)) == len(set(again)) == 3
    assert all(re.fullmatch(r"\*\*\*[0-9a-f]{8}", key) for key in [*first, *again])
    assert not set(first) & set(again), "nobody can look for a key by its digest"


def test_appended_rows_have_no_key_but_all_that_they_are(spark: SparkSession, tmp_path: Path) -> None:
    shard = {"schema": "k STRING, v STRING", "keys": ["k"]}
    rig = make_rig(spark, tmp_path, shard, envelope="append")
    records = [("a", "1"), ("a", "1"), ("a", "2"), (None, "3")]
    staged = rig.stage([{"k": k, "v": v} for k, v in records])
    now = [("a", "2"), ("a", "1"), (None, "4")]
    rig.write("f0.json", [json.dumps({"k": k, "v": v}) for k, v in now])
    parts = {TABLE: staged.shards[TABLE].parts}
    rows = list(rig.plane().sample(rewound(rig), parts, limit=10))
    assert [one.recorded["key"] for one in rows] == [{}] * 3, "a whole row is not recorded"
    found = told(rows)
    assert sorted(found, key=repr) == [
        (("a", "1"), "1 times in the input, 2 times in the table", {}),
        ((None, "3"), "only in the table", {}),
        ((None, "4"), "only in the input", {}),
    ]
