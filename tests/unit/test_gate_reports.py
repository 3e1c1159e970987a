"""What an asset's event says of the gate, and what a red gate says to people."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tidemark.app.reports import explained, gate_report
from tidemark.core.checksum import Digest
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.replay import Finding, Verdict
from tidemark.core.seal import Decision, Opinion, Seal
from tidemark.pipeline.journal import Announcement
from tidemark.pipeline.replay import PARTS_DIFFER, PROMOTION_DIFFERS
from tidemark.pipeline.validate import Gated, Judged


def told(txn: int, gate: str, overruled: str = "") -> Announcement:
    seal = Seal(Txn(txn), WriterToken("w"), 0, Decision.COMMITTED, Digest())
    return Announcement(seal, gate, overruled)


def test_only_what_the_gate_found_identical_throughout_is_told_as_identical() -> None:
    first, second = told(1, "identical"), told(2, "differs", "a person did it")
    assert gate_report([first])["verdict"] == "identical"
    assert gate_report([first, second])["verdict"] == "differs"
    assert gate_report([first, second])["overruled"] == {"2": "a person did it"}


FILE = "/opt/my pipelines/shop.yaml"
QUOTED = "'/opt/my pipelines/shop.yaml'"


def a_red(verdict: Verdict, *, replayed: bool, why: str = "", failed: tuple[str, ...] = ()) -> Judged:
    return Judged(Gated(Finding(Txn(3), verdict, why=why), Opinion(failed=failed)), replayed=replayed)


def commands_in(said: str) -> list[str]:
    return [line.strip().partition("   ")[0] for line in said.splitlines() if "  tidemark " in line]


@pytest.mark.parametrize(
    ("verdict", "ways"), [(Verdict.DIFFERS, ["accept", "skip"]), (Verdict.INPUT_GONE, ["skip"])]
)
def test_the_ways_out_of_a_red_gate_are_those_that_can_work(verdict: Verdict, ways: list[str]) -> None:
    said = explained([a_red(verdict, replayed=False, why="a.json is gone")], FILE)
    assert [way for way in ("accept", "skip") if f"tidemark {way} {QUOTED} 3 --reason" in said] == ways
    assert "clear the run's tasks from ingest on" in said


def test_rows_can_be_set_aside_where_an_expectation_is_not_met_and_nowhere_else() -> None:
    way = "write `action: quarantine` for the expectation, and clear from ingest on"
    assert way in explained([a_red(Verdict.IDENTICAL, replayed=False, failed=("v is NULL",))], FILE)
    assert way not in explained([a_red(Verdict.DIFFERS, replayed=False)], FILE)
    assert way not in explained([a_red(Verdict.DIFFERS, replayed=True, failed=("v is NULL",))], FILE)


@pytest.mark.parametrize(
    ("verdict", "why", "way"),
    [
        (Verdict.DIFFERS, PARTS_DIFFER, f"tidemark replay {QUOTED} --from 3 --to 3 --mode repair"),
        (
            Verdict.DIFFERS,
            f"{PROMOTION_DIFFERS}; recorded 1",
            "restore the lost files from a backup and clear this task",
        ),
        (Verdict.DIFFERS, "", "restore the changed input and clear this task"),
        (Verdict.INPUT_GONE, "a.json is gone", "restore the missing input and clear this task"),
        (Verdict.NOT_COMPARABLE, "sealed by another", "replay it with the versions that sealed it"),
    ],
)
def test_regression_a_repair_is_offered_only_where_it_can_repair(
    verdict: Verdict, why: str, way: str
) -> None:
    said = explained([a_red(verdict, replayed=True, why=why)], FILE)
    assert way in said
    assert ("--mode repair" in said) is (why == PARTS_DIFFER)


def test_the_first_line_of_a_red_gate_says_what_is_red() -> None:
    reds = [
        a_red(Verdict.DIFFERS, replayed=True, why=PARTS_DIFFER),
        a_red(Verdict.IDENTICAL, replayed=False, failed=("amount is negative",)),
    ]
    first, *_ = explained(reds, FILE).splitlines()
    assert first == "the gate is red: transaction 3: differs, transaction 3: expectations not met"


@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.parametrize(
    ("environment", "end"), [("prod", " -e prod"), ("my lab", " -e 'my lab'"), (None, "")]
)
def test_regression_the_ways_out_are_those_of_the_runs_environment(
    replayed: bool, environment: str | None, end: str
) -> None:
    said = explained([a_red(Verdict.DIFFERS, replayed=replayed, why=PARTS_DIFFER)], FILE, environment)
    assert commands_in(said) == (
        [f"tidemark replay {QUOTED} --from 3 --to 3 --mode repair{end}"]
        if replayed
        else [f'tidemark {way} {QUOTED} 3 --reason "..."{end}' for way in ("accept", "skip")]
    )


def test_regression_a_command_of_a_red_gate_works_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (command, _) = commands_in(explained([a_red(Verdict.DIFFERS, replayed=False)], "shop.yaml"))
    assert shlex.split(command)[2] == str(tmp_path / "shop.yaml")


def test_a_command_of_a_red_gate_names_the_warehouse_that_the_worker_was_told() -> None:
    settings = {"TIDEMARK_WAREHOUSE": "/big disk/tables"}
    red = [a_red(Verdict.DIFFERS, replayed=True, why=PARTS_DIFFER)]
    assert f"  TIDEMARK_WAREHOUSE='/big disk/tables' tidemark replay {QUOTED}" in explained(
        red, FILE, None, settings
    )
