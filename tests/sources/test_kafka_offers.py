"""What a Kafka source offers for any state of a cluster, without one: the offsets of a cluster are given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.helpers import binding
from tidemark.config import KafkaSource
from tidemark.core.binding import Step
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.ids import Frontier, FrontierRegressed, checked_successor
from tidemark.core.ledger import UPPER, Head
from tidemark.sources.kafka.cluster import Topic
from tidemark.sources.kafka.manifest import KafkaManifest
from tidemark.sources.kafka.source import TopicSource


@dataclass
class GivenCluster:
    """A cluster as it is told to be: topics with their ids, and the two ends of each partition."""

    ends: dict[str, tuple[int, int]]
    ids: dict[str, str] = field(default_factory=lambda: {"t": "first"})
    group: dict[str, int] = field(default_factory=dict)
    is_closed: bool = False
    servers: str = "given:9092"

    def describe(self, names: Iterable[str]) -> dict[str, Topic]:
        parts = {name: tuple(p for p in self.ends if p.rpartition("-")[0] == name) for name in names}
        return {name: Topic(name, self.ids[name], parts[name]) for name in names if name in self.ids}

    def earliest(self, partitions: Iterable[str]) -> dict[str, int]:
        return {name: self.ends[name][0] for name in partitions}

    def stable(self, partitions: Iterable[str]) -> dict[str, int]:
        return {name: self.ends[name][1] for name in partitions}

    def committed(self, group: str, partitions: Iterable[str]) -> dict[str, int]:
        if self.is_closed:
            raise Determinate("the group can't be seen")
        return {name: self.group[name] for name in partitions if name in self.group}

    def commit(self, group: str, offsets: dict[str, int]) -> None:
        self.group |= offsets


def source_on(
    cluster: GivenCluster, *topics: str, records_max: int = 100, last: Any = None, **settings: Any
) -> TopicSource:
    config = {
        "type": "kafka",
        "topics": list(topics or ("t",)),
        "bootstrap_servers": "given:9092",
        **settings,
    }
    source = KafkaSource.model_validate(config)
    ledger: Any = GivenLedger(last)
    given_: Any = cluster
    return TopicSource(source, given_, bindings=ledger, owned=ledger, group="g", records_max=records_max)


@dataclass
class GivenLedger:
    """No run before this one, or one that has bound this."""

    last: Any = None

    def head(self) -> Head:
        return Head(0, {UPPER: 1 if self.last is None else 2})

    def mark(self, name: str) -> int:
        return 0

    def read(self, lower: int, upper: int) -> list[Any]:
        return [self.last] if self.last is not None and lower <= 1 < upper else []


def bound(upper: dict[str, int], *, topics: dict[str, str] | None = None) -> Any:
    manifest = KafkaManifest(topics or {"t": "first"}).to_json()
    made = binding(1, {}, upper)
    return type(made)(made.txn, made.lower, made.upper, made.owner, made.configuration, manifest)


def ranges(step: Step) -> dict[str, tuple[int, int]]:
    return {one.name: (one.lower, one.upper) for one in KafkaManifest.from_json(step.manifest).ranges}


def test_s5_a_partition_that_ends_below_its_binding_is_reported_as_it_is_and_refused() -> None:
    last = bound({"t-0": 5, "t-1": 5})
    (step,) = source_on(GivenCluster({"t-0": (0, 9), "t-1": (0, 3)})).offer(last)
    with pytest.raises(FrontierRegressed, match="'t-1' is bound up to 5, but in the source it ends at 3"):
        checked_successor(last.upper, step.upper)


def test_s5_fewer_partitions_than_bound_are_refused() -> None:
    last = bound({"t-0": 5, "t-1": 5})
    (step,) = source_on(GivenCluster({"t-0": (0, 9)})).offer(last)
    with pytest.raises(FrontierRegressed, match="'t-1' is bound up to 5, but in the source it is gone"):
        checked_successor(last.upper, step.upper)


def test_s4_a_new_partition_whose_beginning_has_expired_is_a_loss_too() -> None:
    last = bound({"t-0": 5})
    lost, rest = source_on(GivenCluster({"t-0": (0, 5), "t-1": (3, 4)})).offer(last)
    assert (ranges(lost), ranges(rest)) == ({"t-1": (0, 3)}, {"t-1": (3, 4)})


def test_s4_when_all_that_was_not_bound_has_expired_the_loss_is_all_there_is() -> None:
    (lost,) = source_on(GivenCluster({"t-0": (9, 9)})).offer(bound({"t-0": 5}))
    assert (ranges(lost), lost.upper.as_dict()) == ({"t-0": (5, 9)}, {"t-0": 9})


def test_what_expired_before_the_pipeline_began_is_no_loss() -> None:
    (step,) = source_on(GivenCluster({"t-0": (7, 9)})).offer(None)
    assert ranges(step) == {"t-0": (7, 9)}


def test_nothing_new_is_nothing_to_bind() -> None:
    last = bound({"t-0": 5})
    (step,) = source_on(GivenCluster({"t-0": (0, 5)})).offer(last)
    assert step.upper <= last.upper


def test_a_topic_that_is_not_listed_any_more_stays_where_it_is() -> None:
    last = bound({"t-0": 5, "old-0": 3}, topics={"t": "first", "old": "x"})
    (step,) = source_on(GivenCluster({"t-0": (0, 6)})).offer(last)
    assert step.upper.as_dict() == {"t-0": 6, "old-0": 3}
    assert KafkaManifest.from_json(step.manifest).topics == {"t": "first", "old": "x"}


@given(
    ends=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), min_size=1, max_size=6),
    records_max=st.integers(1, 20),
)
def test_every_offset_is_in_one_step_and_no_step_is_too_large(
    ends: list[tuple[int, int]], records_max: int
) -> None:
    """Invariant 1."""
    cluster = GivenCluster({f"t-{n}": (low, low + size) for n, (low, size) in enumerate(ends)})
    steps = source_on(cluster, records_max=records_max).offer(None)
    lower, taken = Frontier(), []
    for step in steps:
        checked_successor(lower, step.upper)
        lower = step.upper
        sizes = [upper - first for first, upper in ranges(step).values()]
        assert sum(sizes) <= records_max
        taken += [(name, at) for name, (first, upper) in ranges(step).items() for at in range(first, upper)]
    expected = {(name, at) for name, (low, end) in cluster.ends.items() for at in range(low, end)}
    assert (set(taken), len(taken)) == (expected, len(expected))
    assert lower.as_dict() == {name: end for name, (_, end) in cluster.ends.items()}


def test_invariant_10_an_acknowledgement_never_goes_back_and_never_stops_a_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Invariant 10."""
    cluster = GivenCluster({"t-0": (0, 9), "t-1": (0, 9)})
    source = source_on(cluster)
    source.acknowledge(Frontier.of({"t-0": 5, "t-1": 1, "other-0": 7}))
    source.acknowledge(Frontier.of({"t-0": 3, "t-1": 2}))
    assert cluster.group == {"t-0": 5, "t-1": 2}
    cluster.is_closed = True
    source.acknowledge(Frontier.of({"t-0": 9}))
    assert "the group can't be seen" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "[]", "{}", '{"kind":"files","files":[]}', '{"kind":"kafka","topics":{},"ranges":{"t-0":[0,1]}}',
        '{"kind":"kafka","topics":{"t":"x"},"ranges":{"t":[0,1]}}',
        '{"kind":"kafka","topics":{"t":"x"},"ranges":{"t-0":[-1,1]}}',
    ],
)  # fmt: skip
def test_a_manifest_that_was_changed_by_hand_is_refused(text: str) -> None:
    with pytest.raises(InvariantViolation):
        KafkaManifest.from_json(text)


def test_the_status_is_the_groups_offsets_and_what_is_not_bound_yet() -> None:
    ends = {f"t-{number}": (2, 10) for number in range(7)}
    cluster = GivenCluster(ends, group={"t-0": 4, "other-0": 9})
    begun = source_on(cluster)
    assert (begun.status().acknowledged, begun.status().cost) == ("t-0:4", "56 offsets to be read")
    # A partition that came since is read from 0.
    last = bound({f"t-{number}": 4 for number in range(6)})
    later = source_on(cluster, last=last)
    assert later.status().cost == "46 offsets to be read"
    shown = later.shown(last.upper)
    assert shown == "t-0:4 t-1:4 t-2:4 t-3:4 t-4:4 … (6 partitions, 24 offsets)"
    assert later.shown(Frontier()) == "nothing"


def test_the_status_says_what_the_cluster_does_not_tell() -> None:
    closed = source_on(GivenCluster({"t-0": (0, 10)}, is_closed=True)).status()
    assert closed.acknowledged.startswith("unknown (the group can't be seen")
    assert (closed.cost, closed.trouble) == ("10 offsets to be read", "")
    anew = source_on(GivenCluster({"t-0": (0, 10)}, ids={"t": "second"}), last=bound({"t-0": 5})).status()
    assert "topic 't' was created again" in anew.trouble
