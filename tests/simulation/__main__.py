"""`make simulate SEEDS=…`: run a number of seeds of each kind of world, or one seed again.

python -m tests.simulation --seeds 1000000
python -m tests.simulation --kind restores --seed 4711
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final

from tests.simulation import (
    generations,
    readings,
    test_power_cuts,
    test_publishes,
    test_recoveries,
    test_restores,
)
from tests.simulation.explore import Failure, explore, simulate

CHUNK_SEEDS: Final = 2_000
KINDS: Final[Mapping[str, tuple[Callable[[int], object], int]]] = {
    "worlds": (simulate, 1),
    "generations": (generations.check, 1),
    "restores": (test_restores.check, 4),
    "recoveries": (test_recoveries.check, 20),
    "publishes": (test_publishes.check, 20),
    "readings": (readings.check, 20),
    "power-cuts": (test_power_cuts.check_alone, 300),
}
"""Each kind's check of a seed, and which share of the seeds is run: one of so many, by what a seed costs."""


def run_chunk(kind: str, first: int, end: int) -> tuple[str, list[Failure]]:
    check, share = KINDS[kind]
    return kind, explore(-(-first // share), -(-end // share), check=check)


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate seeded interleavings of many processes.")
    parser.add_argument("--seeds", type=int, default=100_000, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", choices=list(KINDS), help="run only this kind of world")
    parser.add_argument("--seed", type=int, help="run this one seed, and let its error through")
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    kinds = [options.kind] if options.kind else list(KINDS)
    if options.seed is not None:
        for kind in kinds:
            KINDS[kind][0](options.seed)
            print(f"seed {options.seed} of {kind}: all invariants hold")
        return 0
    started = time.monotonic()
    ends = options.start + options.seeds
    chunks = [
        (kind, low, min(low + CHUNK_SEEDS, ends))
        for low in range(options.start, ends, CHUNK_SEEDS)
        for kind in kinds
    ]
    failures: list[tuple[str, Failure]] = []
    with ProcessPoolExecutor(options.workers) as pool:
        running = [pool.submit(run_chunk, *chunk) for chunk in chunks]
        for done, future in enumerate(as_completed(running), start=1):
            kind, found = future.result()
            failures += [(kind, failure) for failure in found]
            seconds = time.monotonic() - started
            print(
                f"\r{done}/{len(chunks)} chunks, {len(failures)} failures, {seconds:.0f} s",
                end="",
                flush=True,
            )
    print()
    for kind, failure in failures[:10]:
        print(
            f"seed {failure.seed} of {kind}: {failure.error}\n"
            f"  again: python -m tests.simulation --kind {kind} --seed {failure.seed}"
        )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
