"""Tend a state: keep its table in shape, and never under a reader's feet.

Publishes that come in between are no hindrance: what they do to the files that are being merged is done to
the merged one too. The state is checked against its record first; one that is not as it was published is left
as it is, for people to look at.

A VACUUM goes by the table's retention. A lease whose snapshot was superseded longer ago than that holds it
back: the snapshot's files would be among those that go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidemark.core.ids import ShardId, Txn
from tidemark.core.lease import Lease
from tidemark.core.publish import VERSION_NONE, Published, state_as_of
from tidemark.pipeline.publish import checked_record
from tidemark.ports.control import Control
from tidemark.ports.upkeep import StateKeeper


def snapshot_held(
    records: Sequence[Published],
    leases: Sequence[Lease],
    *,
    superseded_ms: Callable[[int], int | None],
    now_ms: int,
    kept_ms: int,
) -> Lease | None:
    """A live lease whose snapshot a VACUUM would break, if there is one. `superseded_ms` tells when the
    publish of a number was put on record."""
    for lease in leases:
        if not lease.is_live or not records:
            continue
        # One that stands below the first publish may have its snapshot there.
        base = state_as_of(records, as_of=Txn(lease.txn - 1)) or records[0]
        if base.number == records[-1].number:
            continue
        at_ms = superseded_ms(base.number + 1)
        if at_ms is not None and now_ms - at_ms >= kept_ms:
            return lease
    return None


def tend(
    control: Control,
    keeper: StateKeeper,
    shard: ShardId,
    *,
    merge: bool,
    purge: bool,
    vacuum: bool,
) -> None:
    """Merge and clean what is due. `BeingPublished` when other processes have left it no chance."""
    last = checked_record(control, keeper, shard)
    tombstones = last.commit.tombstones if last is not None else VERSION_NONE
    if merge:
        keeper.merge(shard, tombstones=tombstones)
    if purge:
        keeper.purge(shard)
    if vacuum:
        keeper.vacuum(shard, tombstones=tombstones)
