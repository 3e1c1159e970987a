"""Old pages of Data Docs: which they are, and their removal. The verdicts themselves stay in the journal.

Needs no Great Expectations: the files' times tell their age, and the index is a plain table, of which the
rows go whose pages are gone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_FOLDERS: Final = ("results", "validations")
_LINKED: Final = re.compile(r"^<tr>.*?<a href=\"([^\"]+)\".*</tr>\n?", re.MULTILINE)


def old_pages(site: Path, *, before_ms: int) -> list[tuple[Path, int]]:
    """The results and pages that were written before some time, with their sizes."""
    found: list[tuple[Path, int]] = []
    for name in _FOLDERS:
        for folder, _, files in os.walk(site / name):
            for file in files:
                path = Path(folder, file)
                with suppress(FileNotFoundError):  # Another maintenance may be at it.
                    its = path.stat()
                    if its.st_mtime_ns < before_ms * 1_000_000:
                        found.append((path, its.st_size))
    return found


def remove_pages(site: Path, pages: Sequence[tuple[Path, int]]) -> None:
    """Remove pages, the folders that are empty after that, and their rows of the index."""
    for path, _ in pages:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # One that is not empty stays, with all above it.
            for folder in path.parents:
                if folder.parent == site:
                    break
                folder.rmdir()
    index = site / "index.html"
    if pages and index.exists():
        text = index.read_text(encoding="utf-8")
        left = _LINKED.sub(lambda row: row[0] if (site / unquote(row[1])).exists() else "", text)
        if left != text:
            aside = index.with_name(f".{os.getpid()}.tmp")
            aside.write_text(left, encoding="utf-8")
            aside.replace(index)
