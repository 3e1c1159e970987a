"""The clock's port: time comes from outside, so that tests and the simulation can move it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Seconds that only go forward while a process lives; not comparable between machines."""

    def monotonic(self) -> float: ...
