"""What the documents say is so: commands, invariants, scenarios, and words that don't belong here."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INVARIANTS = tuple(range(1, 20))
# "Invariant 7", "Invariants 2 and 4", "Invariants 1, 2, 3", "Invariants 7, 8 and 9".
NAMED = re.compile(r"\bInvariants?\s+(\d+(?:(?:,\s+and\s+|,\s+|\s+and\s+)\d+)*)")
# A test's name starts with the ids of its scenarios: test_m4_…, test_u3_u13_….
SCENARIO_TEST = re.compile(r"\Atest_((?:[a-z]\d{1,2}_)+)")


@cache
def project_files() -> tuple[Path, ...]:
    """What is, or would be, in the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return tuple(ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file())


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore")


def invariants_named_in(folder: str) -> set[int]:
    named: set[int] = set()
    for path in (ROOT / folder).rglob("*.py"):
        for found in NAMED.findall(text_of(path)):
            named |= {int(number) for number in re.findall(r"\d+", found)}
    return named


@cache
def names_of_tests() -> frozenset[str]:
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(names)


def invariant_rows() -> dict[int, list[str]]:
    """The table of docs/invariants.md: id -> statement, enforced in, tested by."""
    rows: dict[int, list[str]] = {}
    for line in text_of(ROOT / "docs" / "invariants.md").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0].isdigit():
            rows[int(cells[0])] = cells[1:]
    return rows


def targets() -> dict[str, str]:
    """The Makefile's targets, each with the line that defines it."""
    found = re.findall(r"^([a-z][a-z0-9-]*):(?!=)(.*)$", text_of(ROOT / "Makefile"), re.MULTILINE)
    return dict(found)


# Commands


@pytest.mark.parametrize("document", ["README.md", "docs/architecture.md", "CHANGELOG.md"])
def test_every_make_command_that_a_document_names_exists(document: str) -> None:
    commands = re.findall(r"(?:`|^\s*)make ([a-z][a-z0-9-]*)", text_of(ROOT / document), re.MULTILINE)
    assert set(commands) <= targets().keys()
    if document == "README.md":
        assert {"demo", "test"} <= set(commands)


def test_every_make_target_is_described_or_only_a_step_of_others() -> None:
    found = targets()
    for name, line in found.items():
        used = any(name in other.split("##")[0].split() for other in found.values())
        assert "## " in line or used, f"make {name} has no description"
    declared = re.search(r"^\.PHONY: (.*)$", text_of(ROOT / "Makefile"), re.MULTILINE)
    assert declared, "no .PHONY"
    assert set(declared[1].split()) == found.keys()


def test_the_changelog_starts_with_what_is_unreleased() -> None:
    headings = re.findall(r"^## (.*)$", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)
    assert headings[:1] == ["Unreleased"]


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = text_of(ROOT / "README.md")
    assert len(text.splitlines()) < 120
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / link).exists(), f"README.md links to {link}"


# Invariants


def test_the_table_of_invariants_has_each_of_them_once_and_in_order() -> None:
    rows = invariant_rows()
    assert list(rows) == list(INVARIANTS)
    for number, cells in rows.items():
        assert len(cells) == 3, f"invariant {number} needs a statement, a place and a test"
        assert all(cells), f"invariant {number} has an empty cell"


@pytest.mark.parametrize("number", INVARIANTS)
def test_an_invariant_is_named_in_code_and_in_a_test_or_said_to_be_open(number: int) -> None:
    _, enforced, tested = invariant_rows()[number]
    in_code = number in invariants_named_in("include")
    in_tests = number in invariants_named_in("tests")
    assert in_code or "comes with" in enforced, f"no code says that it enforces Invariant {number}"
    assert in_tests or "comes with" in tested, f"no test says that it checks Invariant {number}"


@pytest.mark.parametrize("number", INVARIANTS)
def test_what_the_table_of_invariants_names_exists(number: int) -> None:
    _, enforced, tested = invariant_rows()[number]
    for path in re.findall(r"`([\w/]+\.py)`", enforced):
        assert (ROOT / "include" / "tidemark" / path).is_file(), f"no module {path}"
    for name in re.findall(r"`(\w+)`", tested):
        assert name in names_of_tests(), f"no test {name}"
    for path in re.findall(r"`(tests/[\w/.]+)`", tested):
        assert (ROOT / path).exists(), f"no {path}"


def test_no_invariant_is_named_that_is_not_in_the_table() -> None:
    assert invariants_named_in("include") | invariants_named_in("tests") <= set(INVARIANTS)


# Scenarios


def scenario_ids() -> set[str]:
    return set(re.findall(r"^([A-Z]\d{1,2})\. ", text_of(ROOT / "docs" / "scenarios.md"), re.MULTILINE))


def test_every_scenario_that_a_test_names_is_in_the_list() -> None:
    known = scenario_ids()
    assert {"U1", "U14", "E1", "E4", "D7", "A1", "S6", "M13", "R6", "F13", "P12"} <= known
    for name in names_of_tests():
        if found := SCENARIO_TEST.match(name):
            named = {part.upper() for part in found[1].strip("_").split("_")}
            assert named <= known, f"{name} names a scenario that is not in docs/scenarios.md"


# Words that don't belong in the repository; spelled apart, so that this file does not hold them.

_FOREIGN = {
    "a path of one machine": r"(?<![\w.])/(?:wo" + r"rk|ro" + r"ot)/|(?<![\w.])/ho" + r"me/\w",
    "who typed it": r"\b(?:cl" + r"aude|anth" + r"ropic|chat" + r"gpt|open" + r"ai|co" + r"pilot)\b",
    "how it was typed": r"\b(?:language mo" + r"del|ai[- ]gene" + r"rated|as an a" + r"i\b|ll" + r"ms?)\b",
}


@pytest.mark.parametrize("what", _FOREIGN)
def test_the_tree_is_about_the_product_only(what: str) -> None:
    pattern = re.compile(_FOREIGN[what], re.IGNORECASE)
    found = {}
    for path in project_files():
        if path.suffix in {".lock", ".png", ".jpg", ".parquet", ".gz"}:
            continue
        if hit := pattern.search(text_of(path)):
            found[str(path.relative_to(ROOT))] = hit[0]
    assert found == {}
