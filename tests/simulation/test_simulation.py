"""The simulation in the test command: every seed is one interleaving with its own faults.

`make simulate` runs many more."""

from __future__ import annotations

import pytest

from tests.simulation.explore import explore, simulate
from tests.simulation.mutants import MUTANTS
from tests.simulation.world import World
from tidemark.core.ledger import Event

SEEDS = 12_000
CHUNKS = 4
MUTANT_SEEDS_MAX = 6_000
NOTICED_AT = {"skipped_append_trusted_without_comparing": 5_683}
"""Where the search for a rare one begins. It goes through all seeds, wherever it begins."""


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_invariants_hold_in_every_interleaving(chunk: int) -> None:
    """Invariants 1 to 13, each checked by `tests/simulation/checker.py` and `flushing.py`."""
    size = SEEDS // CHUNKS
    failures = explore(chunk * size, (chunk + 1) * size)
    again = "again with: python -m tests.simulation --kind worlds --seed"
    assert not failures, f"{again} {failures[0].seed}\n{failures[:3]}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_simulation_notices_an_old_mistake(mutant) -> None:
    begin = NOTICED_AT.get(mutant.__name__, 0)
    with mutant():
        failures = explore(begin, MUTANT_SEEDS_MAX, stop_at_first=True)
        failures = failures or explore(0, begin, stop_at_first=True)
    assert failures, f"{MUTANT_SEEDS_MAX} seeds did not notice {mutant.__name__}"


def test_a_seed_replays_exactly() -> None:
    for seed in range(200):
        first, second = World(seed), World(seed)
        first.simulate()
        second.simulate()
        assert first.scheduler.steps == second.scheduler.steps
        assert first.warehouse.seals.records(first.warehouse.seals.version) == second.warehouse.seals.records(
            second.warehouse.seals.version
        )
        assert first.files == second.files


def test_the_worlds_are_worth_simulating() -> None:
    """Races, faults, tampering and skips all happen, and often."""
    raced = tampered = skipped = steps = 0
    for seed in range(600):
        world = World(seed)
        world.simulate()
        steps += world.scheduler.steps
        journal = world.warehouse.journal
        raced += any(entry.event is Event.LOST for entry in journal.records(journal.version))
        tampered += bool(world.evidence.tampered)
        skipped += any(s.reason for s in world.warehouse.seals.records(world.warehouse.seals.version))
    assert min(raced, tampered, skipped) > 20, (raced, tampered, skipped)
    assert steps > 600 * 50


def test_simulate_returns_its_steps() -> None:
    assert simulate(1) > 0
