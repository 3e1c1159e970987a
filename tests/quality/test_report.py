"""What the checks ask of the gate, and what the gate's module costs to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidemark.core.ids import ShardId
from tidemark.core.seal import Opinion
from tidemark.quality.checks import Checked, exception_kinds, opinion_of


def broken(action: str, shard: str = "orders") -> Checked:
    return Checked(ShardId(shard), "expect_x(v)", action, False, 2, 9)


def test_p12_what_fails_and_what_quarantine_left_over_stops_the_transaction() -> None:
    opinion = opinion_of([broken("fail"), broken("quarantine"), broken("warn")])
    assert opinion.failed == ("shard orders: expect_x(v): 2 of 9 rows break it",) * 2
    assert opinion.warned == ("shard orders: expect_x(v): 2 of 9 rows break it",)
    assert opinion.held == {}


def test_p12_a_pause_holds_its_shard_with_the_reasons() -> None:
    opinion = opinion_of([broken("pause"), broken("pause", "lines"), broken("pause")])
    held = {"orders": "expect_x(v), 2 rows; expect_x(v), 2 rows", "lines": "expect_x(v), 2 rows"}
    assert (dict(opinion.held), opinion.failed) == (held, ())


def test_what_holds_asks_for_nothing() -> None:
    good = Checked(ShardId("orders"), "expect_x(v)", "fail", True, 0, 9)
    assert opinion_of([good]) == Opinion()


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
        "import sys, tidemark.quality.checks, tidemark.quality.checks, tidemark.config.row_rules\n"
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
