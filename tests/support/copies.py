"""Copies of a warehouse for tests that each begin with the same tables."""

from __future__ import annotations

from pathlib import Path

from tidemark.delta.commit import entry_actions, entry_bytes, entry_path
from tidemark.delta.control import ADDRESS
from tidemark.delta.store import address_of


def at_home(folder: Path) -> None:
    """Give the pipelines below a copied folder the address that they are at, as if they were made there."""
    for history in folder.rglob("_control/history"):
        first = history / entry_path(0)
        if not first.exists():
            continue
        actions = entry_actions(first.read_bytes(), 0, str(history))
        for action in actions:
            if "metaData" in action:
                action["metaData"]["configuration"][ADDRESS] = address_of(str(history.parents[1]))
        first.write_bytes(entry_bytes(actions))
