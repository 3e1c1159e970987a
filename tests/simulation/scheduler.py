"""The scheduler: one thread, many actors, and a seed that decides everything.

Actors are greenlets that run the product's own code. They hand over at every port call, where the
seed picks who goes on and which fault the call meets. The same seed gives the same run, exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import greenlet

from tests.support.memory.ledger import Fault

STEPS_MAX = 30_000

_COMMIT_FAULTS = (
    Fault.FAIL,
    Fault.CRASH_BEFORE,
    Fault.CRASH_AFTER,
    Fault.LOSE_REPLY,
    Fault.LOSE_REQUEST,
    Fault.DELAY,
    Fault.DUPLICATE,
)
_WRITE_FAULTS = (Fault.FAIL, Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
_HEAD_FAULTS = (Fault.STALE, Fault.STALE, Fault.STALE, Fault.CRASH_BEFORE)


class Stuck(Exception):
    """The actors went on for ever: something waits for what never comes."""


class Scheduler:
    """Interleaves actors, and is the chaos that their stores meet."""

    def __init__(self, seed: int, *, fault_rate: float) -> None:
        self.rng = random.Random(seed)
        self.now_seconds = 0.0
        self.steps = 0
        self.fault_rate = fault_rate
        self.land_one: Callable[[], None] = lambda: None
        self._hub = greenlet.getcurrent()
        self._actors: list[greenlet.greenlet] = []

    def again(self) -> Scheduler:
        """A scheduler for new actors, after the old ones have died where they stood."""
        return Scheduler(self.rng.randrange(1 << 30), fault_rate=0.0)

    def spawn(self, work: Callable[[], None]) -> greenlet.greenlet:
        actor = greenlet.greenlet(work, parent=self._hub)
        self._actors.append(actor)
        return actor

    def run(self) -> None:
        """Until every actor has ended."""
        actors = self._actors
        while actors:
            actors[int(self.rng.random() * len(actors))].switch()
            self._actors = actors = [actor for actor in actors if not actor.dead]

    def pause(self) -> None:
        """Let somebody else go on; perhaps let a delayed write land, perhaps let time jump."""
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Stuck(f"still running after {STEPS_MAX} steps")
        luck = self.rng.random()
        if luck < 0.02:
            self.land_one()
        elif luck > 0.99:
            self.now_seconds += self.rng.choice((0.5, 3.0, -2.0, 40.0, 3_600.0))
        else:
            self.now_seconds += 0.01
        me = greenlet.getcurrent()
        actors = self._actors
        if me is self._hub or not actors:
            return
        chosen = actors[int(self.rng.random() * len(actors))]
        if chosen is not me and not chosen.dead:
            chosen.switch()

    def meet(self, call: str) -> Fault:
        self.pause()
        if self.rng.random() >= self.fault_rate:
            return Fault.NONE
        if call.endswith(".commit"):
            return self.rng.choice(_COMMIT_FAULTS)
        if call == "plane.write":
            return self.rng.choice(_WRITE_FAULTS)
        if call.endswith(".head"):
            return self.rng.choice(_HEAD_FAULTS)
        return self.rng.choice((Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOSE_REQUEST))

    def monotonic(self) -> float:
        return self.now_seconds
