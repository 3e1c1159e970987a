"""`make simulate SEEDS=…`: run a number of seeds, or one seed again.

python -m tests.simulation --seeds 1000000
python -m tests.simulation --seed 4711
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.explore import Failure, explore

CHUNK_SEEDS = 2_000


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate seeded interleavings of many processes.")
    parser.add_argument("--seeds", type=int, default=100_000, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one seed, and let its error through")
    parser.add_argument("--workers", type=int, default=None)
    options = parser.parse_args()
    if options.seed is not None:
        explore(options.seed, options.seed + 1, through=True, with_generations=True)
        print(f"seed {options.seed}: all invariants hold")
        return 0
    started = time.monotonic()
    ends = options.start + options.seeds
    chunks = [(low, min(low + CHUNK_SEEDS, ends)) for low in range(options.start, ends, CHUNK_SEEDS)]
    failures: list[Failure] = []
    done = 0
    with ProcessPoolExecutor(options.workers) as pool:
        for future in as_completed(
            [pool.submit(explore, low, high, with_generations=True) for low, high in chunks]
        ):
            failures += future.result()
            done += 1
            seconds = time.monotonic() - started
            print(
                f"\r{done}/{len(chunks)} chunks, {len(failures)} failures, {seconds:.0f} s",
                end="",
                flush=True,
            )
    print()
    for failure in failures[:10]:
        print(
            f"seed {failure.seed}: {failure.error}\n  again: python -m tests.simulation --seed {failure.seed}"
        )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
