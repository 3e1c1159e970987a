"""The glossary: each term is in use, and words that it replaced don't come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "include" / "tidemark"
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = [term for term in re.findall(r"^\| ([a-z][^|]*?) \|", PAGE, re.MULTILINE) if term != "term"]
# A module or a top-level name with one of these words, and the word that says it now.
GIVEN_UP = {
    "abreast": "parallel",
    "bury": "write_tombstones",
    "kept": "retained, recorded",
    "letting": "advance",
    "standing": "status, relation",
    "stepwise": "the step's name",
    "stranger": "foreign",
    "tell": "report",
    "telling": "report",
    "tend": "maintain",
    "told": "report, notice",
    "unsent": "toast",
    "upkeep": "maintenance",
}
# Words that no name may have: neither a module or function nor a method, parameter or local variable.
GIVEN_UP_EVERYWHERE = {
    "abreast": "parallel",
    "bury": "write_tombstones",
    "letting": "advance",
    "said": "message, reason, report",
    "standing": "status, relation",
    "stepwise": "the step's name",
    "stranger": "foreign",
    "strangers": "foreign",
    "telling": "report",
    "tend": "maintain",
    "told": "report, notice",
    "unsent": "toast",
    "upkeep": "maintenance",
}


@cache
def code() -> str:
    return "\n".join(path.read_text(encoding="utf-8").lower() for path in sorted(PACKAGE.rglob("*.py")))


def words_of(name: str) -> set[str]:
    """The words of an identifier: `SourceReport`, `source_report` and `SOURCE_REPORT` have the same."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def top_names(path: Path) -> set[str]:
    """The names that a module defines, and its own."""
    found = {path.stem}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def test_the_glossary_has_the_central_words() -> None:
    assert {"binding", "seal", "upper", "state", "log", "publish", "verdict"} <= set(TERMS)
    assert len(TERMS) == len(set(TERMS))


@pytest.mark.parametrize("term", TERMS)
def test_every_term_is_used_in_the_code(term: str) -> None:
    for word in re.split(r", ", term.replace("`", "")):
        assert re.search(rf"\b{word.replace(' ', '.')}", code()), f"no module says {word!r}"


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_name_uses_a_word_that_was_given_up(path: Path) -> None:
    for name in sorted(top_names(path)):
        found = words_of(name) & GIVEN_UP.keys()
        assert not found, f"{name}: say {[GIVEN_UP[word] for word in found]} instead (docs/glossary.md)"


def all_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield name


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_variable_uses_a_word_that_was_given_up_everywhere(path: Path) -> None:
    for name in sorted(set(all_names(path))):
        found = words_of(name) & GIVEN_UP_EVERYWHERE.keys()
        assert not found, f"{name}: say {[GIVEN_UP_EVERYWHERE[word] for word in found]} instead"
