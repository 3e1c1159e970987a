"""Values and names at the edge of what there is: NaN, ten million characters, hostile file names."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.sources.test_hostile_names import TAKEN
from tests.support.ingest import Rig, make_rig
from tidemark.core.ids import WriterToken
from tidemark.core.seal import Staged

pytestmark = pytest.mark.spark


def proven(rig: Rig, lines: list[str]) -> Staged:
    """What was staged, after it was read back and replayed with the same digests."""
    binding = rig.bind_records(lines)
    staged = rig.plane().stage(binding, WriterToken("w"))
    assert rig.plane().read_back(staged) == staged.digests
    assert rig.plane().replay(binding).digests == staged.digests
    return staged


def test_nan_is_a_value_and_as_text_a_key(spark: SparkSession, tmp_path: Path) -> None:
    """A float can't be a key, because NaN would not equal itself; the text is one like any other."""
    rig = make_rig(spark, tmp_path, {"schema": "k STRING, v DOUBLE", "keys": ["k"]})
    lines = ['{"k": "NaN", "v": 1.0}', '{"k": "NaN", "v": NaN}', '{"k": "text", "v": "NaN"}']
    staged = proven(rig, [*lines, '{"k": NaN, "v": 0}'])
    rows = {row["k"]: row["v"] for row in rig.rows(staged)}
    assert rows.pop('"NaN"') == 0, "a bare NaN is no JSON; as a text it has quotes"
    assert rows.keys() == {"NaN", "text"}
    assert all(map(math.isnan, rows.values())), "the later record of a key wins, whatever its value"
    again = ['{"k": "text", "v": NaN}', '{"k": "NaN", "v": "NaN"}', '{"k": NaN, "v": 0.0}']
    other = rig.plane().replay(rig.bind_records(again))
    assert other.digests["shard:t"] == staged.digests["shard:t"], "one NaN is as another"


def test_a_string_of_ten_megabytes_is_a_value(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path)
    long = "\u00e9x" * 5_000_000
    staged = rig.stage([{"k": "long", "v": long}])
    (row,) = rig.rows(staged)
    assert (row["k"], row["v"] == long) == ("long", True)
    assert rig.plane().read_back(staged) == staged.digests


def test_files_with_hostile_names_are_read_and_nothing_else_is(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path)
    for name in TAKEN:
        rig.write(name, [json.dumps({"k": name, "v": "x"})])
    rig.write("decoy, which a glob would read: a{b,c}d.json".replace(": ", "_"), ['{"k": "decoy", "v": "x"}'])
    binding = rig.bind(TAKEN)
    staged = rig.plane().stage(binding, WriterToken("w"))
    assert sorted(row["k"] for row in rig.rows(staged)) == sorted(TAKEN)
    assert rig.plane().replay(binding).digests == staged.digests
