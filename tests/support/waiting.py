"""Wait for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

SECONDS_MAX = 600.0
"""Far more than anything takes on the slowest machine: it ends a test that would hang."""


def wait_until(
    met: Callable[[], object],
    *,
    what: str,
    pause_seconds: float = 0.05,
    seconds_max: float = SECONDS_MAX,
) -> None:
    """Return as soon as the condition is met; AssertionError names what has not come."""
    deadline = time.monotonic() + seconds_max
    while not met():
        assert time.monotonic() < deadline, f"{what} has not come after {seconds_max:.0f} s"
        time.sleep(pause_seconds)


def wait_for_file(path: Path) -> None:
    """Until another process has left its mark."""
    wait_until(path.exists, what=f"the file {path.name}")
