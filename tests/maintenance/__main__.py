"""`make soak SECONDS=…`: writers, consumers and maintenance at once, with kills of each, for a long time."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.maintenance.soak import delivered, landed, soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--consumers", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemark-soak-") as scratch:
        root = Path(scratch)
        told = soak(
            root,
            seconds=given.seconds,
            seconds_max=given.seconds + 900,
            seed=given.seed,
            writers=given.writers,
            consumers=given.consumers,
            keepers=2,
        )
        had = [delivered(root, f"c{n}") == landed(root) for n in range(given.consumers)]
    sys.stdout.write(f"{told}\nevery consumer had every change once: {all(had)}\n")
    whole = all(had) and told.is_enough and told.files_left == told.files_named
    return 0 if whole and not told.errors else 1


if __name__ == "__main__":
    sys.exit(main())
