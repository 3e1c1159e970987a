"""Fixtures and settings that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.support.scratch import use_memory

pytest_plugins = ["tests.support.fixtures"]

use_memory()

# For every JVM that a test starts, in whatever process: the second compiler would never earn its work back,
# with one alone Java keeps too little room for code, and several cores for collecting are taken from others.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
)

# A slow machine is not a failing property; the examples' number bounds the time instead.
settings.register_profile("tidemark", deadline=None)
settings.load_profile("tidemark")

ROOT = Path(__file__).parent
# Folders whose tests share something that is dear to start, the longest first.
GROUPS = (
    "e2e",
    "crash",
    "cluster",
    "postgres",
    "spark",
    "reading",
    "maintenance",
    "quality",
    "cli",
    "airflow",
)
# What shares a server, or one long computation, stays on one worker: a word of the path, and with whom.
TOGETHER = {
    **{
        word: word
        for word in ("e2e", "crash", "cluster", "postgres", "connect", "kafka", "maintenance", "wheel")
    },
    "every_cut": "connect",
    "tutorial": "connect",
    "quality": "quality",
}


def group_of(item: pytest.Item) -> str:
    folder = item.path.relative_to(ROOT).parts[0] if item.path.is_relative_to(ROOT) else ""
    return folder if folder in GROUPS else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long groups first, so that nobody waits for them at the end."""
    places = {group: place for place, group in enumerate(GROUPS)}
    items.sort(key=lambda item: places.get(group_of(item), len(GROUPS)))


class Together(LoadScopeScheduling):
    """Tests that share something dear go to one worker, one after the other; any other goes to any worker."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        return next((scope for word, scope in TOGETHER.items() if word in path), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Together:
    # In the order of the collection; by itself it would begin with what has the most tests.
    config.option.loadscopereorder = False
    return Together(config, log)
