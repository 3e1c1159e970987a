"""Records of a database's catalog go once no binding and no reading names them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tidemark.sources.postgres.catalog import CatalogFacts, put_facts
from tidemark.sources.postgres.change_files import TEMPORARY_SECONDS_MAX, ChangeFiles, let_go, unneeded

FACTS = CatalogFacts("p", (1,), 2, {"id": 1}, {}, {3: 4})
NAMES = {kind: f"{number:016x}" for number, kind in enumerate(("bound", "noted", "old", "young"))}


def test_regression_records_of_catalogs_that_nothing_names_are_removed(tmp_path: Path) -> None:
    files = ChangeFiles(str(tmp_path / "_captured"))
    long_ago = time.time() - TEMPORARY_SECONDS_MAX - 1
    for kind, name in NAMES.items():
        path = files.folder / f"catalog-{name}.json"
        files.write(path, b"{}")
        if kind != "young":
            os.utime(path, (long_ago, long_ago))
    note = files.folder / f"snapshot-{'0' * 12}-{'f' * 16}.json"
    files.write(note, f'{{"read": {{"catalog": "{NAMES["noted"]}"}}}}'.encode())
    named = frozenset({NAMES["bound"]})
    assert unneeded(files, bound=0, acknowledged=0, catalogs=None).files == 0, "nothing is bound yet"
    assert unneeded(files, bound=0, acknowledged=0, catalogs=named).files == 1
    for left in (1, 0):
        assert let_go(files, below=0, catalogs=named).files == left
    kept = {path.name for path in files.folder.glob("catalog-*")}
    assert kept == {f"catalog-{NAMES[kind]}.json" for kind in ("bound", "noted", "young")}


def test_a_record_that_is_made_again_is_young_again(tmp_path: Path) -> None:
    """Else maintenance might remove it before the binding that names it."""
    files = ChangeFiles(str(tmp_path / "_captured"))
    name = put_facts(files, FACTS)
    path = files.folder / f"catalog-{name}.json"
    os.utime(path, (1, 1))
    assert put_facts(files, FACTS) == name
    assert let_go(files, below=0, catalogs=frozenset()).files == 0
    assert path.exists()
