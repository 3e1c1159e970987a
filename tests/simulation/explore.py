"""Running many seeds, and telling which failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.checker import Checker
from tests.simulation.flushing import FlushWorld
from tests.simulation.world import World


@dataclass(frozen=True)
class Failure:
    """A seed whose world broke an invariant; the seed alone brings it back."""

    seed: int
    error: str


def simulate(seed: int) -> int:
    """One seed: its world to the checker, and its flush world. Returns the steps that were taken."""
    world = World(seed)
    world.simulate()
    Checker(world).check()
    FlushWorld(seed).simulate()
    return world.scheduler.steps


def explore(
    first: int, end: int, *, check: Callable[[int], object] = simulate, stop_at_first: bool = False
) -> list[Failure]:
    """Run the seeds in [first, end)."""
    failures: list[Failure] = []
    for seed in range(first, end):
        try:
            check(seed)
        except Exception as error:
            failures.append(Failure(seed, f"{type(error).__name__}: {error}"))
            if stop_at_first:
                break
    return failures
