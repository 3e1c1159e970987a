"""The error families: they say what to do next, and survive the way between processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage, InvariantViolation, TidemarkError
from tidemark.core.ids import FrontierRegressed, Txn
from tidemark.core.replay import DataDiffers, Finding, InputGone, Verdict
from tidemark.core.seal import Fenced

FAMILIES = (Determinate, Indeterminate, InvalidUsage, InvariantViolation)
ERRORS: list[TidemarkError] = [
    Determinate("it did not happen"),
    Indeterminate("nobody knows", hint="read back"),
    InvalidUsage("wrong"),
    InvariantViolation("broken", hint="look"),
    FrontierRegressed("p0", bound=5, offered=None),
    Fenced(Txn(3), generation=1, newest=2),
    InputGone(Txn(3), what="a file"),
    DataDiffers(Finding(Txn(3), Verdict.DIFFERS, why="because")),
]


def test_a_message_is_a_fact_then_a_hint() -> None:
    assert str(Determinate("it did not happen", hint="retry")) == "it did not happen: retry"
    assert str(Determinate("it did not happen")) == "it did not happen"


def pickled(error: TidemarkError) -> TidemarkError:
    return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return]  # noqa: S301


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_is_of_exactly_one_family(error: TidemarkError) -> None:
    assert sum(isinstance(error, family) for family in FAMILIES) == 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("travel", [pickled, copy.deepcopy])
def test_an_error_survives_the_way_between_processes(error: TidemarkError, travel) -> None:  # type: ignore[no-untyped-def]
    arrived = travel(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
    assert (arrived.fact, arrived.hint) == (error.fact, error.hint)
