"""What can go wrong at a port call, and who decides it.

A `Chaos` is asked before every call of an unreliable store. It may let other actors run first (the
simulation's scheduler does), and it says which fault the call meets.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class Fault(Enum):
    """One call's fate."""

    NONE = "works"
    FAIL = "fails, and says so"
    CRASH_BEFORE = "the process dies before the effect"
    CRASH_AFTER = "the process dies after the effect"
    LOSE_REPLY = "the effect happens, the reply is lost"
    LOSE_REQUEST = "nothing happens, and nobody says so"
    DELAY = "the effect happens later, the reply is lost"
    DUPLICATE = "the effect is asked for twice"
    STALE = "an older snapshot is read"


class Chaos(Protocol):
    """Decides each call's fate."""

    def meet(self, call: str) -> Fault: ...


class Calm:
    """No faults at all."""

    def meet(self, call: str) -> Fault:
        return Fault.NONE


class Crash(BaseException):
    """The process died here. Not an `Exception`, so that no handler takes it for an error."""
