"""Laws of reading several states together, over random publishes and touches. Checks Invariant 15."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import UPPER, Committed, Put
from tidemark.core.publish import Published, StateCommit
from tidemark.core.seal import Decision, Part, Seal, ShardParts
from tidemark.pipeline.publish import published_together

SHARDS = tuple(map(ShardId, ("a", "b", "c")))
TXN_MAX = 9

txns = st.sets(st.integers(1, TXN_MAX))


def put(ledger: Any, records: list[Any], upper: int) -> None:
    assert isinstance(ledger.commit(ledger.head(), Put({UPPER: upper}, tuple(records), None)), Committed)


def control_of(touched: dict[ShardId, set[int]], published: dict[ShardId, set[int]]) -> MemoryControl:
    """Transactions 1 to 9, each with the shards it touches, and the publishes of each shard."""
    control = MemoryControl(MemoryWarehouse())
    parts = ShardParts((Part("x", 1, 1),), Digest.of([1]))
    seals = [
        Seal(
            Txn(txn), WriterToken(f"w{txn}"), 0, Decision.COMMITTED, Digest(),
            {shard: parts for shard in SHARDS if txn in touched[shard]},
        )
        for txn in range(1, TXN_MAX + 1)
    ]  # fmt: skip
    put(control.seals, seals, TXN_MAX + 1)
    for shard in SHARDS:
        made = [
            Published(number, number, StateCommit(Txn(txn), WriterToken(f"p{txn}"), Digest()))
            for number, txn in enumerate(sorted(published[shard]), start=1)
        ]
        if made:
            put(control.publishes(shard), made, len(made) + 1)
    return control


@given(
    st.fixed_dictionaries(dict.fromkeys(SHARDS, txns)),
    st.fixed_dictionaries(dict.fromkeys(SHARDS, txns)),
    st.integers(0, TXN_MAX),
)
def test_the_states_are_read_at_the_highest_transaction_that_all_of_them_are_exact_at(
    touched: dict[ShardId, set[int]], published: dict[ShardId, set[int]], as_of: int
) -> None:
    def has(shard: ShardId, txn: int) -> set[int]:
        """What of the shard's changes a reader of its state gets, who asks for it as of a transaction."""
        base = max((one for one in published[shard] if one <= txn), default=0)
        return {one for one in touched[shard] if one <= base}

    def is_exact(txn: int) -> bool:
        return all(has(shard, txn) == {one for one in touched[shard] if one <= txn} for shard in SHARDS)

    expected = max(txn for txn in range(as_of + 1) if is_exact(txn))
    assert published_together(control_of(touched, published), SHARDS, as_of=Txn(as_of)) == expected
