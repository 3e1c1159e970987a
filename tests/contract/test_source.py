"""What every source promises. Another implementation plugs in by a fixture `rig` of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.contract.helpers import SHARDS, Scripted, binding
from tests.support.memory.ledger import Fault
from tests.support.memory.source import MemorySource, MemorySourceView, SourceRecord
from tidemark.core.ids import Frontier
from tidemark.ports.source import Source


@dataclass(frozen=True)
class Rig:
    """A source of source transactions of given sizes, that can also lose its last records."""

    source: Callable[[], Source]
    append: Callable[[str, int], None]
    truncate: Callable[[str, int], None]
    acknowledged: Callable[[], Frontier]


RECORDS_MAX = 4


@pytest.fixture
def rig() -> Rig:
    truth = MemorySource(records_max=RECORDS_MAX)

    def append(partition: str, records: int) -> None:
        made = [SourceRecord(SHARDS[0], (n,), "v", ends=n == records - 1) for n in range(records)]
        truth.append(partition, *made)

    def truncate(partition: str, size: int) -> None:
        del truth.partitions[partition][size:]

    return Rig(lambda: MemorySourceView(truth), append, truncate, lambda: truth.acknowledged)


def test_an_empty_source_offers_nothing(rig: Rig) -> None:
    assert list(rig.source().offer(None)) == []


def test_steps_grow_end_at_source_transactions_and_reach_the_end(rig: Rig) -> None:
    for size in (3, 3, 1, 3):
        rig.append("p", size)
    uppers = [step.upper["p"] for step in rig.source().offer(None)]
    assert uppers == sorted(set(uppers))
    assert set(uppers) <= {3, 6, 7, 10}
    assert uppers[-1] == 10


def test_a_step_is_not_larger_than_a_transaction_may_be_unless_one_record_group_is(rig: Rig) -> None:
    for size in (2, 2, 2, 9, 1):
        rig.append("p", size)
    uppers = [0, *(step.upper["p"] for step in rig.source().offer(None))]
    sizes = [upper - lower for lower, upper in pairwise(uppers)]
    assert all(size <= RECORDS_MAX or size == 9 for size in sizes)


def test_an_offer_continues_above_the_last_binding(rig: Rig) -> None:
    rig.append("p", 2)
    rig.append("q", 1)
    last = binding(1, {}, {"p": 2})
    assert [step.upper for step in rig.source().offer(last)] == [Frontier.of({"p": 2, "q": 1})]
    assert list(rig.source().offer(binding(2, {"p": 2}, {"p": 2, "q": 1}))) == []


def test_an_open_source_transaction_is_not_offered(rig: Rig) -> None:
    rig.append("p", 2)
    rig.append("p", 3)
    rig.truncate("p", 4)
    assert [step.upper["p"] for step in rig.source().offer(None)] == [2]


def test_s5_a_source_that_shrank_below_its_binding_is_reported_as_it_is(rig: Rig) -> None:
    rig.append("p", 2)
    rig.append("p", 2)
    last = binding(1, {}, {"p": 4})
    assert rig.source().inspect(last) == ""
    rig.truncate("p", 2)
    assert "'p'" in rig.source().inspect(last)
    assert all(not last.upper <= step.upper for step in rig.source().offer(last))


def test_invariant_10_an_acknowledgement_never_goes_back(rig: Rig) -> None:
    """Invariant 10: the acknowledged position never regresses."""
    source = rig.source()
    source.acknowledge(Frontier.of({"p": 5, "q": 1}))
    source.acknowledge(Frontier.of({"p": 3, "q": 2}))
    assert rig.acknowledged() == Frontier.of({"p": 5, "q": 2})


def test_invariant_10_a_lost_acknowledgement_is_made_good_by_the_next() -> None:
    """Invariant 10: the source remembers too much for a while, never too little."""
    truth = MemorySource()
    source = MemorySourceView(truth, Scripted({"source.acknowledge": [Fault.LOSE_REQUEST]}))
    source.acknowledge(Frontier.of({"p": 5}))
    assert truth.acknowledged == Frontier()
    source.acknowledge(Frontier.of({"p": 6}))
    assert truth.acknowledged == Frontier.of({"p": 6})
