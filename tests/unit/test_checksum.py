"""Digests and their comparison. Checks Invariants 7 and 8."""

from __future__ import annotations

import pytest

from tidemark.core.checksum import SOURCE, Digest, Mismatch, compare, shard_endpoint
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId, Txn

T = Txn(7)


def test_the_order_of_rows_makes_no_difference() -> None:
    assert Digest.of([1, 2, 3]) == Digest.of([3, 1, 2])


def test_p4_a_swapped_duplicate_pair_is_noticed_though_xor_is_blind_to_it() -> None:
    left, right = Digest.of([10, 10, 30]), Digest.of([20, 20, 30])
    assert left.xor == right.xor
    assert left.count == right.count
    assert left != right


def test_a_lost_row_and_a_duplicate_are_noticed() -> None:
    assert Digest.of([1, 2]) != Digest.of([1])
    assert Digest.of([1, 2]) != Digest.of([1, 2, 2])
    assert Digest.of([0]) != Digest()


def test_signed_and_unsigned_hashes_are_the_same_hash() -> None:
    assert Digest.of([-1]) == Digest.of([(1 << 64) - 1])


def test_sums_wrap_at_64_bits() -> None:
    full = Digest(1, 0, (1 << 64) - 1, (1 << 64) - 1)
    merged = full.merge(Digest(1, 0, 2, 3))
    assert (merged.sum_low, merged.sum_high) == (1, 2)


def test_digests_of_different_encodings_are_never_merged() -> None:
    with pytest.raises(InvalidUsage, match="encodings 2 and 3"):
        Digest.of([1]).merge(Digest.of([1], encoding=3))


@pytest.mark.parametrize("parts", [(-1, 0, 0, 0), (0, -1, 0, 0), (0, 0, 1 << 64, 0), (0, 0, 0, -5)])
def test_a_digest_is_valid_from_birth(parts: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidUsage, match="not a digest"):
        Digest(*parts)


def test_a_digest_is_printed_with_its_encoding() -> None:
    assert str(Digest.of([255])) == "00000000000000ff.0.ff/2"


def test_equal_endpoints_have_no_mismatch() -> None:
    same = {SOURCE: Digest.of([1]), shard_endpoint(ShardId("a")): Digest.of([2])}
    assert compare(T, recorded=same, found=dict(same)) == ()


def test_p4_a_mismatch_names_transaction_endpoint_counts_and_digests() -> None:
    recorded, found = Digest.of([1, 2]), Digest.of([1, 3, 4])
    (mismatch,) = compare(T, recorded={SOURCE: recorded}, found={SOURCE: found})
    text = str(mismatch)
    for named in ("transaction 7", "endpoint source", "2 rows", "3 rows", str(recorded), str(found)):
        assert named in text


def test_p5_an_endpoint_on_one_side_only_gets_its_own_message() -> None:
    only = {shard_endpoint(ShardId("a")): Digest.of([1])}
    (ingested,) = compare(T, recorded={}, found=only)
    (recorded,) = compare(T, recorded=only, found={})
    at = "transaction 7, endpoint shard:a: "
    assert str(ingested) == at + "found 1 rows, but nothing is recorded for this endpoint"
    assert str(recorded) == at + "1 rows are recorded, but nothing was found for this endpoint"
    assert "neither" in str(Mismatch(T, SOURCE, None, None))


def test_mismatches_come_in_the_order_of_their_endpoints() -> None:
    found = {"shard:b": Digest.of([1]), "shard:a": Digest.of([1]), SOURCE: Digest()}
    assert [m.endpoint for m in compare(T, recorded={}, found=found)] == ["shard:a", "shard:b", SOURCE]
