"""The public interface: its names are typed, documented and cheap; the documents use no others."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tidemark
import tidemark.airflow

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "include" / "tidemark" / "__init__.py"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PUBLIC = {"tidemark": tidemark, "tidemark.airflow": tidemark.airflow}
BLOCKS = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
NAMES = sorted(set(tidemark.__all__) - {"__version__"})


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_documented_and_typed(name: str) -> None:
    found = getattr(tidemark, name)
    assert inspect.getdoc(found), f"{name} has no docstring"
    if inspect.isfunction(found):
        parameters = inspect.signature(found).parameters.values()
        assert all(one.annotation is not inspect.Parameter.empty for one in parameters)
        assert inspect.signature(found).return_annotation is not inspect.Signature.empty


def test_type_checkers_are_told_the_same_names_from_the_same_modules() -> None:
    imported = {
        alias.name: node.module
        for node in ast.walk(ast.parse(PACKAGE.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidemark.")
        for alias in node.names
    }
    assert imported == tidemark._MODULES
    assert sorted(imported) == NAMES


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Deployment'"):
        _ = tidemark.Deployment


def test_loading_a_pipeline_and_catching_errors_takes_no_engine() -> None:
    engines = ("airflow", "deltalake", "great_expectations", "pandas", "psycopg", "pyarrow", "pyspark")
    code = (
        "import sys, tidemark\n"
        "try: tidemark.load_pipeline('none.yaml')\n"
        "except tidemark.ConfigInvalid: pass\n"
        f"print([name for name in {engines!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_in_the_documents_uses_public_names_only(document: Path) -> None:
    for block in BLOCKS.findall(document.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidemark"):
                assert node.module in PUBLIC, f"{node.module} is not public"
                assert {alias.name for alias in node.names} <= set(PUBLIC[node.module].__all__)
            elif isinstance(node, ast.Import):
                named = {alias.name for alias in node.names if alias.name.startswith("tidemark")}
                assert named <= PUBLIC.keys()
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tidemark":
                assert node.attr in tidemark.__all__, f"tidemark.{node.attr} is not public"
