"""What processes do at once in the tests: keep house in a loop, and write in a loop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.maintenance.rig import LightDeployment, feed, terms
from tidemark.app import maintenance
from tidemark.app.deployment import new_token


def keep_house(root: str, until: float, reports: Any) -> None:
    """Maintenance in a loop."""
    errors, rounds = [], 0
    while not (rounds or errors) or time.monotonic() < until:
        try:
            maintenance.maintain(
                LightDeployment(Path(root)), new_token(), terms(window=1, kept_ms=10**18), watch=False
            )
            rounds += 1
        except Exception as error:
            errors.append(f"maintenance: {type(error).__name__}: {error}")
    reports.put((errors, rounds))


def write(root: str, first: int, until: float, reports: Any) -> None:
    """A file after the other, each taken in by a run."""
    errors, number = [], first
    while number == first or time.monotonic() < until:
        try:
            feed(Path(root), first=number, files=1)
        except Exception as error:
            errors.append(f"writer: {type(error).__name__}: {error}")
        number += 1
    reports.put((errors, number - first))
