"""Laws of frontiers and bindings, over random offers and minters. Checks Invariant 1."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.memory.ledger import Fault
from tests.support.memory.world import Script, World, rec
from tidemark.core.binding import Binding, Configuration, Owner, Step, decide_mint
from tidemark.core.ids import Frontier, FrontierRegressed, checked_successor
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.pipeline.reclock import mint

PARTITIONS = ("p0", "p1", "p2")


with_zeros = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 6)).map(Frontier.of)


def holds(binding: Binding, partition: str, offset: int) -> bool:
    """Whether a binding's input has this record."""
    return binding.lower[partition] <= offset < binding.upper[partition]


@given(with_zeros, with_zeros, with_zeros)
def test_frontiers_are_partially_ordered(a: Frontier, b: Frontier, c: Frontier) -> None:
    assert a <= Frontier(a.offsets)
    assert not a <= b <= c or a <= c
    assert (a < b) == (a <= b and not b <= a)
    same_place = all(a[name] == b[name] for name in PARTITIONS)
    assert (a <= b <= a) == same_place


@given(with_zeros, with_zeros)
def test_a_successor_covers_all_that_was_covered(bound: Frontier, offered: Frontier) -> None:
    known = offered.as_dict()
    if all(known.get(partition, -1) >= offset for partition, offset in bound.offsets):
        assert checked_successor(bound, offered) is offered
        assert bound <= offered
    else:
        with pytest.raises(FrontierRegressed):
            checked_successor(bound, offered)


@given(st.lists(st.lists(with_zeros, max_size=4), max_size=8))
def test_each_record_belongs_to_exactly_one_transaction_for_any_series_of_offers(
    offers: list[list[Frontier]],
) -> None:
    """Offers that fall behind are refused whole; whatever is bound, no record is bound twice or between."""
    bindings = []
    for number, steps in enumerate(offers):
        last = bindings[-1] if bindings else None
        head = Head(number, {UPPER: len(bindings) + 1})
        try:
            put = decide_mint(
                head=head, last=last, found=(), steps=[Step(step) for step in steps],
                owner=Owner(f"r{number}"), configuration=Configuration.of("{}"),
            )  # fmt: skip
        except FrontierRegressed:
            continue
        assert isinstance(put, Put)
        assert head.moved(put.marks).get(UPPER, 1) == len(bindings) + 1 + len(put.result.txns)
        bindings += put.records if put.result.txns else []
    assert [binding.txn for binding in bindings] == list(range(1, len(bindings) + 1))
    for before, after in pairwise(bindings):
        assert before.upper == after.lower
        assert before.upper < after.upper
    for partition in PARTITIONS:
        for offset in range(8):
            holding = [binding.txn for binding in bindings if holds(binding, partition, offset)]
            assert len(holding) <= 1
            assert bool(holding) == bool(bindings and offset < bindings[-1].upper[partition])


commit_faults = st.sampled_from(
    [Fault.NONE, Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY, Fault.DUPLICATE]
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"),
            st.sampled_from(PARTITIONS),
            st.integers(0, 3),
            st.booleans(),
            commit_faults,
        ),
        max_size=12,
    )
)
def test_any_minters_in_any_interleaving_bind_each_record_once(
    minters: list[tuple[str, str, int, bool, Fault]],
) -> None:
    """Each minter may be overtaken by the next one just before its commit, and may lose its reply."""
    world = World(records_max=2)
    owned: dict[str, tuple[int, ...]] = {}
    todo = list(minters)

    def go() -> None:
        if not todo:
            return
        name, partition, records, overtaken, fault = todo.pop(0)
        world.feed(*(rec("k", n) for n in range(records)), partition=partition)
        script = Script().fault("bindings.commit", fault)
        if overtaken:
            script.before("bindings.commit", go)
        found = tuple(mint(world.process(script), world.attempt(name)).txns)
        assert owned.setdefault(name, found) == found, "what a run owns never changes"

    while todo:
        go()
        for _ in world.warehouse.land_delayed():
            pass
    assert [binding.txn for binding in world.bindings] == sorted(
        txn for txns in owned.values() for txn in txns
    )
    sizes = {name: len(records) for name, records in world.source.partitions.items()}
    for partition, size in sizes.items():
        for offset in range(size):
            assert sum(holds(binding, partition, offset) for binding in world.bindings) <= 1
