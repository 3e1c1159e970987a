"""Data Docs without the internet: every page shows what it has, and asks nobody for anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidemark.core.checksum import Digest
from tidemark.core.ids import Txn
from tidemark.quality.checks import check_digests

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    same = {"source": Digest()}
    check_digests([(Txn(1), same, same)], site=folder)
    check_digests([(Txn(2), same, {**same, "shard:orders": Digest()})], site=folder)
    return folder


def test_regression_the_index_lists_the_results_without_a_script(site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    cells = re.findall(r"<tr><td[^>]*>(.*?)</td><td><a href=\"(.*?)\">(.*?)</a></td>", index)
    assert [(status, name) for status, _, name in cells] == [("Failed", "txn-2"), ("Success", "txn-1")]
    for _, link, _ in cells:
        assert (site / link).is_file()


def test_no_page_takes_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) == 3
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "<script" not in text
        assert not re.search(r"(src|href)=[\"']https?://", text)
        assert not re.search(r"url\([\"']?https?://", text)


def test_a_results_page_still_shows_its_result(site: Path) -> None:
    (page,) = (site / "validations").rglob("txn-2/**/*.html")
    text = page.read_text(encoding="utf-8")
    assert "shard:orders" in text
    assert "found_digest" in text
