"""The gate's report as people read it, and what the gate's module costs to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidemark.core.checksum import SOURCE, Digest
from tidemark.core.ids import ShardId, Txn
from tidemark.core.replay import judge
from tidemark.quality.report import Checked, GateReport, explain
from tidemark.quality.rows import exception_kinds

SAME = {SOURCE: Digest.of([1, 2]), "shard:orders": Digest.of([7])}


def report(*checked: Checked, found: dict[str, Digest] = SAME, site: str = "") -> GateReport:
    return GateReport(judge(Txn(17), recorded=SAME, found=found), checked, site)


def broken(action: str, shard: str = "orders") -> Checked:
    return Checked(ShardId(shard), "expect_x(v)", action, False, 2, 9)


def test_p12_a_red_gate_names_what_failed_and_the_ways_out() -> None:
    """Invariant 8: transaction, endpoint, both counts and digests."""
    found = {**SAME, "shard:orders": Digest.of([8, 9])}
    text = explain(report(broken("fail"), broken("warn"), found=found, site="docs/index.html"), "shop")
    for part in (
        *("pipeline shop, transaction 17: did not pass the gate", "endpoint shard:orders"),
        *("recorded 1 rows", "found 2 rows", str(SAME["shard:orders"]), str(found["shard:orders"])),
        *("failed: shard orders: expect_x(v): 2 of 9 rows break it", "warned: shard orders"),
        *("clear the task", "tidemark accept shop 17 --reason", "tidemark skip shop 17 --reason"),
        "docs/index.html",
    ):
        assert part in text
    assert "release" not in text


def test_p12_a_paused_shard_is_named_with_its_release_and_the_rest_passes() -> None:
    paused = report(broken("pause"), broken("pause", "lines"), broken("quarantine"))
    assert paused.passed
    assert dict(paused.paused) == {"orders": "expect_x(v), 2 rows", "lines": "expect_x(v), 2 rows"}
    text = explain(paused, "shop")
    assert "passed the gate" in text
    assert "tidemark release shop orders --reason" in text
    assert "tidemark release shop lines --reason" in text
    assert "accept" not in text


def test_an_endpoint_on_one_side_only_has_a_message_of_its_own() -> None:
    """Invariant 8."""
    text = explain(report(found={SOURCE: SAME[SOURCE]}), "shop")
    assert "nothing was found for this endpoint" in text


def test_what_holds_is_not_listed() -> None:
    good = Checked(ShardId("orders"), "expect_x(v)", "fail", True, 0, 9)
    text = explain(report(good), "shop")
    assert text == "pipeline shop, transaction 17: passed the gate; the digests are identical"


@pytest.mark.parametrize(
    ("message", "trace", "said"),
    [
        ("[CAST_INVALID_INPUT] The value 'canary' can't be cast", "", "CAST_INVALID_INPUT"),
        ("The value [CANARY] is bad", "Traceback\n  File x\nvalue.ValueError: canary\n", "ValueError"),
        ("canary", "canary", "an exception was raised"),
    ],
)
def test_an_exception_is_reduced_to_its_kind(message: str, trace: str, said: str) -> None:
    info = {"raised_exception": True, "exception_message": message, "exception_traceback": trace}
    expected = [f"could not be evaluated, {said}"]
    assert list(exception_kinds(info)) == expected
    assert list(exception_kinds({"metric": info, "other": {"raised_exception": False}})) == expected


@pytest.mark.slow
def test_the_library_is_loaded_late_without_what_no_check_needs_and_leaves_no_stand_ins() -> None:
    code = (
        "import sys, tidemark.quality.gate, tidemark.quality.rowwise\n"
        "assert not {'great_expectations', 'pandas', 'pyspark'} & set(sys.modules)\n"
        "from tidemark.quality import engine\n"
        "engine.load()\n"
        "assert not {'altair', 'scipy.stats'} & set(sys.modules)\n"
        "from great_expectations.expectations.core import expect_column_kl_divergence_to_be_less_than as kl\n"
        "assert kl.stats.norm.mean() == 0 and 'scipy.stats' in sys.modules\n"
        "assert engine.context_for(None) is engine.context_for(None)\n"
        "assert not engine.context_for(None).variables.config.analytics_enabled\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
