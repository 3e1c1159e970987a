"""Laws of the table of cuts, over random transactions, publishes and losses. Checks Invariant 15."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tests.support.memory.ledger import Crash, Fault, MemoryLedger
from tests.support.memory.world import Script
from tidemark.core import publish as core_cuts
from tidemark.core.checksum import Digest
from tidemark.core.errors import TidemarkError
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import UPPER, Committed, Put
from tidemark.core.publish import Published, StateCommit
from tidemark.core.seal import Decision, Part, Seal, ShardParts, touch_mark
from tidemark.pipeline.checkpoint import advance_cut, cuts_of

SHARDS = tuple(map(ShardId, ("a", "b", "c")))
PARTS = ShardParts((Part("x", 1, 1),), Digest.of([1]))

steps = st.lists(
    st.one_of(
        st.tuples(st.just("seal"), st.sets(st.sampled_from(SHARDS))),
        st.tuples(st.just("publish"), st.sampled_from(SHARDS)),
        st.tuples(st.just("cut"), st.none()),
        st.tuples(st.just("lose"), st.none()),
    ),
    max_size=30,
)


def put(ledger: Any, record: Any, **marks: int) -> None:
    head = ledger.head()
    made = Put({UPPER: head.upper + 1, **marks}, (record,), None)
    assert isinstance(ledger.commit(head, made), Committed)


class Pipeline:
    """Transactions and publishes as they happen, and what each state has, counted by hand."""

    def __init__(self) -> None:
        self.warehouse = MemoryWarehouse()
        self.control = MemoryControl(self.warehouse)
        self.touched: dict[ShardId, list[int]] = {shard: [] for shard in SHARDS}
        self.published: dict[ShardId, list[int]] = {shard: [] for shard in SHARDS}
        self.txn = 0

    def seal(self, shards: set[ShardId]) -> None:
        self.txn += 1
        for shard in shards:
            self.touched[shard].append(self.txn)
        seal = Seal(
            Txn(self.txn), WriterToken(f"w{self.txn}"), 0, Decision.COMMITTED, Digest(),
            dict.fromkeys(sorted(shards), PARTS),
        )  # fmt: skip
        put(self.control.seals, seal, **{touch_mark(shard): self.txn for shard in shards})

    def publish(self, shard: ShardId) -> None:
        """At the log's end: the last transaction that touches the shard."""
        if set(self.touched[shard]) - set(self.published[shard]):
            self.published[shard].append(self.touched[shard][-1])
            number = len(self.published[shard])
            commit = StateCommit(Txn(self.touched[shard][-1]), WriterToken(f"p{number}"), Digest())
            put(self.control.publishes(shard), Published(number, 10 * number, commit))

    def rows(self, shard: ShardId, version: int | None) -> set[int]:
        """The transactions whose rows a version of the state has."""
        last = self.published[shard][version // 10 - 1] if version is not None else 0
        return {txn for txn in self.touched[shard] if txn <= last}

    def is_exact(self, versions: dict[ShardId, int], at: int) -> bool:
        return all(
            self.rows(shard, versions.get(shard)) == {txn for txn in self.touched[shard] if txn <= at}
            for shard in SHARDS
        )

    def highest(self) -> int:
        """The last transaction with a state at which all of them are exact, by trying all."""

        def versions(at: int) -> dict[ShardId, int]:
            known = {
                shard: [10 * (n + 1) for n, txn in enumerate(self.published[shard]) if txn <= at]
                for shard in SHARDS
            }
            return {shard: found[-1] for shard, found in known.items() if found}

        return max((at for at in range(self.txn + 1) if self.is_exact(versions(at), at)), default=0)


@given(steps)
def test_every_cut_is_exact_in_every_shard_and_the_newest_is_the_highest_there_is(
    taken: list[tuple[str, Any]],
) -> None:
    works = Pipeline()
    for step, what in [*taken, ("cut", None)]:
        if step == "seal":
            works.seal(what)
        elif step == "publish":
            works.publish(what)
        elif step == "lose":
            works.warehouse.cuts = MemoryLedger()  # Removed by a hand; the next one makes it again.
            works.control = MemoryControl(works.warehouse)
        else:
            cut = advance_cut(works.control, SHARDS)
            found = cuts_of(works.control, last=100)
            assert all(works.is_exact(versions, txn) for txn, versions in found)
            assert cut == (found[0][0] if found else 0)
            # Transactions that touch no state after the last cut leave it as it is.
            highest = works.highest()
            assert cut <= highest
            assert not [txn for shard in SHARDS for txn in works.touched[shard] if cut < txn <= highest]
            assert advance_cut(works.control, SHARDS) == cut, "a second look finds nothing to add"


@pytest.mark.parametrize("fault", [one for one in Fault if one is not Fault.NONE])
def test_whatever_becomes_of_its_commit_a_cut_is_put_on_record_once(fault: Fault) -> None:
    works = Pipeline()
    works.seal({SHARDS[0], SHARDS[1]})
    for shard in SHARDS[:2]:
        works.publish(shard)
    with suppress(Crash, TidemarkError):
        advance_cut(MemoryControl(works.warehouse, Script().fault("cuts.commit", fault)), SHARDS)
    for _ in works.warehouse.land_delayed():
        """What was under way arrives late."""
    assert advance_cut(MemoryControl(works.warehouse), SHARDS) == 1
    cuts = MemoryControl(works.warehouse).cuts
    found = cuts.read(1, cuts.head().upper)
    assert [(one.number, one.txn, one.shard) for one in found] == [(1, 1, SHARDS[0]), (2, 1, SHARDS[1])]


def test_a_process_that_does_not_know_a_shard_yet_does_not_cut_over_it() -> None:
    works = Pipeline()
    works.seal({SHARDS[0], SHARDS[2]})
    works.publish(SHARDS[0])
    assert advance_cut(works.control, SHARDS[:2]) == 0
    works.publish(SHARDS[2])
    assert advance_cut(works.control, SHARDS[:2]) == 1
    assert cuts_of(works.control) == [(1, {SHARDS[0]: 10, SHARDS[2]: 10})]


def test_shards_that_meet_more_seldom_than_is_looked_back_are_cut_when_all_are_up_to_date() -> None:
    works = Pipeline()
    works.seal({SHARDS[0], SHARDS[1]})
    for _ in range(core_cuts.TXNS_MAX + core_cuts.PUBLISHES_MAX):
        works.seal({SHARDS[0]})
        works.publish(SHARDS[0])
    assert advance_cut(works.control, SHARDS) == 0
    works.publish(SHARDS[1])
    assert advance_cut(works.control, SHARDS) == works.txn
