"""Old Data Docs go with maintenance, with their rows of the index, and newer ones stay."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.maintenance.rig import LightDeployment
from tidemark.app.maintenance import DAY_MS, maintain, plan, terms_of
from tidemark.core.ids import WriterToken
from tidemark.quality.engine import old_pages, remove_pages

ROW = (
    '<tr><td class="identical">Success</td><td><a href="{link}">txn-{txn}</a></td>'
    "<td>then</td><td>digests</td></tr>\n"
)
NOW_MS = 1_800_000_000_000


def page(txn: int) -> str:
    return f"validations/digests/txn-{txn}/20260101T000000.000000Z/batch.html"


def result(txn: int) -> str:
    return page(txn).replace("validations", "results").replace("html", "json")


def made(site: Path, ages_days: dict[int, int]) -> None:
    """A site with a result and a page for each transaction, so many days old."""
    rows = ""
    for txn, days in ages_days.items():
        rows += ROW.format(link=page(txn).replace("digests", "%64igests"), txn=txn)
        for name in (page(txn), result(txn)):
            path = site / name
            path.parent.mkdir(parents=True)
            path.write_text("0123456789")
            os.utime(path, ((NOW_MS - days * DAY_MS) / 1000,) * 2)
    (site / "static").mkdir()
    (site / "static" / "style.css").write_text("")
    os.utime(site / "static" / "style.css", (1, 1))
    (site / "index.html").write_text(f"<table>\n<tr><th>Status</th></tr>\n{rows}</table>\n")


def test_regression_pages_older_than_the_retention_are_removed_with_their_rows(tmp_path: Path) -> None:
    made(tmp_path, {1: 100, 2: 91, 3: 89})
    found = old_pages(tmp_path, before_ms=NOW_MS - 90 * DAY_MS)
    assert (len(found), {size for _, size in found}) == (4, {10})
    for _ in range(2):  # Whoever comes second finds nothing to do.
        remove_pages(tmp_path, found)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "index.html", result(3), "static/style.css", page(3),
    ]  # fmt: skip
    assert not (tmp_path / "validations" / "digests" / "txn-1").exists()
    index = (tmp_path / "index.html").read_text()
    assert index.startswith("<table>\n<tr><th>Status</th></tr>\n<tr>")
    assert index.endswith("</tr>\n</table>\n")
    assert ["txn-1" in index, "txn-2" in index, "txn-3" in index] == [False, False, True]


def test_maintenance_tells_and_removes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "home"))
    deployment: Any = LightDeployment(tmp_path)
    terms = terms_of(deployment, now_ms=NOW_MS)
    assert plan(deployment, terms).chores == ()
    made(deployment.data_docs, {1: 100, 2: 89})
    (chore,) = plan(deployment, terms).chores
    assert (chore.what, chore.files, chore.bytes) == ("remove old Data Docs", 2, 20)
    (chore,) = maintain(deployment, WriterToken("w"), terms, watch=False).chores
    assert (chore.what, chore.files, chore.bytes) == ("removed old Data Docs", 2, 20)
    assert plan(deployment, terms).chores == ()
