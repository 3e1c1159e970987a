"""A generation on real tables: planned, started, followed, compared, promoted, rolled back, aborted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.support.deployed import arrive, attempt
from tests.support.state import rows_of
from tidemark.app.consume import Consumer, accept_replacement, consumers_of
from tidemark.app.deployment import Deployment
from tidemark.app.generation import Generations
from tidemark.app.generation_plan import plan
from tidemark.app.publish import run_and_publish
from tidemark.app.status import quarantined_in_logs
from tidemark.app.views import open_errors, read
from tidemark.config import PipelineConfig
from tidemark.core.errors import InvalidUsage
from tidemark.core.generation import Superseded
from tidemark.core.ids import QUARANTINE, ShardId, Txn
from tidemark.core.log import BeforeReplacement
from tidemark.core.reading import ShardReplaced
from tidemark.core.replay import Verdict
from tidemark.pipeline.publish import rebuild, verify_state
from tidemark.pipeline.run import replay
from tidemark.spark.state_table import specs_of
from tidemark.spark.views import ErrorPins
from tidemark.spark.views import open_errors as errors_of

pytestmark = pytest.mark.spark

T, PAID = ShardId("t"), ShardId("paid")
COLUMNS = "k INT, v STRING, n INT"


def opened(spark: SparkSession, root: Path, generation: int, *shards: dict[str, Any]) -> Deployment:
    """A process of its own with the pipeline file of a generation."""
    (root / "in").mkdir(exist_ok=True)
    source = {"type": "files", "path": "in", "format": "json", "settle_seconds": 0}
    settings = {"name": "p", "source": source, "warehouse": "wh", "generation": generation}
    given = {**settings, "shards": [{"name": "t", "schema": COLUMNS, "keys": ["k"], **one} for one in shards]}
    return Deployment(PipelineConfig.model_validate(given).at(root), lambda: spark)


def kv(key: Any, value: Any, number: Any = 0) -> dict[str, Any]:
    return {"k": key, "v": value, "n": number}


def rows(deployment: Deployment, shard: str = "t") -> list[Any]:
    return rows_of(read(deployment, shard))


def applied(deployment: Deployment, copy: dict[int, tuple[str, int]]) -> dict[int, tuple[str, int]]:
    """What a consumer's table has after the batches that it has not had yet."""
    with Consumer(deployment, "t", "copy") as consumer:
        for batch in consumer.listen():
            for row in sorted(batch.frame.collect(), key=lambda row: int(row["_txn"])):
                if row["_op"] == "D":
                    copy.pop(row["k"], None)
                else:
                    copy[row["k"]] = (row["v"], row["n"])
    return copy


OLD = {"apply_as_deletes": "v = 'gone'"}
NEW = {"apply_as_deletes": "v = 'away'"}


def test_a_generation_is_promoted_rolled_back_and_aborted(spark: SparkSession, tmp_path: Path) -> None:
    old = opened(spark, tmp_path, 0, OLD)
    arrive(old, kv(1, "a"), kv(2, "gone"), kv(3, "away"), kv(4, "d"))
    arrive(old, kv(1, "b"), kv(4, "gone"), "{broken")
    before = rows(old)
    run_and_publish(old, attempt())

    # The file is deployed: runs keep the settings in charge, and say so.
    file = opened(spark, tmp_path, 1, NEW)
    assert file.config.generation == 0, "the file is a proposal"
    assert "proposes 1" in file.proposal
    arrive(file, kv(5, "gone"), kv(6, "e"))
    found = plan(file)
    assert (found.transactions, found.refused, found.in_charge) == (3, (), 0)
    assert {one.name for one in found.settings} >= {"shards[t].apply_as_deletes"}

    works = Generations(file)
    candidate = works.start(reason="another rule of deletes")
    with pytest.raises(InvalidUsage, match="started already"):
        works.start(reason="again")
    pair = works.pair(candidate)
    followed = list(pair.follow(attempt()))
    assert [(one.txn, one.source_equal) for one in followed] == [(1, True), (2, True), (3, True)]
    assert [bool(one.differs) for one in followed] == [True, True, True]
    assert rows(file) == rows(old), "nobody has seen anything of it"
    compared = pair.compare()[T]
    assert (compared.inserted, compared.changed, compared.deleted) == (3, 0, 1)

    arrive(opened(spark, tmp_path, 1, NEW), kv(7, "away"), kv(1, "c"))
    done = pair.promote(attempt(), user="ann")
    assert (done.txn, done.generation) == (5, 1)
    new = opened(spark, tmp_path, 1, NEW)
    assert (new.config.generation, new.proposal) == (1, "")
    assert {row["k"]: row["v"] for row in read(new, "t").collect()} == {
        1: "c", 2: "gone", 4: "gone", 5: "gone", 6: "e",
    }  # fmt: skip
    assert verify_state(new.control, new.state(), T) is not None
    assert rows_of(read(new, "t", view="state")) == rows(new)
    assert rows_of(read(old, "t", as_of=2)) == before, "the past is as it was"
    assert not list((tmp_path / "wh" / "p" / "_generations").glob("*")), "the shadow is gone"

    # Both generations' transactions are proven, each by its own settings, and the promotion by its parts.
    found_now = replay(new.pipeline, attempt(), txn_from=Txn(1), txn_to=Txn(5))
    assert [one.verdict for one in found_now] == [Verdict.IDENTICAL] * 5

    # A process of the old generation goes on with the new settings once it is opened again.
    with pytest.raises(Superseded):
        arrive(old, kv(8, "gone"), kv(6, "away"))
    run_and_publish(old, attempt())
    assert old.config.generation == 1

    _rolled_back(spark, tmp_path)
    _aborted(spark, tmp_path)


def _rolled_back(spark: SparkSession, tmp_path: Path) -> None:
    """Back, with what has come since."""
    again = Generations(opened(spark, tmp_path, 1, NEW))
    back = again.rollback(reason="the rule was right")
    assert back.generation == 2
    undone = again.pair(back).promote(attempt())
    assert (undone.txn, undone.generation) == (7, 2)
    last = opened(spark, tmp_path, 2, OLD)
    assert {row["k"]: row["v"] for row in read(last, "t").collect()} == {
        1: "c", 3: "away", 6: "away", 7: "away",
    }  # fmt: skip
    assert verify_state(last.control, last.state(), T) is not None


def _aborted(spark: SparkSession, tmp_path: Path) -> None:
    """An aborted candidate leaves nothing, and the next one begins anew."""
    before = rows(opened(spark, tmp_path, 2, OLD))
    third = Generations(opened(spark, tmp_path, 3, NEW))
    list(third.pair(third.start(reason="try")).follow(attempt(), transactions_max=2))
    assert third.abort(reason="no").start == 3
    assert third.candidate is None
    assert not list((tmp_path / "wh" / "p" / "_generations").glob("*"))
    assert rows(opened(spark, tmp_path, 2, OLD)) == before


def test_quarantine_follows_the_generation_in_charge(spark: SparkSession, tmp_path: Path) -> None:
    between = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "n", "max_value": 5}}
    rule = {
        **OLD,
        "expectations": [{**between, "action": "quarantine"}],
        "schema": f"{COLUMNS}, extra STRING",
        "on_schema_change": "missing_as_null",
    }
    old = opened(spark, tmp_path, 0, OLD)
    arrive(old, kv(1, "a", 9), kv(2, "b", 2))
    copy = applied(old, {})
    assert copy == {1: ("a", 9), 2: ("b", 2)}
    arrive(old, kv(2, "c", 8), kv(3, "d", 3))
    works = Generations(opened(spark, tmp_path, 1, rule))
    done = works.pair(works.start(reason="a rule for n")).promote(attempt())
    added = done.corrections[QUARANTINE].parts
    assert added is not None
    assert added.digest.count == 2
    last = opened(spark, tmp_path, 1, rule)
    assert {row["k"]: (row["v"], row["n"], row["extra"]) for row in read(last, "t").collect()} == {
        2: ("b", 2, None),
        3: ("d", 3, None),
    }
    assert {row["_key"] for row in open_errors(last, "t").collect()} == {'{"k":1}', '{"k":2}'}
    assert _open_since(last, 3) == {'{"k":1}', '{"k":2}'}
    assert _open_since(last, 4) == set(), "a later promotion would have those that are still open"
    assert quarantined_in_logs(last.pipeline).newest_records == 0, "the promotion has read no record"
    # What was bad by this rule is good by the next one.
    none = {**rule, "expectations": []}
    back = Generations(opened(spark, tmp_path, 2, none))
    ended = back.pair(back.start(reason="no rule")).promote(attempt())
    assert ended.corrections[QUARANTINE].parts is None
    last = opened(spark, tmp_path, 2, none)
    assert open_errors(last, "t").collect() == []
    arrive(last, {**kv(4, "e", 1), "extra": "x"})
    assert applied(last, copy) == {
        1: ("a", 9), 2: ("c", 8), 3: ("d", 3), 4: ("e", 1),
    }  # fmt: skip


def _open_since(deployment: Deployment, lower: int) -> set[str]:
    control = deployment.control
    versions = [control.log(one).head().version for one in (QUARANTINE, T)]
    pins = ErrorPins(versions[0], versions[1], Txn(4), Txn(lower))
    spec, uri = specs_of(deployment.config).of(T), deployment.shard_uri(QUARANTINE)
    return {row["_key"] for row in errors_of(deployment.session(), spec, uri, pins).collect()}


def test_with_a_sequence_a_promotion_wins_and_later_records_compete_with_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The new generation finds records bad that the old one has taken, so it has older rows."""
    schema = f"{COLUMNS}, extra STRING"
    shards = (
        {**OLD, "schema": schema, "sequence_by": "n"},
        {**NEW, "schema": f"{schema} NOT NULL", "sequence_by": "n"},
    )

    def records(*known: tuple[int, str, int], extra: str | None = "x") -> list[dict[str, Any]]:
        return [{**kv(*one), "extra": extra} for one in known]

    old = opened(spark, tmp_path, 0, shards[0])
    arrive(old, *records((1, "a", 5), (2, "b", 5), (3, "away", 5), (4, "gone", 9), (7, "c", 2), (8, "c", 2)))
    arrive(
        old,
        *records((1, "gone", 9), (2, "away", 9), (3, "x", 3), (4, "y", 7), (5, "gone", 4), (6, "away", 8)),
        *records((7, "d", 8), (8, "gone", 8), extra=None),
    )
    run_and_publish(old, attempt())
    works = Generations(opened(spark, tmp_path, 1, shards[1]))
    done = works.pair(works.start(reason="a value is needed")).promote(attempt())
    assert (done.corrections[T].upserts, done.corrections[T].deletes) == (5, 3)
    new = opened(spark, tmp_path, 1, shards[1])
    assert verify_state(new.control, new.state(), T) is not None
    assert {row["_key"] for row in open_errors(new, "t").collect()} == {'{"k":7}', '{"k":8}'}
    late = [(1, 7), (2, 7), (3, 6), (5, 5), (6, 7), (7, 5), (8, 5)]
    arrive(new, *records(*((key, "e", sequence) for key, sequence in late)))
    expected = {1: "gone", 3: "e", 4: "gone", 5: "e", 7: "e", 8: "e"}
    assert {row[0]: row[1] for row in rows(new)} == expected
    run_and_publish(new, attempt())
    assert rows_of(read(new, "t", view="state")) == rows(new)
    assert verify_state(new.control, new.state(), T) is not None
    assert open_errors(new, "t").collect() == []


def _after(deployment: Deployment) -> None:
    """State and fresh view agree, and the state is what was published."""
    assert verify_state(deployment.control, deployment.state(), T) is not None
    assert rows_of(read(deployment, "t", view="state")) == rows(deployment)


def test_another_key_type_and_order_replace_a_shard(spark: SparkSession, tmp_path: Path) -> None:
    old = opened(spark, tmp_path, 0, OLD)
    arrive(old, kv(1, "a", 5), kv(2, "a", 6), kv(3, "b", 7), kv(4, "gone", 1))
    copy = applied(old, {})
    arrive(old, kv(1, "c", 8), kv(3, "gone", 9), kv(5, "c", 2))
    run_and_publish(old, attempt())
    before = rows(old)

    # Another key, and another type of a column: two rows have the key c, and the last of them counts.
    by_value = {**OLD, "keys": ["v"], "schema": "k INT, v STRING, n BIGINT"}
    works = Generations(opened(spark, tmp_path, 1, by_value))
    found = plan(works.deployment)
    assert found.replaced == {"t": ("column n INT -> BIGINT", "keys [k] -> [v]")}
    assert (found.stops, found.refused) == (("copy/t",), ())
    with pytest.raises(InvalidUsage, match=r"replaces shard t: .*consumers copy/t stop"):
        works.start(reason="by value")
    with pytest.raises(InvalidUsage, match="is replaced only where all its input is read again"):
        works.start(reason="by value", from_now=True, replaces=["t"])
    pair = works.pair(works.start(reason="by value", replaces=["t"]))
    list(pair.follow(attempt()))
    compared = pair.compare()[T]
    assert (compared.inserted, compared.changed, compared.deleted) == (3, 0, 3)
    assert rows(old) == before, "nobody has seen anything of it"
    assert pair.promote(attempt()).txn == 3
    new = opened(spark, tmp_path, 1, by_value)
    assert (new.config.generation, new.proposal) == (1, "")
    assert {row["v"]: (row["k"], row["n"]) for row in read(new, "t").collect()} == {
        "a": (2, 6), "b": (3, 7), "c": (5, 2),
    }  # fmt: skip
    _after(new)
    _by_others(new)
    for work in (lambda: read(new, "t", as_of=2), lambda: read(new, "t", view="log", as_of=1)):
        with pytest.raises(BeforeReplacement, match="transaction 3 replaced it"):
            work()
    assert [row["_txn"] for row in read(new, "t", view="log").collect()] == [3, 3, 3]
    found_now = replay(new.pipeline, attempt(), txn_from=Txn(1), txn_to=Txn(3))
    assert [one.verdict for one in found_now] == [Verdict.IDENTICAL] * 3
    with pytest.raises(Superseded):
        read(old, "t")
    arrive(new, kv(9, "a", 3_000_000_000), kv(10, "c", 1), kv(11, "d", 1))
    run_and_publish(new, attempt())
    _after(new)
    wanted = {"a": (9, 3_000_000_000), "b": (3, 7), "c": (10, 1), "d": (11, 1)}
    assert {row["v"]: (row["k"], row["n"]) for row in read(new, "t").collect()} == wanted
    _consumed(new, copy, wanted)
    _ordered(spark, tmp_path, by_value)


def _by_others(deployment: Deployment) -> None:
    """Programs that know nothing of Tidemark read the new state at the old address."""
    uri = f"{deployment.shard_uri(T)}/state"
    table = DeltaTable(uri)
    assert {field.name: str(field.type) for field in table.schema().fields}["n"] == 'PrimitiveType("long")'
    assert pl.read_delta(uri).sort("v").rows() == [(2, "a", 6), (3, "b", 7), (5, "c", 2)]
    publishes = deployment.control.publishes(T)
    versions = {one.txn: one.version for one in publishes.read(1, publishes.head().upper)}
    assert pl.read_delta(uri, version=versions[Txn(2)]).sort("k").rows() == [
        (1, "c", 8),
        (2, "a", 6),
        (5, "c", 2),
    ]


def _consumed(
    deployment: Deployment, copy: dict[int, tuple[str, int]], wanted: dict[str, tuple[int, int]]
) -> None:
    """A consumer from before stops, agrees, and gets the whole new state."""
    had = dict(copy)
    with pytest.raises(ShardReplaced, match="transaction 3 replaced shard 't'"):
        applied(deployment, copy)
    assert copy == had
    (status,) = consumers_of(deployment)
    assert status.frozen == "transaction 3 replaced the shard: it has not agreed to a snapshot"
    with pytest.raises(InvalidUsage, match="transaction 2 is not the one that replaced"):
        accept_replacement(deployment, "t", "copy", 2)
    accept_replacement(deployment, "t", "copy", 3)
    with Consumer(deployment, "t", "copy") as consumer:
        batch = consumer.snapshot()
        assert (batch.is_snapshot, batch.txn) == (True, 4)
        assert {row["v"]: (row["k"], row["n"]) for row in batch.frame.collect()} == wanted
    with Consumer(deployment, "t", "copy", accept=3) as consumer:
        consumer.snapshot()
        consumer.delivered()
        assert list(consumer.listen()) == []


def _ordered(spark: SparkSession, root: Path, before: dict[str, Any]) -> None:
    """An order: late records stay beaten, also by tombstones of before. Then back, with what has come."""
    rule = {**before, "sequence_by": "n", "apply_as_deletes": "k = 9"}
    works = Generations(opened(spark, root, 2, rule))
    assert plan(works.deployment).replaced == {"t": ("sequence_by none -> n",)}
    works.pair(works.start(reason="in order", replaces=["t"])).promote(attempt())
    new = opened(spark, root, 2, rule)
    assert {row["v"]: (row["k"], row["n"]) for row in read(new, "t").collect()} == {
        "b": (3, 7), "c": (1, 8), "d": (11, 1), "gone": (3, 9),
    }  # fmt: skip
    _after(new)
    arrive(new, kv(1, "a", 10), kv(2, "c", 7), kv(3, "d", 2))
    for _ in range(2):
        assert {row["v"]: (row["k"], row["n"]) for row in read(new, "t").collect()} == {
            "b": (3, 7), "c": (1, 8), "d": (3, 2), "gone": (3, 9),
        }  # fmt: skip
        run_and_publish(new, attempt())
        _after(new)
    rebuild(new.control, new.state(), T, token=attempt().token, generation=2)
    _after(new)
    back = works.pair(Generations(opened(spark, root, 2, rule)).rollback(reason="no", replaces=["t"]))
    assert back.promote(attempt()).txn == 7
    last = opened(spark, root, 2, rule)
    assert last.config.generation == 3
    assert {row["v"]: (row["k"], row["n"]) for row in read(last, "t").collect()} == {
        "a": (1, 10), "b": (3, 7), "c": (2, 7), "d": (3, 2),
    }  # fmt: skip
    _after(last)
