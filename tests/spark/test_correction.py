"""The difference between two generations: staged as an ordinary transaction, it makes one the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.deployed import arrive, begun
from tests.support.ingest import QUARANTINE, TABLE, Rig, make_rig
from tests.support.sealing import sealed_put
from tests.support.state import ordered, rows_of
from tidemark.app.deployment import Deployment
from tidemark.app.views import open_errors, read, read_quarantine
from tidemark.core.checksum import Digest, shard_endpoint
from tidemark.core.errors import InvariantViolation
from tidemark.core.generation import Correction
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Committed
from tidemark.core.log import LogEntry
from tidemark.core.seal import Staged
from tidemark.pipeline import publish as step
from tidemark.spark.correction import Dead

pytestmark = pytest.mark.spark

B = Txn(9)
NAN, TINY = float("nan"), 5e-324


def staged(rig: Rig, found: Correction, shard: ShardId = TABLE) -> list[dict[str, Any]]:
    """The rows on disk, once they are known to have the digest that was returned."""
    assert found.parts is not None
    work = Staged(B, WriterToken("w"), Digest(), {shard: found.parts}, "")
    assert rig.plane().read_back(work)[shard_endpoint(shard)] == found.parts.digest
    return rig.rows(work, shard)


OLD = "a STRING, b INT, d DOUBLE, m MAP<STRING,MAP<STRING,DOUBLE>>, l ARRAY<STRUCT<x: DOUBLE>>"
NEW = f"{OLD}, n INT"
KEYED = {"schema": NEW, "keys": ["a", "b"]}


def test_every_value_that_differs_is_corrected_and_no_other(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path, KEYED)
    same: list[tuple[Any, ...]] = [
        (None, 1, NAN, {"x": {"p": NAN, "q": 1.0}}, [(NAN,), (None,)]),
        (None, None, None, None, None),
        ("", 0, 0.0, {}, []),
        ("", None, -0.0, {"x": {}}, [None]),
    ]
    turned = {"x": {"q": 1.0, "p": NAN}}
    pairs: list[tuple[Any, Any]] = [
        (("d", 1, 1.0, None, None), ("d", 1, NAN, None, None, None)),
        (("d", 2, 0.0, None, None), ("d", 2, TINY, None, None, None)),
        (("d", 3, 1.0, None, None), ("d", 3, None, None, None, None)),
        (("m", 1, 1.0, {"x": {"p": 1.0}}, None), ("m", 1, 1.0, {"x": {"p": 2.0}}, None, None)),
        (("m", 2, 1.0, {"x": {"p": 1.0}}, None), ("m", 2, 1.0, {"y": {"p": 1.0}}, None, None)),
        (("m", 3, 1.0, {"x": {}}, None), ("m", 3, 1.0, {"x": None}, None, None)),
        (("m", 4, 1.0, {}, None), ("m", 4, 1.0, None, None, None)),
        (("l", 1, 1.0, None, [(1.0,)]), ("l", 1, 1.0, None, [(None,)], None)),
        (("l", 2, 1.0, None, [(1.0,)]), ("l", 2, 1.0, None, [None], None)),
        (("n", 1, 1.0, None, None), ("n", 1, 1.0, None, None, 7)),
        (None, ("new", None, 1.0, None, None, None)),
        (("gone", None, 1.0, {"x": {}}, [(1.0,)]), None),
        ((None, 7, 1.0, None, None), None),
    ]
    old = spark.createDataFrame([*same, *(one for one, _ in pairs if one)], OLD)
    now = [(*row, None) for row in same]
    now[0] = (None, 1, NAN, turned, [(NAN,), (None,)], None)
    new = spark.createDataFrame([*now, *(two for _, two in pairs if two)], NEW)
    plane = rig.plane()
    found = plane.correct(TABLE, old=old, new=new, txn=B, token=WriterToken("w"))
    assert (found.upserts, found.deletes, found.refused) == (11, 2, "")
    assert found.parts is not None
    assert found.parts.deletes == 2
    wanted = [(*two, "U") for _, two in pairs if two]
    wanted += [("gone", *[None] * 5, "D"), (None, 7, *[None] * 4, "D")]
    told = plane.rows(TABLE, found.parts.parts).select("a", "b", "d", "m", "l", "n", "_op")
    # NaN is not equal to itself, and is shown as it is.
    assert repr(rows_of(told)) == repr(rows_of(spark.createDataFrame(wanted, f"{NEW}, _op STRING")))
    for row in staged(rig, found):
        assert (row["_txn"], row["_partition"], row["_offset"], row["_ordinal"]) == (B, None, None, None)

    # What is equal makes no file, whatever the order of rows and of a map's entries.
    again = plane.correct(TABLE, old=new, new=new.orderBy("b"), txn=B, token=WriterToken("other"))
    assert again == Correction()
    assert not [path for path in rig.files_on_disk() if "other" in str(path)]

    compared = plane.compare(TABLE, old=old, new=new, limit=50, masked=["d"])
    assert (compared.inserted, compared.deleted, compared.changed) == (1, 2, 10)
    assert len(compared.sample) == 13
    sample = {tuple(one.key.values()): (one.what, dict(one.values)) for one in compared.sample}
    assert sample["gone", None] == ("only in the old generation", {})
    assert sample["new", None] == ("only in the new generation", {})
    assert sample["d", "3"] == ("d", {"d": ("***", "***")})
    assert sample["n", "1"] == ("n", {"n": ("7", None)})
    assert plane.compare(TABLE, old=new, new=new, limit=5).is_equal


def test_rows_without_keys_are_added_and_never_lost_in_silence(spark: SparkSession, tmp_path: Path) -> None:
    shard = {"schema": "k STRING, m MAP<STRING,INT>", "keys": ["k"]}
    rig = make_rig(spark, tmp_path, shard, envelope="append")
    ddl = "k STRING, m MAP<STRING,INT>"
    old = [("a", {"x": 1, "y": 2}), ("a", {"x": 1, "y": 2}), (None, None)]
    new = [("a", {"y": 2, "x": 1}), ("a", {"y": 2, "x": 1}), ("a", {"x": 1, "y": 2}), (None, None), ("b", {})]
    one, other = (spark.createDataFrame(rows, ddl) for rows in (old, new))
    plane = rig.plane()
    found = plane.correct(TABLE, old=one, new=other, txn=B, token=WriterToken("w"))
    assert (found.upserts, found.deletes) == (2, 0)
    rows = [(row["k"], dict(row["m"]), row["_op"]) for row in staged(rig, found)]
    assert ordered(rows) == [("a", {"x": 1, "y": 2}, "U"), ("b", {}, "U")]
    back = plane.correct(TABLE, old=other, new=one, txn=B, token=WriterToken("x"))
    assert back.parts is None
    assert "2 rows of shard t are not in the new generation" in back.refused
    assert not [path for path in rig.files_on_disk() if "/x/" in str(path)]
    compared = plane.compare(TABLE, old=other, new=one, limit=5)
    assert (compared.inserted, compared.deleted, len(compared.sample)) == (0, 2, 2)


# Onto a real shard.

SHARD: dict[str, Any] = {"schema": "k INT, v STRING, n INT", "keys": ["k"]}


def promoted(live: Deployment, candidate: Deployment) -> dict[str, Correction]:
    """Put the difference of both generations into the live logs, as a promotion would."""
    last = live.control.log(TABLE).head().upper - 1
    txn, token = Txn(last + 1), WriterToken("promotes")
    plane = live.plane()
    found = {}
    for shard in (TABLE, QUARANTINE):
        if shard == TABLE:
            old, new = (read(one, TABLE, as_of=last) for one in (live, candidate))
            found[shard] = plane.correct(shard, old=old, new=new, txn=txn, token=token)
        else:
            old, new = (read_quarantine(one, as_of=last) for one in (live, candidate))
            found[shard] = plane.correct(
                shard, old=old, new=new, txn=txn, token=token, still_open=open_errors(candidate, TABLE)
            )
        parts = found[shard].parts.parts if found[shard].parts is not None else ()
        log = live.control.log(shard)
        put = sealed_put(live.control, shard, LogEntry(txn, token, parts))
        assert isinstance(log.commit(log.head(), put), Committed)
    return found


def kv(key: Any, value: Any, number: Any = 0) -> dict[str, Any]:
    return {"k": key, "v": value, "n": number}


def test_a_correction_makes_the_state_and_the_fresh_read_those_of_the_candidate(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Both read the same records; the candidate deletes by another rule."""
    for word in ("gone", "away"):
        (tmp_path / word).mkdir()
    live, candidate = (
        begun(spark, tmp_path / word, **SHARD, apply_as_deletes=f"v = '{word}'") for word in ("gone", "away")
    )
    for works in (live, candidate):
        arrive(works, kv(1, "a"), kv(2, "gone"), kv(3, "away"), kv(4, "d"))
        arrive(works, kv(1, "b"), kv(4, "gone"))
    step.publish(live.control, live.state(), TABLE, token=WriterToken("first"))
    found = promoted(live, candidate)
    assert (found[TABLE].upserts, found[TABLE].deletes) == (2, 1)
    new = rows_of(read(candidate, TABLE))
    assert rows_of(read(live, TABLE)) == new
    step.publish(live.control, live.state(), TABLE, token=WriterToken("last"))
    assert step.verify_state(live.control, live.state(), TABLE) is not None
    assert rows_of(read(live, TABLE, view="state")) == new


def test_with_a_sequence_tombstones_are_corrected_too(spark: SparkSession, tmp_path: Path) -> None:
    shard = {"schema": "k INT, v STRING, s INT", "keys": ["k"], "sequence_by": "s"}
    rig = make_rig(spark, tmp_path, shard)
    plane = rig.plane()
    rows = "k INT, v STRING, s INT"
    old = spark.createDataFrame([(1, "a", 5), (2, "b", 5), (4, "d", 5)], rows)
    new = spark.createDataFrame([(1, "a", 5), (3, "c", 3)], rows)
    names = "k INT, s INT, _txn BIGINT"
    late, none = (8, 1, 1), (9, None, 1)
    before = spark.createDataFrame([(1, 2, 1), (3, 7, 1), (5, 4, 1), (6, 4, 1), (7, 4, 1), late], names)
    after = spark.createDataFrame([(2, 9, 1), (5, 4, 2), (6, 6, 1), (10, 8, 1), none], names)
    dead = Dead(before, after, line=2)
    found = plane.correct(TABLE, old=old, new=new, txn=B, token=WriterToken("w"), dead=dead)
    assert (found.upserts, found.deletes) == (1, 5)
    told = [(row["k"], row["_op"], row["v"], row["s"]) for row in staged(rig, found)]
    assert ordered(told) == ordered([
        (2, "D", None, 9), (3, "U", "c", 3), (4, "D", None, None), (6, "D", None, 6), (7, "D", None, None),
        (10, "D", None, 8),
    ])  # fmt: skip
    equal = Dead(before, None, line=8)
    assert plane.correct(TABLE, old=new, new=new, txn=B, token=WriterToken("x"), dead=equal) == Correction()
    # What may expire by the old settings is written again, where the new ones still need it.
    dead = Dead(before, after, line=2, old_line=5)
    found = plane.correct(TABLE, old=new, new=new, txn=B, token=WriterToken("y"), dead=dead)
    assert (5, "D", None, 4) in [(row["k"], row["_op"], row["v"], row["s"]) for row in staged(rig, found)]
    with pytest.raises(InvariantViolation, match="tombstones, and they were not compared"):
        plane.correct(TABLE, old=new, new=new, txn=B, token=WriterToken("x"))


def test_quarantine_gets_what_only_the_candidate_has_found(spark: SparkSession, tmp_path: Path) -> None:
    rig = make_rig(spark, tmp_path, SHARD)
    ddl = (
        "_txn BIGINT, _shard STRING, _key STRING, _raw STRING, _reason STRING, _partition STRING,"
        " _offset BIGINT, _ordinal BIGINT"
    )
    known = [(1, "t", '{"k":1}', "raw", "why", "p", 1, 0), (1, None, None, "raw", "no shard", "p", 2, 0)]
    more = [
        (1, "t", '{"k":1}', "raw", "another reason", "p", 1, 0),
        (1, None, None, "raw", "no shard", "p", 2, 0),
        (2, "t", '{"k":2}', "open", "why", "p", 3, 0),
        (2, "t", '{"k":3}', "closed", "why", "p", 3, 1),
        (2, "u", None, "raw", "why", "p", 3, 0),
        (2, "t", '{"k":4}', "open", "why", "p", 4, 0),
        (2, "t", '{"k":5}', "open", "why", "p", 5, 0),
    ]
    known += more[-2:]
    old, new = (spark.createDataFrame(rows, ddl) for rows in (known, more))
    plane = rig.plane()
    still_open = new.where("_raw = 'open'")
    found = plane.correct(QUARANTINE, old=old, new=new, txn=B, token=WriterToken("w"), still_open=still_open)
    rows = staged(rig, found, QUARANTINE)
    names = ddl.replace(" BIGINT", "").replace(" STRING", "").split(", ")
    assert ordered([tuple(row[name] for name in names) for row in rows]) == [
        (B, "t", '{"k":2}', "open", "why", "p", 3, 0),
        (B, "t", '{"k":4}', "open", "why", "p", 4, 0),
        (B, "t", '{"k":5}', "open", "why", "p", 5, 0),
        (B, "t", None, "closed", "why", "p", 3, 1),
        (B, "u", None, "raw", "why", "p", 3, 0),
    ]
    none = still_open.where("false")
    again = plane.correct(QUARANTINE, old=new, new=old, txn=B, token=WriterToken("x"), still_open=none)
    assert again == Correction()
    assert not [path for path in rig.files_on_disk() if "/x/" in str(path)]
