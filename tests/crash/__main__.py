"""`make crash SEEDS=…`: the long form of the crash campaign.

python -m tests.crash --seeds 5
python -m tests.crash --seed 3

Each seed is one chain of kills before and after every durable step, each finished and compared by itself,
and one flow of cycles with two workers. A seed gives the same files and the same fuses again; kills at a
time of the clock fall where they fall.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.campaign import Bench, bench_at, chain, finish_copy, flow


def campaign(bench: Bench, folder: Path, *, seed: int, every: int, cycles: int) -> None:
    """One seed. Long histories too: from the third cycle on, log housekeeping falls due."""
    for number, copy in enumerate(chain(bench, folder / "chain", seed=seed, cycles=(2, 4, 2))):
        finish_copy(bench, copy, check=(number + seed) % every == 0)
    assert set(bench.prove(folder / "chain" / "killed")) == {"identical"}
    flow(bench, folder / "flow", seed=seed, cycles=cycles, jvm_kills=(cycles // 2,))
    assert set(bench.prove(folder / "flow")) == {"identical"}


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill real processes, and look at what is left.")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one seed again")
    parser.add_argument("--cycles", type=int, default=15, help="cycles of flow, kill, resume for each seed")
    parser.add_argument("--every", type=int, default=1, help="finish and compare every n-th kill by itself")
    options = parser.parse_args()
    first, last = options.start, options.start + options.seeds
    if options.seed is not None:
        first, last = options.seed, options.seed + 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidemark-crash-") as scratch, bench_at(Path(scratch)) as bench:
        for seed in range(first, last):
            try:
                campaign(
                    bench, Path(scratch) / str(seed), seed=seed, every=options.every, cycles=options.cycles
                )
            except AssertionError as error:
                say(f"seed {seed}: {error}\n  again: python -m tests.crash --seed {seed}")
                return 1
            told = bench.tally
            say(
                f"seed {seed}: {told.kills} kills and {told.jvm_kills} of the JVM so far, {told.checks} times"
                f" compared with the files, {told.retries} retries, {time.monotonic() - began:.0f} s"
            )
        for error in sorted(set(bench.tally.errors)):
            say(f"  retried: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
