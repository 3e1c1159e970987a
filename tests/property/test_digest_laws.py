"""Laws of digests, over random rows. Checks Invariant 7."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.support.memory.plane import hash_of
from tidemark.core.checksum import Digest, compare
from tidemark.core.ids import Txn

# Rows from a small world, so that duplicates, swaps and near misses are common.
rows = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, "", "a", 0])), max_size=8)
hashes = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8)


def digest(content: list[tuple[int, object]]) -> Digest:
    return Digest.of(hash_of(*row) for row in content)


@given(hashes, hashes, hashes)
def test_merging_is_associative_commutative_and_has_an_empty_digest(
    a: list[int], b: list[int], c: list[int]
) -> None:
    x, y, z = Digest.of(a), Digest.of(b), Digest.of(c)
    assert x.merge(y) == y.merge(x)
    assert x.merge(y).merge(z) == x.merge(y.merge(z))
    assert x.merge(Digest()) == x


@given(hashes, st.lists(st.integers(0, 8), max_size=4), st.randoms(use_true_random=False))
def test_chunks_and_order_make_no_difference(content: list[int], cuts: list[int], random) -> None:  # type: ignore[no-untyped-def]
    whole = Digest.of(content)
    shuffled = list(content)
    random.shuffle(shuffled)
    bounds = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    chunks = [Digest.of(shuffled[lower:upper]) for lower, upper in pairwise(bounds)]
    assert reduce(Digest.merge, chunks, Digest()) == whole


@given(hashes)
def test_signed_hashes_are_the_same_as_unsigned_ones(content: list[int]) -> None:
    assert Digest.of(content) == Digest.of(value % 2**64 for value in content)


@given(rows, rows)
def test_two_sets_of_rows_have_one_digest_only_when_they_are_the_same_multiset(
    left: list[tuple[int, object]], right: list[tuple[int, object]]
) -> None:
    same = Counter(map(repr, left)) == Counter(map(repr, right))
    assert (digest(left) == digest(right)) == same
    mismatches = compare(Txn(1), recorded={"source": digest(left)}, found={"source": digest(right)})
    assert (mismatches == ()) == same


@given(rows.filter(bool), st.data())
def test_a_lost_a_doubled_and_a_swapped_row_are_noticed(
    content: list[tuple[int, object]], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(content) - 1))
    others = [*content[:index], *content[index + 1 :]]
    other_row = (content[index][0] + 4, content[index][1])
    for changed in (
        others,
        [*content, content[index]],
        [*others, other_row],
        [*content, other_row, other_row],
    ):
        assert digest(changed) != digest(content)
    pair = [content[index], content[index]]
    assert digest([*others, *pair]) != digest([*others, other_row, other_row])
