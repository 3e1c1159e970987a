"""Maintain: remove what can never be needed again.

A sweep asks the seals, not the clock. An attempt of a transaction that is sealed under another
token has lost for good: its parts may go, even while its writer still works on them, because that
writer will lose at its seal. An attempt of an open transaction is left alone, however old it is.

A truncation first announces `since` on the ledger of leases, by one commit on the head that the floor was
worked out on, so that nobody takes a hold on what is about to go (Invariant 12); then each log's files below
it are taken out. It never passes what a state has yet to take in, what a lease or a consumer holds, or what
the pipeline file wants kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.core.ids import ShardId, Txn, WriterToken, next_txn
from tidemark.core.lease import Floor
from tidemark.core.ledger import Head, Put
from tidemark.core.listing import LogFile
from tidemark.core.publish import published_txn
from tidemark.core.upkeep import Replacement, decide_truncate
from tidemark.pipeline.compact import Replacing
from tidemark.pipeline.context import Pipeline, seal_at, unfinished
from tidemark.pipeline.history import require_logs
from tidemark.pipeline.leasing import Leases
from tidemark.pipeline.publish import last_published
from tidemark.pipeline.settle import settle
from tidemark.ports.control import KeptLog


def sweep(pipeline: Pipeline) -> tuple[tuple[Txn, WriterToken], ...]:
    """Remove the parts of every attempt that lost its seal; returns which."""
    require_logs(pipeline.control)
    # Attempts are listed before the seals are read: one that appears later is not looked at.
    attempts = pipeline.plane.attempts()
    upper = pipeline.control.seals.head().upper
    swept: list[tuple[Txn, WriterToken]] = []
    for txn, token in attempts:
        if txn < upper and seal_at(pipeline, txn).token != token:
            pipeline.plane.discard(txn, token)
            swept.append((txn, token))
    return tuple(swept)


def publishers(pipeline: Pipeline, shards: Sequence[ShardId]) -> dict[str, Txn]:
    """The first transaction that each shard's state has yet to take in.

    A state that has all of its log needs what comes next, which is no lower than what is not done yet."""
    behind = unfinished(pipeline)
    done_upper = pipeline.control.checkpoints.head().upper
    needs: dict[str, Txn] = {}
    for shard in shards:
        published = published_txn(last_published(pipeline.control, shard))
        log_upper = pipeline.control.log(shard).head().upper
        has_all = log_upper <= next_txn(published)
        next_one = behind.lowers.get(shard, done_upper)
        needs[f"state of {shard}"] = min(done_upper, next_one) if has_all else next_txn(published)
    return needs


def plan_floor(pipeline: Pipeline, leases: Leases, shards: Sequence[ShardId], *, window: Txn) -> Floor:
    """The floor as it is now, with everybody who has a say in it."""
    return leases.floor(consumers=publishers(pipeline, shards), window=window)


def announce(pipeline: Pipeline, leases: Leases, shards: Sequence[ShardId], *, window: Txn) -> Floor:
    """Raise `since` as far as everybody lets it; from then on nothing below it is promised to be there."""
    return leases.announce(consumers=publishers(pipeline, shards), window=window)


def truncate(log: KeptLog, shard: ShardId, since: Txn) -> Sequence[LogFile]:
    """Take out of a log the files that have nothing from `since` on, which was announced before; returns
    them, whoever took them out."""
    taken: dict[str, LogFile] = {}

    def decide(head: Head) -> Put[Replacement, tuple[LogFile, ...]] | tuple[LogFile, ...]:
        decision = decide_truncate(active=log.files(), since=since)
        below = decision.result if isinstance(decision, Put) else decision
        # A reply may be lost: what was found there on the first try counts.
        taken.update({file.part.path: file for file in below})
        return decision

    settle(Replacing(log), decide, what=f"the truncation of {shard} below {since}")
    return tuple(taken.values())
