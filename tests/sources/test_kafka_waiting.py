"""Since when the records of a topic wait: the time of the first one that no transaction has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from confluent_kafka import TopicPartition

from tests.sources.test_kafka_offers import GivenCluster, bound, source_on
from tests.support.kafka import Broker
from tidemark.core.errors import Determinate
from tidemark.ports.source import Waiting
from tidemark.sources.kafka.cluster import Cluster

CLIENT_SECONDS_MAX = 240
"""What the client takes at most."""


@dataclass
class TimedCluster(GivenCluster):
    """Knows when the first record from an offset on was written."""

    times: dict[tuple[str, int], float] = field(default_factory=dict)
    asked: list[Mapping[str, int]] = field(default_factory=list)

    def first_times(self, group: str, starts: Mapping[str, int]) -> dict[str, float]:
        self.asked.append(starts)
        return {
            name: self.times[name, start] for name, start in starts.items() if (name, start) in self.times
        }


def test_the_oldest_of_the_partitions_with_lag_counts() -> None:
    times = {("t-0", 5): 50.0, ("t-1", 2): 40.0}
    cluster = TimedCluster({"t-0": (0, 9), "t-1": (1, 3), "t-2": (0, 4)}, times=times)
    last = bound({"t-0": 5, "t-1": 2, "t-2": 4})
    assert source_on(cluster).waiting(last) == Waiting(5, oldest_seconds=40.0, unit="offsets")
    assert cluster.asked == [{"t-0": 5, "t-1": 2}]


def test_offsets_without_a_record_are_nothing_that_waits() -> None:
    """Markers of transactions, records of aborted ones, gaps."""
    assert source_on(TimedCluster({"t-0": (0, 9)})).waiting(bound({"t-0": 5})) == Waiting(unit="offsets")


def test_before_the_first_run_it_waits_from_where_the_pipeline_begins() -> None:
    cluster = TimedCluster({"t-0": (3, 9)}, times={("t-0", 3): 30.0})
    assert source_on(cluster).waiting(None) == Waiting(6, oldest_seconds=30.0, unit="offsets")
    assert source_on(cluster, start="latest").waiting(None) == Waiting(unit="offsets")


@pytest.mark.parametrize(
    ("ends", "trouble"),
    [
        ((7, 9), "t-0 continues at offset 5, but has 7 to 9"),
        ((0, 3), "t-0 continues at offset 5, but has 0 to 3"),
    ],
    ids=["expired", "cut"],
)
def test_what_can_not_go_on_is_trouble_and_not_on_time(ends: tuple[int, int], trouble: str) -> None:
    found = source_on(TimedCluster({"t-0": ends})).waiting(bound({"t-0": 5}))
    assert (found.trouble, found.oldest_seconds) == (trouble, None)


def test_a_cluster_that_does_not_answer_is_trouble() -> None:
    class Silent(TimedCluster):
        def first_times(self, group: str, starts: Mapping[str, int]) -> dict[str, float]:
            raise Determinate("no record of t-0 in 1 s")

    assert "no record of t-0" in source_on(Silent({"t-0": (0, 9)})).waiting(bound({"t-0": 5})).trouble


def test_partitions_that_send_nothing_in_time_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader:
        def assign(self, partitions: Sequence[TopicPartition]) -> None:
            pass

    @contextmanager
    def member(self: Cluster, group: str, more: object) -> Iterator[Reader]:
        yield Reader()

    monkeypatch.setattr(Cluster, "_member", member)
    cluster = Cluster(lambda: {"bootstrap.servers": "given:9092"}, wait_seconds_max=0)
    with pytest.raises(Determinate, match="given:9092 has not sent a record of t-0, t-1 in 0 s"):
        cluster.first_times("g", {"t-1": 1, "t-0": 5})


@pytest.mark.server
def test_the_first_records_of_several_partitions_are_fetched_from_a_real_broker(broker: Broker) -> None:
    """One partition has what an aborted transaction left, and one nothing at all."""
    topic = broker.make("first-times", 4)
    for second, partition in ((30, 0), (40, 0), (10, 1), (20, 1)):
        broker.send(topic, [("k", "v")] * 2, partition=partition, timestamp=second * 1000)
    producer = broker.producer(transactional_id="first-times")
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, "v", partition=2)
    assert producer.flush(60) == 0
    producer.abort_transaction(60)
    cluster = Cluster(lambda: {"bootstrap.servers": broker.servers}, wait_seconds_max=CLIENT_SECONDS_MAX)
    asked = {f"{topic}-0": 0, f"{topic}-1": 2, f"{topic}-2": 0, f"{topic}-3": 0}
    assert cluster.first_times("g", asked) == {f"{topic}-0": 30.0, f"{topic}-1": 20.0}
    assert cluster.committed("g", asked) == {}
    broker.expire(topic, 0, 1)
    with pytest.raises(Determinate, match="does not answer"):
        cluster.first_times("g", {f"{topic}-0": 0})
