"""Bindings: minted in order, never moved back, owned for good. Checks Invariant 1."""

from __future__ import annotations

import pytest

from tidemark.core.binding import (
    Binding,
    Claim,
    Configuration,
    Owned,
    Owner,
    Step,
    decide_mint,
    owned_in,
)
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import Frontier, FrontierRegressed, Txn
from tidemark.core.ledger import UPPER, Head, Put

OWNER = Owner("run1")
CONFIGURATION = Configuration.of("{}")


def step(**offsets: int) -> Step:
    return Step(Frontier.of(offsets), manifest=f"up to {offsets}")


def binding(txn: int, lower: dict[str, int], upper: dict[str, int], owner: Owner = OWNER) -> Binding:
    return Binding(Txn(txn), Frontier.of(lower), Frontier.of(upper), owner, CONFIGURATION)


def mint(*steps: Step, last: Binding | None = None, upper: int = 1) -> Put[Binding | Claim, Owned] | Owned:
    return decide_mint(
        head=Head(7, {UPPER: upper}),
        last=last,
        found=(),
        steps=steps,
        owner=OWNER,
        configuration=CONFIGURATION,
    )


def test_each_step_becomes_a_transaction_that_starts_where_the_last_ended() -> None:
    put = mint(step(p0=3), step(p0=3, p1=2))
    assert isinstance(put, Put)
    assert put.marks == {UPPER: 3}
    assert [(b.txn, b.lower.as_dict(), b.upper.as_dict()) for b in put.records] == [
        (1, {}, {"p0": 3}),
        (2, {"p0": 3}, {"p0": 3, "p1": 2}),
    ]
    assert put.records[1].manifest == "up to {'p0': 3, 'p1': 2}"
    assert put.result == Owned((Txn(1), Txn(2)), minted=True, owner=OWNER)


def test_a_step_with_nothing_new_mints_nothing_and_the_numbers_stay_dense() -> None:
    put = mint(step(p0=3), step(p0=5), last=binding(4, {}, {"p0": 3}), upper=5)
    assert isinstance(put, Put)
    assert [(b.txn, b.lower["p0"], b.upper["p0"]) for b in put.records] == [(5, 3, 5)]


def test_a_run_that_found_nothing_claims_nothing_for_good() -> None:
    put = mint()
    assert isinstance(put, Put)
    assert put.marks == {}
    assert put.records == (Claim(1, OWNER),)
    assert put.result.txns == ()
    assert owned_in(put.records) == Owned((), minted=False, owner=OWNER)


def test_what_a_run_owns_is_found_not_minted_again() -> None:
    found = [binding(3, {}, {"p0": 1}), binding(2, {}, {"p0": 1})]
    owned = decide_mint(
        head=Head(7, {UPPER: 9}), last=None, found=found, steps=(step(p0=9),), owner=OWNER,
        configuration=CONFIGURATION,
    )  # fmt: skip
    assert owned == Owned((Txn(2), Txn(3)), minted=False, owner=OWNER)


def test_an_offer_below_what_is_bound_is_refused() -> None:
    with pytest.raises(FrontierRegressed):
        mint(step(p0=2), last=binding(1, {}, {"p0": 3}), upper=2)


def test_a_last_binding_that_is_not_the_last_is_a_broken_promise() -> None:
    with pytest.raises(
        InvariantViolation, match="the last binding is 1, but the next transaction number is 5"
    ):
        mint(step(p0=9), last=binding(1, {}, {"p0": 3}), upper=5)


def test_a_binding_is_valid_from_birth() -> None:
    with pytest.raises(InvalidUsage, match="from 1 on, not 0"):
        binding(0, {}, {"p0": 1})
    with pytest.raises(FrontierRegressed):
        binding(1, {"p0": 2}, {"p0": 1})


def test_m5_a_record_belongs_to_the_first_binding_that_covers_it() -> None:
    bindings = [
        binding(1, {}, {"p0": 50}),
        binding(2, {"p0": 50}, {"p0": 50, "p1": 50}),
        binding(3, {"p0": 50, "p1": 50}, {"p0": 100, "p1": 50}),
    ]
    places = {("p0", 50): [3], ("p0", 49): [1], ("p1", 0): [2], ("p1", 50): [], ("p9", 0): []}
    for (partition, offset), txns in places.items():
        holding = [one.txn for one in bindings if one.lower[partition] <= offset < one.upper[partition]]
        assert holding == txns


def test_a_run_is_its_partition_keys_or_its_dates_or_else_its_own() -> None:
    assert Owner("r").identity == "run:r"
    assert Owner("r", "2025-01-01").identity == "date:2025-01-01"
    assert Owner("r", "2025-01-01", "eu").identity == "partition:eu"
    assert Owner("r", "2025-01-01").identity == Owner("backfill", "2025-01-01").identity
    assert binding(2, {}, {}).key == Claim(2, OWNER).key == "run:run1"
    assert binding(2, {}, {}).number == Claim(2, OWNER).number == 2


def test_a_configuration_is_identified_by_its_text() -> None:
    assert Configuration.of("{}") == Configuration.of("{}")
    assert Configuration.of("{}").fingerprint != Configuration.of("{ }").fingerprint
