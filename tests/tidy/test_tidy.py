"""The house rules that a machine can keep."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "include" / "tidemark"
FOLDERS = (PACKAGE, ROOT / "jobs", ROOT / "dags", ROOT / "plugins")
MODULES = sorted(path for folder in FOLDERS for path in folder.rglob("*.py"))
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def project_files() -> list[Path]:
    """What is, or would be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_is_read_in_one_sitting_and_a_function_fits_a_screen(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MODULE_LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_says_what_it_promises_and_asserts_nothing(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "no module docstring"
    asserts = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert not asserts, f"assert outside tests, lines {asserts}: raise InvariantViolation instead"


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").rglob("*.py")), ids=named)
def test_core_imports_the_standard_library_and_itself_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write imports in full"
            names = [node.module or ""]
        for name in names:
            own = name == "tidemark.core" or name.startswith("tidemark.core.")
            assert own or name.split(".")[0] in sys.stdlib_module_names, f"line {node.lineno}: imports {name}"


def checks_something(test: ast.FunctionDef) -> bool:
    """Whether a test asserts, or expects an error, in its own body."""
    calls = [node.func for node in ast.walk(test) if isinstance(node, ast.Call)]
    names = {getattr(call, "attr", None) or getattr(call, "id", None) for call in calls}
    return any(isinstance(node, ast.Assert) for node in ast.walk(test)) or bool(names & {"raises", "warns"})


def test_every_test_checks_something() -> None:
    idle = [
        f"{named(path)}::{node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not checks_something(node)
    ]
    assert not idle


def test_a_fixture_that_ends_with_a_folder_is_the_folders_own() -> None:
    """Elsewhere pytest keeps what is started once per folder until the whole session ends."""
    text = 'scope="' + 'package"'
    wrong = [
        named(path)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if text in path.read_text(encoding="utf-8")
        and not (path.name == "conftest.py" and path.with_name("__init__.py").is_file())
    ]
    assert not wrong


def test_no_package_registry_is_named_anywhere() -> None:
    # Spelled apart, so that this file doesn't name one either.
    hosts = ["pypi" + ".org", "python" + "hosted", "maven" + ".org", "maven" + ".apache", "npm" + "js"]
    pattern = re.compile("|".join(map(re.escape, hosts)), re.IGNORECASE)
    found = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if pattern.search(text):
            found.append(named(path))
    assert not found


def test_every_declared_dependency_is_pinned_and_every_pin_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = re.compile(r"[A-Za-z0-9._-]+")
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    declared = {name.match(line)[0] for line in lines} - {"tidemark"}
    pins = dict(
        re.findall(
            r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)$",
            (ROOT / "requirements.txt").read_text(),
            re.MULTILINE,
        )
    )
    locked = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert declared <= pins.keys()
    for package, version in pins.items():
        line = re.compile(rf"^{re.escape(package)}(\[[^\]]*\])?=={re.escape(version)}[ ;]", re.MULTILINE)
        assert line.search(locked), f"{package}=={version} is not in requirements.lock: run `make lock`"
