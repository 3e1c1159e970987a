"""Arrows point inward: which package may import which, and that no module is dead."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
PACKAGE = INCLUDE / "tidemark"
ENGINES = {"airflow", "delta", "deltalake", "great_expectations", "pandas", "polars", "pyarrow", "pyspark"}
STDLIB_ONLY = {"core", "ports", "pipeline", "memory"}

# Package -> the other packages of tidemark that it may import. Of the adapters only Spark's knows another.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "home": set(),
    "submitter": set(),
    "ports": {"core"},
    "config": {"core"},
    "pipeline": {"core", "ports"},
    "memory": {"core", "ports"},
    "delta": {"core", "ports", "config"},
    "sources": {"core", "ports", "config"},
    # Reads what a source's manifest names, and has what it writes committed.
    "spark": {"core", "ports", "config", "sources", "home", "delta"},
    "quality": {"core", "ports", "config"},
}
# Modules of their own put adapters and pipeline together; each may know those before it.
TELLING = ("telling", "status", "transactions", "summary", "health", "decisions", "readers")
for module in ("assemble", "views", "consume", *TELLING, "publishing", "upkeep", "recovery", "tasks", "job"):
    MAY_IMPORT[module] = set(MAY_IMPORT)
MAY_IMPORT["airflow"] = {"core", "config", "pipeline", "assemble", "consume", "tasks", "telling", "job"}
MAY_IMPORT["airflow"] |= {"home", "submitter", *TELLING}
MAY_IMPORT |= {"plugin": {"tasks", "airflow"}, "provider": set()}
MAY_IMPORT["cli"] = set(MAY_IMPORT) - {"airflow", "plugin", "provider"}
MAY_IMPORT["api"] = {*MAY_IMPORT["cli"], "cli"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a module imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            yield node.lineno, node.module or ""
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def dotted(path: Path) -> str:
    parts = path.relative_to(INCLUDE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_every_package_says_what_it_may_import() -> None:
    packages = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES}
    assert packages <= MAY_IMPORT.keys(), "a new package: add it to MAY_IMPORT, and to the import contracts"


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_imports_only_what_its_package_may(path: Path) -> None:
    package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for line, name in imports_of(path):
        root, *rest = name.split(".")
        if root == "tidemark":
            inner = rest[0] if rest else ""
            known = inner in MAY_IMPORT or not inner or inner.startswith("__")
            allowed = inner in {package, *MAY_IMPORT[package]} or not inner or inner.startswith("__")
            assert known, f"line {line}: tidemark.{inner} is not known here"
            assert allowed, f"line {line}: {package} may not import {name}"
        elif package in STDLIB_ONLY:
            assert root in sys.stdlib_module_names, (
                f"line {line}: {package} needs no library, but imports {name}"
            )
        elif package == "airflow":
            assert root not in {"pyspark", "delta"}, f"line {line}: parsing a DAG must not load {name}"


@pytest.mark.parametrize("folder", ["dags", "plugins"])
def test_a_dag_file_never_loads_spark(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for line, name in imports_of(path):
            assert not name.startswith(("pyspark", "delta.", "tidemark.spark")), (
                f"{path}:{line}: imports {name}"
            )


def test_no_module_is_dead() -> None:
    """Each is imported by another module, a job, a DAG, a benchmark or a test, or is run by name."""
    folders = ("include", "jobs", "dags", "plugins", "bench", "scripts", "tests")
    imported: set[str] = set()
    for path in [path for folder in folders for path in (ROOT / folder).rglob("*.py")]:
        own = dotted(path) if path.is_relative_to(PACKAGE) else ""
        imported |= {name for _, name in imports_of(path) if name != own}
    # A module may also be run by its name: a make target, an entry point, `python -m` of a child process.
    named_in = [ROOT / "Makefile", ROOT / "pyproject.toml"]
    named_in += [path for folder in ("include", "scripts") for path in (ROOT / folder).rglob("*.py")]
    quoted = set(
        re.findall(r"""(?:-m |["'])(tidemark[.\w]+)""", "".join(path.read_text() for path in named_in))
    )
    dead = [
        dotted(path)
        for path in MODULES
        if path.stem not in ("__init__", "__main__") and dotted(path) not in imported | quoted
    ]
    assert not dead, f"nothing imports or runs {dead}"


def test_the_import_contracts_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.is_file():
        pytest.skip("import-linter is not installed")
    found = subprocess.run([str(linter), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-2000:]
