"""What a flush notification costs, by the number of lagging shards: `python -m bench.flush`.

Every shard lags from first to last, and each notification moves one shard's floor, in a shuffled
order: the worst case for the tracker's heap, because each one leaves garbage behind. The peer is
the obvious implementation, a dictionary and a `min` over it at each notification. Seeded, and in
processor time, so that a busy machine disturbs it less.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from tidemark.core.checkpoint import FlushPosition, FlushTracker, SourceTxn
from tidemark.core.ids import ShardId

SHARD_COUNTS = (10, 100, 1_000, 10_000, 100_000)
NOTIFICATIONS = 200_000
SCANNED_MAX = 20_000_000
"""The peer reads this many entries per row of the table; it would otherwise take minutes."""

Notify = Callable[[ShardId, FlushPosition], object]


def shards_of(count: int) -> list[ShardId]:
    return [ShardId(f"shard_{number}") for number in range(count)]


def notifications(shards: Sequence[ShardId], count: int) -> list[tuple[ShardId, FlushPosition]]:
    """Round after round over all shards, each round one source transaction higher, shuffled."""
    rng, made, txn = random.Random(7), list[tuple[ShardId, FlushPosition]](), 0
    while len(made) < count:
        txn += 1
        order = list(shards)
        rng.shuffle(order)
        made.extend((shard, FlushPosition(SourceTxn(txn), 10)) for shard in order)
    return made[:count]


def tracker_of(shards: Sequence[ShardId]) -> Notify:
    tracker = FlushTracker()
    for txn in (1, 10**9):
        tracker.committed(FlushPosition(SourceTxn(txn), 100), shards, now_seconds=0.0)
    return lambda shard, position: tracker.flushed(shard, position, now_seconds=1.0)


def scan_of(shards: Sequence[ShardId]) -> Notify:
    floors = dict.fromkeys(shards, 0)

    def notify(shard: ShardId, position: FlushPosition) -> int:
        floors[shard] = max(floors[shard], position.txn)
        return min(floors.values()) - 1

    return notify


def ns_per_notification(notify: Notify, work: Sequence[tuple[ShardId, FlushPosition]]) -> float:
    began = time.process_time_ns()
    for shard, position in work:
        notify(shard, position)
    return (time.process_time_ns() - began) / len(work)


def main() -> None:
    print("| lagging shards | tracker, ns | min-scan, ns | scan / tracker |")
    print("| ---: | ---: | ---: | ---: |")
    measured: dict[int, float] = {}
    for count in SHARD_COUNTS:
        shards = shards_of(count)
        work = notifications(shards, max(NOTIFICATIONS, 2 * count))
        ours = ns_per_notification(tracker_of(shards), work)
        scan = ns_per_notification(scan_of(shards), work[: min(len(work), SCANNED_MAX // count)])
        measured[count] = ours
        print(f"| {count:,} | {ours:,.0f} | {scan:,.0f} | {scan / ours:,.1f} |")
    low, high = min(measured), max(measured)
    print(f"\n{high // low:,} times the shards cost {measured[high] / measured[low]:.1f} times as much each.")


if __name__ == "__main__":
    main()
