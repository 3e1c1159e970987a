"""Judging a replay, and planning what to replay or finish. Checks Invariants 6, 7 and 8."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemark.core.binding import Binding, Configuration, Owner
from tidemark.core.checksum import SOURCE, Digest
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import Frontier, ShardId, Txn, WriterToken
from tidemark.core.replay import (
    Action,
    DataDiffers,
    Finding,
    InputGone,
    RunPlan,
    Verdict,
    judge,
    judge_loser,
    judge_replay,
    plan_replay,
    plan_run,
)
from tidemark.core.seal import Part, Seal, ShardParts, Staged, seal_of, skip_of

T = Txn(3)


def staged(*hashes: int, engine: str = "spark 4", encoding: int = 1, shard: str = "a") -> Staged:
    digest = Digest.of(hashes, encoding=encoding)
    parts = ShardParts((Part("x", len(hashes), 1),), digest)
    return Staged(T, WriterToken("w"), digest, {ShardId(shard): parts}, engine)


def seal(*hashes: int) -> Seal:
    return seal_of(staged(*hashes), generation=0, held={})


def binding(txn: int) -> Binding:
    lower, upper = Frontier.of({"p0": txn - 1}), Frontier.of({"p0": txn})
    return Binding(Txn(txn), lower, upper, Owner("r"), Configuration.of("{}"))


def test_p4_reordered_rows_are_identical_and_a_changed_one_differs() -> None:
    assert judge_replay(seal(1, 2, 3), staged(3, 1, 2)).passed
    finding = judge_replay(seal(1, 2, 3), staged(1, 2, 4))
    assert (finding.txn, finding.verdict, finding.passed) == (T, Verdict.DIFFERS, False)
    assert [m.endpoint for m in finding.mismatches] == ["shard:a", SOURCE]
    assert "transaction 3: differs; transaction 3, endpoint shard:a: recorded 3 rows" in str(finding)


def test_regression_a_loser_that_was_staged_with_other_settings_is_no_contradiction() -> None:
    """A red gate's settings are mended, or rows are set aside: the first try's rows are rightly others."""
    settings = Configuration.of('{"mended":true}')
    winner = seal_of(replace(staged(1, 2), configuration=settings), generation=0, held={})
    finding = judge_loser(winner, staged(1, 2, 3))
    assert (finding.verdict, finding.mismatches) == (Verdict.NOT_COMPARABLE, ())
    same = replace(staged(1, 2, 3), configuration=settings)
    assert judge_loser(winner, same).verdict is Verdict.DIFFERS
    assert judge_loser(seal(1, 2), staged(1, 2, 3)).verdict is Verdict.DIFFERS
    skipped = skip_of(T, token=WriterToken("w"), generation=0, reason="poisoned", binding=0)
    assert judge_loser(skipped, same).passed


def test_p5_rows_that_went_to_another_shard_are_two_mismatches() -> None:
    finding = judge_replay(seal(1), staged(1, shard="b"))
    assert [(m.endpoint, m.recorded is None, m.found is None) for m in finding.mismatches] == [
        ("shard:a", False, True),
        ("shard:b", True, False),
    ]


def test_p10_another_engine_is_not_comparable_and_both_are_named() -> None:
    finding = judge_replay(seal(1), staged(2, engine="spark 5"))
    assert finding.verdict is Verdict.NOT_COMPARABLE
    assert str(finding) == "transaction 3: not comparable; sealed by 'spark 4', replayed by 'spark 5'"


def test_p10_another_encoding_is_not_comparable_and_both_are_named() -> None:
    finding = judge_replay(seal(1), staged(1, encoding=2))
    assert finding.verdict is Verdict.NOT_COMPARABLE
    assert "encoding [1], now with 2" in finding.why
    assert judge(T, recorded={}, found={}).passed


def test_a_skipped_transaction_has_nothing_to_prove() -> None:
    skipped = skip_of(T, token=WriterToken("w"), generation=0, reason="asked for", binding=0)
    finding = judge_replay(skipped, staged(1, 2))
    assert (finding.verdict, finding.why) == (Verdict.IDENTICAL, "skipped: asked for")


def test_p7_other_data_under_one_number_stops_everything() -> None:
    finding = judge_replay(seal(1), staged(2))
    error = DataDiffers(finding)
    assert isinstance(error, InvariantViolation)
    assert error.finding is finding
    assert "transaction 3" in error.fact


def test_gone_input_is_a_permanent_error_that_names_it() -> None:
    error = InputGone(T, what="file x.json")
    assert isinstance(error, InvalidUsage)
    assert (error.txn, error.what) == (T, "file x.json")
    assert "input of transaction 3 is gone: file x.json" in str(error)


def test_a_plan_has_one_step_per_transaction_at_the_recorded_boundaries() -> None:
    bindings = [binding(txn) for txn in (1, 2, 3, 4)]
    steps = plan_replay(txn_from=Txn(2), txn_to=Txn(4), bindings=bindings, seals=[seal(1)])
    assert [step.binding for step in steps] == bindings[1:]
    assert [step.action for step in steps] == [Action.FINISH, Action.VERIFY, Action.FINISH]


@pytest.mark.parametrize(("txn_from", "txn_to"), [(0, 2), (3, 2)])
def test_a_range_that_is_none_is_refused(txn_from: int, txn_to: int) -> None:
    with pytest.raises(InvalidUsage, match="not a range"):
        plan_replay(txn_from=Txn(txn_from), txn_to=Txn(txn_to), bindings=[], seals=[])


def test_a_transaction_that_is_not_bound_can_not_be_replayed() -> None:
    with pytest.raises(InvalidUsage, match="transaction 2 is not bound"):
        plan_replay(txn_from=Txn(1), txn_to=Txn(3), bindings=[binding(1), binding(3)], seals=[])


def plan(*owned: int, cleared: bool = False, sealed: int, bound: int) -> RunPlan:
    txns = [Txn(txn) for txn in owned]
    return plan_run(owned=txns, cleared=cleared, sealed_upper=Txn(sealed), bound_upper=Txn(bound))


def test_a_run_finishes_the_open_transactions_below_its_own_first() -> None:
    assert plan(5, 6, sealed=3, bound=9) == RunPlan((Txn(3), Txn(4), Txn(5), Txn(6)), ())


def test_a_run_that_owns_nothing_finishes_all_that_are_open() -> None:
    assert plan(sealed=3, bound=5) == RunPlan((Txn(3), Txn(4)), ())
    assert plan(cleared=True, sealed=5, bound=5) == RunPlan((), ())


def test_a_retry_finishes_what_is_missing_and_a_clear_proves_what_is_there() -> None:
    assert plan(5, 6, sealed=6, bound=9) == RunPlan((Txn(6),), ())
    assert plan(5, 6, cleared=True, sealed=6, bound=9) == RunPlan((Txn(6),), (Txn(5),))
    assert plan(5, 6, cleared=True, sealed=9, bound=9) == RunPlan((), (Txn(5), Txn(6)))


def test_a_finding_that_passed_is_printed_in_one_line() -> None:
    assert str(Finding(T, Verdict.IDENTICAL)) == "transaction 3: identical"
