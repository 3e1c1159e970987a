"""Fixtures and settings that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# A slow machine is not a failing property; the examples' number bounds the time instead.
settings.register_profile("tidemark", deadline=None)
settings.load_profile("tidemark")

ROOT = Path(__file__).parent
# Folders whose tests share something that is dear to start, the longest first.
GROUPS = ("e2e", "crash", "spark", "reading", "maintenance", "quality", "cli", "airflow")
# What shares a server, or one long computation, stays on one worker.
TOGETHER = ("e2e", "crash", "connect", "every_cut", "wheel", "quality", "maintenance")


def group_of(item: pytest.Item) -> str:
    folder = item.path.relative_to(ROOT).parts[0] if item.path.is_relative_to(ROOT) else ""
    return folder if folder in GROUPS else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long groups first, and each on one worker: what they share is started once."""
    for item in items:
        together = next((word for word in TOGETHER if word in str(item.path.relative_to(ROOT))), None)
        if together is not None:
            item.add_marker(pytest.mark.xdist_group(together))
    places = {group: place for place, group in enumerate(GROUPS)}
    items.sort(key=lambda item: places.get(group_of(item), len(GROUPS)))
