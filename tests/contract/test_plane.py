"""What every data plane promises. Another implementation plugs in by a fixture `rig` of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.contract.helpers import SHARDS, Scripted, binding
from tests.support.memory.ledger import Fault
from tests.support.memory.plane import Files, MemoryPlane
from tests.support.memory.source import MemorySource, SourceRecord
from tidemark.core.checksum import SOURCE, shard_endpoint
from tidemark.core.errors import Determinate
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.ports.planes import DataPlane

A, B = WriterToken("a"), WriterToken("b")


@dataclass(frozen=True)
class Rig:
    """A plane over one partition `p`: append (shard, key, value) changes, and damage staged parts."""

    append: Callable[[ShardId, int, object], None]
    plane: Callable[[int], DataPlane]
    damage: Callable[[str], None]


@pytest.fixture
def rig() -> Rig:
    source, files = MemorySource(), Files()

    def append(shard: ShardId, key: int, value: object) -> None:
        source.append("p", SourceRecord(shard, (key,), value))

    def damage(path: str) -> None:
        files[path] = files[path][1:]

    return Rig(append, lambda parallelism: MemoryPlane(source, files, parts_max=parallelism), damage)


@pytest.fixture
def filled(rig: Rig) -> Rig:
    for key in range(10):
        rig.append(SHARDS[key % 2], key, f"v{key}")
    rig.append(SHARDS[0], 0, None)
    return rig


def test_invariant_7_staging_and_replaying_give_the_same_digests_at_any_parallelism(filled: Rig) -> None:
    """Invariant 7: how rows are cut into parts makes no difference."""
    bound = binding(1, {}, {"p": 11})
    first = filled.plane(1).stage(bound, A)
    again = filled.plane(5).stage(bound, B)
    assert dict(first.digests) == dict(again.digests) == dict(filled.plane(3).replay(bound).digests)
    assert first.digests[SOURCE].count == 11
    assert {endpoint: digest.count for endpoint, digest in first.digests.items() if endpoint != SOURCE} == {
        shard_endpoint(SHARDS[0]): 5,
        shard_endpoint(SHARDS[1]): 5,
    }


def test_what_was_staged_reads_back_the_same(filled: Rig) -> None:
    plane = filled.plane(2)
    staged = plane.stage(binding(1, {}, {"p": 11}), A)
    assert dict(plane.read_back(staged)) == dict(staged.digests)


def test_invariant_7_a_row_that_dropped_out_of_a_part_is_noticed(filled: Rig) -> None:
    """Invariant 7: a lost row changes the digest."""
    plane = filled.plane(2)
    staged = plane.stage(binding(1, {}, {"p": 11}), A)
    filled.damage(staged.shards[SHARDS[0]].parts[0].path)
    found = plane.read_back(staged)
    assert found[shard_endpoint(SHARDS[0])] != staged.digests[shard_endpoint(SHARDS[0])]
    assert found[shard_endpoint(SHARDS[1])] == staged.digests[shard_endpoint(SHARDS[1])]


def test_invariant_6_a_binding_reads_its_own_range_and_no_more(filled: Rig) -> None:
    """Invariant 6: a replay works at the recorded boundaries."""
    plane = filled.plane(2)
    assert plane.replay(binding(1, {}, {"p": 4})).digests[SOURCE].count == 4
    assert plane.replay(binding(2, {"p": 4}, {"p": 11})).digests[SOURCE].count == 7
    assert plane.replay(binding(3, {"p": 11}, {"p": 11})).digests[SOURCE].count == 0


def test_a_replay_writes_nothing(filled: Rig) -> None:
    plane = filled.plane(2)
    plane.replay(binding(1, {}, {"p": 11}))
    assert list(plane.attempts()) == []


def test_invariant_4_discarding_an_attempt_leaves_every_other_alone(filled: Rig) -> None:
    """Invariant 4: a loser never removes a winner's file."""
    plane = filled.plane(2)
    bound = binding(1, {}, {"p": 11})
    kept = plane.stage(bound, A)
    plane.stage(bound, B)
    assert list(plane.attempts()) == [(Txn(1), A), (Txn(1), B)]
    plane.discard(Txn(1), B)
    plane.discard(Txn(1), B)
    plane.discard(Txn(9), A)
    assert list(plane.attempts()) == [(Txn(1), A)]
    assert dict(plane.read_back(kept)) == dict(kept.digests)


def test_a_plane_without_room_says_that_nothing_was_staged_and_a_retry_works() -> None:
    source = MemorySource()
    source.append("p", SourceRecord(SHARDS[0], (1,), "v"))
    plane = MemoryPlane(source, Files(), Scripted({"plane.write": [Fault.FAIL]}))
    bound = binding(1, {}, {"p": 1})
    with pytest.raises(Determinate, match="no room"):
        plane.stage(bound, A)
    assert plane.stage(bound, B).digests[SOURCE].count == 1
