"""The digests' side of the gate: core decides, Great Expectations documents, and the two agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.core.checksum import SOURCE, Digest
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import Txn
from tidemark.core.replay import Verdict, judge
from tidemark.quality import checks
from tidemark.quality.checks import check_digests

pytestmark = pytest.mark.slow

ORDERS = "shard:orders"
SAME = {SOURCE: Digest.of([1, 2]), ORDERS: Digest.of([7])}

few_digests = st.builds(
    Digest.of, st.lists(st.sampled_from([0, 1, -1]), max_size=2), encoding=st.sampled_from([1, 1, 1, 2])
)
sides = st.dictionaries(st.sampled_from([SOURCE, ORDERS, "shard:", "shard:b"]), few_digests, max_size=3)


@settings(max_examples=6)
@given(st.lists(st.tuples(sides, sides, st.booleans()), min_size=40, max_size=60), st.integers(0, 60))
def test_great_expectations_agrees_with_core_on_every_input(
    sides: list[tuple[dict, dict, bool]], count: int
) -> None:
    """Invariants 7 and 8: `check_digests` raises where the two part, and gives core's findings. A validation
    takes as long for one transaction as for many."""
    pairs = [
        (Txn(txn), recorded, recorded if same else found)
        for txn, (recorded, found, same) in enumerate(sides[:count], start=1)
    ]
    expected = tuple(judge(txn, recorded=recorded, found=found) for txn, recorded, found in pairs)
    assert check_digests(pairs, site=None) == expected


def test_p4_a_changed_row_differs_and_is_documented_by_transaction_and_endpoint(tmp_path: Path) -> None:
    """Invariant 8: counts and digests of both sides are in the page."""
    found = {**SAME, ORDERS: Digest.of([8])}
    [good, bad] = check_digests([(Txn(4), SAME, SAME), (Txn(5), SAME, found)], site=tmp_path)
    assert (good.verdict, bad.verdict) == (Verdict.IDENTICAL, Verdict.DIFFERS)
    assert [mismatch.endpoint for mismatch in bad.mismatches] == [ORDERS]
    [page] = (tmp_path / "validations").rglob("*.html")
    text = page.read_text(encoding="utf-8")
    assert "txn-4-to-5" in str(page)
    assert str(found[ORDERS]) in text
    assert str(SAME[ORDERS]) in text
    assert (tmp_path / "index.html").is_file()


def test_a_disagreement_of_the_two_judges_stops_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "summary", lambda pairs: [])
    with pytest.raises(InvariantViolation, match="two comparisons disagree"):
        check_digests([(Txn(1), SAME, {})], site=None)


def test_the_pages_of_earlier_transactions_stay_on_the_index(tmp_path: Path) -> None:
    for txn in (Txn(1), Txn(2)):
        check_digests([(txn, SAME, SAME)], site=tmp_path)
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "txn-1" in index
    assert "txn-2" in index
