"""Which offsets belong to which transaction, against a real broker: scenarios S1 to S5, U9, and what a broker
does by itself: transactions that abort, compaction, retention, topics that grow, go and come back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.attempts import ingest, validate
from tests.support.kafka import Broker
from tests.support.kafka_pipeline import Rig, kv
from tidemark.app import maintenance
from tidemark.app.maintenance import Terms
from tidemark.app.status import proofs_of
from tidemark.app.views import View
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.replay import InputGone, Replayable, Verdict
from tidemark.core.seal import Decision, Lost
from tidemark.pipeline import replay
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.decide import skip
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.run import run
from tidemark.pipeline.upsert import commit_staged
from tidemark.sources.kafka.source import TopicLost

pytestmark = [pytest.mark.spark, pytest.mark.server]
WAIT_SECONDS_MAX = 180


def numbered(first: int, upper: int) -> list[Any]:
    return [kv(f"k{number}", "v") for number in range(first, upper)]


def bind(rig: Rig) -> list[Any]:
    """What a run would bind next, without reading it."""
    works = rig.opened()
    bindings = rig.bindings()
    return list(works.pipeline.source.offer(bindings[-1] if bindings else None))


def test_s1_the_resume_point_is_the_last_binding_and_never_the_groups_offsets(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, broker, broker.make("s1", 2))
    broker.send("s1", numbered(0, 3))
    rig.run()
    # A new broker sets up its groups when it is first asked about one; a run that it refuses goes on.
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not rig.committed() and time.monotonic() < deadline:
        time.sleep(0.5)
        rig.run()
    assert rig.committed() == {"s1-0": 3, "s1-1": 0}
    works = rig.opened()
    works.pipeline.source._cluster.commit("tidemark-s1", {"s1-0": 1})  # type: ignore[attr-defined]
    broker.send("s1", numbered(3, 5))
    rig.run()
    assert rig.ranges() == [{"s1-0": [0, 3]}, {"s1-0": [3, 5]}]
    assert rig.committed() == {"s1-0": 5, "s1-1": 0}
    works.pipeline.source._cluster.commit("tidemark-s1", {"s1-0": 1_000})  # type: ignore[attr-defined]
    rig.run()
    assert rig.committed()["s1-0"] == 1_000, "an acknowledgement never goes back"
    broker.send("s1", numbered(5, 6))
    rig.run()
    assert rig.ranges()[2:] == [{"s1-0": [5, 6]}]


def test_s2_a_start_offset_of_100_of_3000_then_1000_more(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, broker, broker.make("s2"), source={"start": {"offsets": {"s2-0": 100}}})
    broker.send("s2", numbered(0, 3_000))
    rig.run()
    assert (len(rig.seen()), rig.seals()[0].source.count) == (2_900, 2_900)
    rig.publish()
    broker.send("s2", numbered(3_000, 4_000))
    rig.run()
    # Half of it is in the state and half in the log; then all of it in the state.
    assert rig.seen() == {f"k{number}": "v" for number in range(100, 4_000)}
    rig.publish()
    assert rig.seen(View.STATE) == rig.seen() == rig.table()
    assert (len(rig.table()), rig.ranges()) == (3_900, [{"s2-0": [100, 3_000]}, {"s2-0": [3_000, 4_000]}])


def test_latest_begins_at_the_first_run_even_when_that_found_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, broker, broker.make("latest"), source={"start": "latest"})
    broker.send("latest", numbered(0, 2))
    rig.run()
    assert (rig.ranges(), rig.bindings()[0].upper.as_dict()) == ([{}], {"latest-0": 2})
    broker.send("latest", numbered(2, 4))
    rig.run()
    assert rig.ranges()[1:] == [{"latest-0": [2, 4]}]
    empty = Rig(spark, tmp_path, broker, broker.make("empty"), name="empty", source={"start": "latest"})
    empty.run()
    assert empty.bindings() == []
    broker.send("empty", numbered(0, 2))
    empty.run()
    assert empty.ranges() == [{"empty-0": [0, 2]}]


def test_a_start_time_takes_the_records_from_then_on_and_an_impossible_offset_is_refused(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    broker.make("timed", 2)
    for second, partition in ((10, 0), (20, 0), (30, 0), (10, 1)):
        broker.send(
            "timed", [kv(f"{second}-{partition}", "v")], partition=partition, timestamp=second * 1_000
        )
    start = {"timestamp": "1970-01-01T00:00:15Z"}
    rig = Rig(spark, tmp_path, broker, "timed", source={"start": start})
    (step,) = bind(rig)
    assert step.upper.as_dict() == {"timed-0": 3, "timed-1": 1}
    rig.run()
    assert rig.ranges() == [{"timed-0": [1, 3]}]
    beyond = Rig(
        spark, tmp_path, broker, "timed", source={"start": {"offsets": {"timed-0": 4}}}, name="beyond"
    )
    with pytest.raises(InvalidUsage, match="the start 4 of timed-0 is above its end 3"):
        beyond.run()


def test_max_records_cuts_a_backlog_into_equal_shares(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, broker, broker.make("shares", 3), transaction={"max_records": 6})
    for partition, upper in ((0, 1), (1, 7), (2, 9)):
        broker.send("shares", numbered(0, upper), partition=partition)
    rig.run(transactions_max=0)
    assert rig.ranges() == [
        {"shares-0": [0, 1], "shares-1": [0, 2], "shares-2": [0, 3]},
        {"shares-1": [2, 5], "shares-2": [3, 6]},
        {"shares-1": [5, 7], "shares-2": [6, 9]},
    ]


def test_aborted_and_open_transactions_are_never_read_and_offsets_are_bound_up_to_the_stable_one(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic = broker.make("txns")
    rig = Rig(spark, tmp_path, broker, topic)
    producer = broker.producer(transactional_id="writer")
    producer.init_transactions(30)

    def send(key: str, value: str) -> None:
        sent_key, document = kv(key, value)
        producer.produce(topic, document, key=sent_key)

    producer.begin_transaction()
    send("a", "committed")
    producer.commit_transaction(30)
    producer.begin_transaction()
    send("a", "aborted")
    send("b", "aborted")
    producer.flush(30)
    producer.abort_transaction(30)
    producer.begin_transaction()
    send("a", "open")
    producer.flush(30)
    rig.run()
    # a, its marker, two aborted ones, their marker; the open one is at 5.
    assert (rig.ranges(), rig.table()) == ([{"txns-0": [0, 5]}], {"a": "committed"})
    assert rig.seals()[0].source.count == 1
    producer.commit_transaction(30)
    rig.run()
    assert (rig.ranges()[1:], rig.table()) == ([{"txns-0": [5, 7]}], {"a": "open"})
    producer.begin_transaction()
    send("z", "aborted")
    producer.flush(30)
    producer.abort_transaction(30)
    rig.run()
    assert (rig.seals()[2].source.count, rig.table()) == (0, {"a": "open"})
    assert {finding.verdict for finding in rig.replayed()} == {Verdict.IDENTICAL}


def test_s3_gaps_of_a_compacted_topic_are_no_loss_and_its_replay_tells_that_records_are_gone(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic = broker.make("compacted", segment_ms="100", max_compaction_lag_ms="100")
    for number in range(5):
        broker.send(topic, [kv("a", str(number)), kv(f"k{number}", "v")], timestamp=int(time.time() * 1_000))
        time.sleep(0.15)
    early = Rig(spark, tmp_path, broker, topic, name="early")
    early.run()
    (before,) = early.seals()
    broker.configure(topic, cleanup_policy="compact")
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    late = Rig(spark, tmp_path, broker, topic, name="late")
    while True:
        # A new segment lets the cleaner at the one before; another key each time, and none of those above.
        broker.send(topic, [kv("roll", "x")], timestamp=int(time.time() * 1_000))
        (finding,) = early.replayed()
        if finding.verdict is Verdict.DIFFERS:
            break
        assert time.monotonic() < deadline, "the broker has not compacted"
        time.sleep(0.3)
    assert before.source.count == 10
    late.run()
    expected = {"a": "4", "roll": "x", **{f"k{number}": "v" for number in range(5)}}
    assert late.table() == expected
    (range_,) = late.ranges()
    assert late.seals()[0].source.count < range_["compacted-0"][1]


def test_a_transaction_is_replayable_until_the_retention_reaches_its_first_record(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    now_ms, hour_ms = int(time.time() * 1_000), 3_600_000
    topic = broker.make("kept", 2, retention_ms=str(168 * hour_ms))
    rig = Rig(spark, tmp_path, broker, topic)
    for hours, partition in ((150, 0), (100, 1), (2, 0)):
        broker.send(topic, [kv("k", "v")], partition=partition, timestamp=now_ms - hours * hour_ms)
        rig.run(transactions_max=0)
    works = rig.opened()

    def left_hours() -> list[float | None]:
        found = replay.replayable(works.pipeline).values()
        return [one.until_seconds and (one.until_seconds * 1_000 - now_ms) / hour_ms for one in found]

    assert left_hours() == [18, 68, 166]
    terms = Terms(now_ms, Txn(1), Txn(1), 0)
    assert maintenance.warnings(works, Txn(1), terms) == (
        "transaction 1 can be proven for 18 more hours, then its source deletes the input",
    )
    broker.configure(topic, cleanup_policy="compact")
    assert left_hours() == [None, None, None]
    (shown,) = proofs_of(works.pipeline, Txn(1), 10)  # What status shows.
    assert (shown.first, shown.last, shown.until, shown.gone) == (1, 3, None, "")
    assert shown.caveat.startswith("topic 'kept' is compacted")
    broker.configure(topic, cleanup_policy="delete", retention_bytes="1000000")
    broker.expire(topic, 0, 1)
    gone, *others = replay.replayable(works.pipeline).values()
    assert gone == Replayable("offset 0 of kept-0 has expired: the partition begins at 1")
    assert [one.caveat for one in others] == [
        "topic 'kept' keeps 1000000 bytes of a partition, whatever their age"
    ] * 2


def test_s4_expired_offsets_are_named_and_nothing_moves_until_a_skip_is_recorded(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, broker, broker.make("s4", 2))
    broker.send("s4", numbered(0, 3))
    rig.run()
    broker.send("s4", numbered(3, 10))
    broker.send("s4", [kv("other", "v")], partition=1)
    broker.expire("s4", 0, 7)
    fact = r"transaction 2 is gone: offsets 3 to 6 of s4-0 have expired: the partition begins at 7"
    for _ in range(2):
        with pytest.raises(InputGone, match=fact):
            rig.run()
        assert (len(rig.seals()), len(rig.bindings())) == (1, 3)
    works = rig.opened()
    skip(works.pipeline, rig.attempt(), Txn(2), reason="the retention was too short, ticket 7")
    rig.run()
    assert rig.ranges() == [{"s4-0": [0, 3]}, {"s4-0": [3, 7]}, {"s4-0": [7, 10], "s4-1": [0, 1]}]
    assert [seal.decision for seal in rig.seals()] == [
        Decision.COMMITTED,
        Decision.SKIPPED,
        Decision.COMMITTED,
    ]
    assert sorted(rig.table()) == sorted(["k0", "k1", "k2", "k7", "k8", "k9", "other"])
    verdicts = [finding.verdict for finding in rig.replayed()]
    assert verdicts == [Verdict.INPUT_GONE, Verdict.IDENTICAL, Verdict.IDENTICAL]


def test_s4_offsets_that_expire_after_they_were_bound_stop_that_transaction(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, broker, broker.make("s4b"))
    broker.send("s4b", numbered(0, 4))
    rig.run(transactions_max=0)
    broker.expire("s4b", 0, 1)
    with pytest.raises(InputGone, match="offset 0 of s4b-0 has expired: the partition begins at 1"):
        rig.run()
    assert rig.seals() == []
    # The reader itself notices too, when they expire after they were looked for.
    with pytest.raises(InputGone, match="input of transaction 1 is gone"):
        rig.opened().plane().stage(rig.bindings()[0], WriterToken("late"))


def test_m1_what_a_peer_has_decided_meanwhile_is_dropped_and_our_frontier_is_past_it(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, broker, broker.make("m1"), transaction={"max_records": 1})
    broker.send("m1", numbered(0, 2))
    slow, ours = rig.opened(), rig.attempt()
    assert reclock(slow.pipeline, ours).finish == (1, 2)
    staged: Any = ingest(slow.pipeline, ours, Txn(1))
    rig.run()  # A peer finishes both.
    rows = rig.rows()
    lost = commit_staged(slow.pipeline, ours, staged, validate(slow.pipeline, staged))
    assert isinstance(lost, Lost)
    assert isinstance(ingest(slow.pipeline, ours, Txn(2)), Lost)
    assert checkpoint(slow.pipeline) == 2
    assert (rig.rows(), rig.ranges()) == (rows, [{"m1-0": [0, 1]}, {"m1-0": [1, 2]}])
    assert not list(tmp_path.rglob(f"*{ours.token}*/*.parquet")), "what lost left no file behind"


def test_m12_checkpoints_and_group_offsets_advance_while_runs_overlap_without_end(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, broker, broker.make("m12"))
    broker.send("m12", numbered(0, 1))
    works, ours = rig.opened(), rig.attempt()
    reclock(works.pipeline, ours)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    for number in range(1, 4):
        broker.send("m12", numbered(number, number + 1))
        following = rig.opened(), rig.attempt()
        reclock(following[0].pipeline, following[1])  # From here on the next transaction is open.
        assert run(works.pipeline, ours).checkpoint == number
        assert len(rig.bindings()) == number + 1
        while rig.committed() != {"m12-0": number}:  # A new broker has to set up its groups first.
            assert time.monotonic() < deadline
            time.sleep(0.5)
            checkpoint(works.pipeline)
        works, ours = following


def test_s5_a_topic_that_is_gone_or_made_anew_is_a_permanent_error_and_others_go_on(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rig = Rig(spark, tmp_path, broker, broker.make("s5", 2))
    other = Rig(spark, tmp_path, broker, broker.make("s5-other"), name="other")
    for topic in ("s5", "s5-other"):
        broker.send(topic, numbered(0, 2))
    rig.run()
    broker.remove("s5")
    with pytest.raises(TopicLost, match="topic 's5' is gone from kafka at"):
        rig.run()
    (finding,) = rig.replayed()
    assert (finding.verdict, "offsets 0 to 1 of s5-0: topic 's5' is gone" in finding.why) == (
        Verdict.INPUT_GONE,
        True,
    )
    broker.make("s5", 1)
    # As many records as before: only the topic's id tells that it is another one.
    broker.send("s5", numbered(5, 9))
    with pytest.raises(TopicLost, match=r"topic 's5' was created again: it has id \S+, but \S+ is bound"):
        rig.run()
    assert (len(rig.bindings()), len(rig.seals())) == (1, 1)
    assert "was created again" in rig.replayed()[0].why
    other.run()
    assert sorted(other.table()) == ["k0", "k1"]


def test_s5_u9_new_partitions_begin_at_0_and_a_topic_that_is_added_at_its_earliest(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """10,000 keys over 5 partitions; grow to 10; resend keys 0 to 999; restart; add 10,000: 20,000."""
    rig = Rig(spark, tmp_path, broker, broker.make("u9", 5))
    for partition in range(5):
        broker.send("u9", numbered(partition * 2_000, (partition + 1) * 2_000), partition=partition)
    rig.run()
    assert len(rig.seen()) == 10_000
    rig.publish()
    broker.grow("u9", 10)
    for partition in range(10):
        broker.send("u9", numbered(partition * 100, (partition + 1) * 100), partition=partition)
    rig.run()
    assert len(rig.seen()) == 10_000
    assert rig.ranges()[1]["u9-9"] == [0, 100]
    for partition in range(10):
        first = 10_000 + partition * 1_000
        broker.send("u9", numbered(first, first + 1_000), partition=partition)
    rig.run()
    assert rig.seen() == {f"k{number}": "v" for number in range(20_000)}
    rig.publish()
    assert rig.seen(View.STATE) == rig.seen() == rig.table()
    broker.make("u9-more")
    broker.send("u9-more", [kv("more", "v")] * 3)
    broker.expire("u9-more", 0, 1)
    rig.settings["source"]["topics"].append("u9-more")
    rig.run()
    assert rig.ranges()[3:] == [{"u9-more-0": [1, 3]}]
    rig.settings["source"]["topics"].remove("u9")
    broker.send("u9-more", [kv("more", "w")])
    rig.run()
    assert (rig.ranges()[4:], rig.table()["more"]) == ([{"u9-more-0": [3, 4]}], "w")
