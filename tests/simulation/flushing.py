"""The acknowledgement, simulated: rows in fragments, flushes at any moment, crashes of the tracker.

The truth is a set of rows that are durable. An acknowledged transaction whose rows are not all in
it, or whose commit the source has not sent yet, would be lost by a crash.
"""

from __future__ import annotations

import random

from tests.simulation.checker import ensure
from tidemark.core import checkpoint
from tidemark.core.checkpoint import Acknowledged, FlushPosition, SourceTxn
from tidemark.core.ids import ShardId

SHARDS = tuple(ShardId(name) for name in "abc")
COMMIT_OP = 100


class FlushWorld:
    """A stream of source transactions, and shards that flush when they like."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stream = [self._transaction(number) for number in range(1, self.rng.randint(2, 6))]
        self.received: dict[ShardId, list[FlushPosition]] = {shard: [] for shard in SHARDS}
        self.durable: set[tuple[ShardId, FlushPosition]] = set()
        self.flushed: dict[ShardId, FlushPosition] = {}
        self.committed = 0
        self.tracker = checkpoint.FlushTracker()
        self.now_seconds = 0.0

    def _transaction(self, number: int) -> list[tuple[ShardId, FlushPosition]]:
        ops = sorted(self.rng.sample(range(COMMIT_OP), self.rng.randint(0, 3)))
        return [(self.rng.choice(SHARDS), FlushPosition(SourceTxn(number), op)) for op in ops]

    def flush(self, shard: ShardId) -> None:
        """Everything that the shard has received is durable from now on."""
        if not self.received[shard]:
            return
        self.durable |= {(shard, position) for position in self.received[shard]}
        position = max(self.received[shard])
        self.flushed[shard] = position
        self.check(self.tracker.flushed(shard, position, now_seconds=self.now_seconds))

    def check(self, report: Acknowledged | None) -> None:
        if report is None:
            return
        ensure(report.txn <= self.committed, f"transaction {report.txn} was reported before its commit")
        for rows in self.stream[: report.txn]:
            lacking = [row for row in rows if row not in self.durable]
            ensure(not lacking, f"transaction {report.txn} was acknowledged without {lacking}")

    def restart(self) -> int:
        """A crash: the tracker comes back from what is durable, the source sends the rest again."""
        acknowledged = self.tracker.acknowledged.txn
        self.tracker = checkpoint.FlushTracker(acknowledged=acknowledged, flushed=self.flushed)
        return acknowledged

    def simulate(self) -> None:
        number = 0
        while number < len(self.stream):
            for shard, position in self.stream[number]:
                self.received[shard].append(position)
                self.tracker.received(shard, position)
                if self.rng.random() < 0.4:
                    self.flush(self.rng.choice(SHARDS))
            self.committed = max(self.committed, number + 1)
            position = FlushPosition(SourceTxn(number + 1), COMMIT_OP)
            shards = {shard for shard, _ in self.stream[number]}
            self.check(self.tracker.committed(position, shards, now_seconds=self.now_seconds))
            self.now_seconds += 1
            number = self.restart() if self.rng.random() < 0.1 else number + 1
        for shard in SHARDS:
            self.flush(shard)
        ensure(not self.tracker.lagging(), f"{self.tracker.lagging()} lag, though all is flushed")
        ensure(self.tracker.acknowledged.txn == len(self.stream), "not everything is acknowledged at the end")
