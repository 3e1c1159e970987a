"""What an asset's event says of the gate, and what a red gate says to people."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.core.checksum import Digest
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.replay import Finding, Verdict
from tidemark.core.seal import Decision, Seal
from tidemark.pipeline.announce import Announcement
from tidemark.pipeline.validate import Gated
from tidemark.pipeline.verdicts import Judged
from tidemark.ports.gate import Opinion
from tidemark.telling import explained, told_gate


def told(txn: int, gate: str, overruled: str = "") -> Announcement:
    seal = Seal(Txn(txn), WriterToken("w"), 0, Decision.COMMITTED, Digest())
    return Announcement(seal, gate, overruled)


def test_only_what_the_gate_found_identical_throughout_is_told_as_identical() -> None:
    first, second = told(1, "identical"), told(2, "differs", "a person did it")
    assert told_gate([first])["verdict"] == "identical"
    assert told_gate([first, second])["verdict"] == "differs"
    assert told_gate([first, second])["overruled"] == {"2": "a person did it"}


@pytest.mark.parametrize(
    ("verdict", "ways"), [(Verdict.DIFFERS, ["accept", "skip"]), (Verdict.INPUT_GONE, ["skip"])]
)
def test_the_ways_out_of_a_red_gate_are_those_that_can_work(verdict: Verdict, ways: list[str]) -> None:
    deployment: Any = SimpleNamespace(config=SimpleNamespace(name="shop"))
    judged = Judged(Gated(Finding(Txn(3), verdict, why="a.json is gone"), Opinion()), replayed=False)
    said = explained(deployment, [judged])
    assert [way for way in ("accept", "skip") if f"tidemark {way} shop 3 --reason" in said] == ways
    assert "clear the run's tasks from ingest on" in said


@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.parametrize(
    ("environment", "end"), [("prod", " -e prod"), ("my lab", " -e 'my lab'"), (None, "")]
)
def test_regression_the_ways_out_are_those_of_the_runs_environment(
    replayed: bool, environment: str | None, end: str
) -> None:
    deployment: Any = SimpleNamespace(config=SimpleNamespace(name="shop"))
    judged = Judged(Gated(Finding(Txn(3), Verdict.DIFFERS), Opinion()), replayed=replayed)
    said = explained(deployment, [judged], environment)
    commands = [line.strip().partition("   ")[0] for line in said.splitlines() if "  tidemark " in line]
    assert commands == (
        [f"tidemark replay shop --from 3 --to 3 --mode repair{end}"]
        if replayed
        else [f'tidemark {way} shop 3 --reason "..."{end}' for way in ("accept", "skip")]
    )
