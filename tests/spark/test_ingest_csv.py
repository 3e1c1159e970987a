"""CSV as other programs write it: quotes in quotes, and lines that can't be cut into fields."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.ingest import QUARANTINE, make_rig, state
from tidemark.core.ids import ShardId, WriterToken

pytestmark = pytest.mark.spark

KVN = {"schema": "k STRING, v STRING, n INT", "keys": ["k"], "apply_as_deletes": "n = 0"}
UNCLOSED = "a quote is not closed on its line"


def test_quotes_are_read_as_they_are_written(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path, KVN, file_format="csv")
    lines = {
        "a": '"x, ""y"""', "b": '""""', "c": '"""a,""b"""', "d": '5" pipe', "e": r'"back\"', "f": '""',
        "g": "", "h": "'q'", "i": r"C:\new", "j": '"' + "long " * 20_000 + '""' * 20_000 + '"',
    }  # fmt: skip
    rig.write("a.csv", ["\ufeffk,v,n", *(f'"{key}",{text},1' for key, text in lines.items())])
    staged = rig.plane().stage(rig.bind(["a.csv"]), WriterToken("w"))
    long = "long " * 20_000 + '"' * 20_000
    assert state(rig.rows(staged)) == {
        "a": 'x, "y"', "b": '"', "c": '"a,"b"', "d": '5" pipe', "e": "back\\", "f": None, "g": None,
        "h": "'q'", "i": r"C:\new", "j": long,
    }  # fmt: skip


def test_a_quote_that_is_not_closed_is_a_bad_record_and_never_a_value(
    spark: SparkSession, tmp_path: Path
) -> None:
    rig = make_rig(spark, tmp_path, KVN, file_format="csv")
    bad = {
        1: ('a,1,"goes on', UNCLOSED),
        2: ('in the next line"', "it does not have 3 fields"),
        3: ('"b,1,2', UNCLOSED),
        4: ('c,"says "hi" to us",2', UNCLOSED),
        5: (r'd,"with \" in it",2', UNCLOSED),
        6: ("e,1,2,3", "it does not have 3 fields"),
        7: ("f,1, 2 ", "column 'n' is INT, found ' 2 '"),
    }
    rig.write("a.csv", ["k,v,n", *(line for line, _ in bad.values()), "z,1,2"])
    staged = rig.plane().stage(rig.bind(["a.csv"]), WriterToken("w"))
    assert state(rig.rows(staged)) == {"z": "1"}
    found = {row["_ordinal"]: (row["_raw"], row["_reason"]) for row in rig.rows(staged, QUARANTINE)}
    assert found == bad
    keys = {row["_ordinal"]: row["_key"] for row in rig.rows(staged, QUARANTINE)}
    assert [keys[ordinal] for ordinal in (1, 3, 4, 5)] == [None] * 4


def test_an_escape_of_its_own_and_other_quotes(spark: SparkSession, tmp_path: Path) -> None:
    options = {"csv": {"delimiter": "|", "quote": "'", "escape": "\\"}}
    rig = make_rig(spark, tmp_path, KVN, file_format="csv", source=options)
    rig.write("a.csv", ["k|v|n", r"a|'it\'s | so'|1", "b|'it''s'|1", 'c|"as it is"|1'])
    staged = rig.plane().stage(rig.bind(["a.csv"]), WriterToken("w"))
    assert state(rig.rows(staged)) == {"a": "it's | so", "c": '"as it is"'}
    assert [row["_reason"] for row in rig.rows(staged, QUARANTINE)] == [UNCLOSED]


def test_a_line_that_can_not_be_cut_belongs_to_no_shard_and_says_why(
    spark: SparkSession, tmp_path: Path
) -> None:
    shards = [
        {**KVN, "name": name, "route": {"column": "side", "equals": name}, "apply_as_deletes": "v IS NULL"}
        for name in ("left", "right")
    ]
    rig = make_rig(spark, tmp_path, *shards, file_format="csv")
    rig.write("a.csv", ["k,v,n,side", "a,1,1,left", 'b,"1,1,left', "c,1,1,up"])
    staged = rig.plane().stage(rig.bind(["a.csv"]), WriterToken("w"))
    assert state(rig.rows(staged, ShardId("left"))) == {"a": "1"}
    found = [(row["_shard"], row["_reason"]) for row in rig.rows(staged, QUARANTINE)]
    assert found == [(None, UNCLOSED), (None, "no shard takes it")]
