"""`make read-crash SEEDS=…`: the long form of the readers' campaign.

python -m tests.reading --seeds 5 --txns 200 --kills 12
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.reading.campaign import campaign


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill and stop real consumers, and count what they have.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--txns", type=int, default=120, help="transactions that are appended meanwhile")
    parser.add_argument("--kills", type=int, default=9, help="how often the consumer is killed or stopped")
    options = parser.parse_args()
    for seed in range(options.start, options.start + options.seeds):
        with tempfile.TemporaryDirectory(prefix="tidemark-reading-") as scratch:
            told = campaign(Path(scratch), seed=seed, txns=options.txns, kills=options.kills)
        sys.stdout.write(f"seed {seed}: {told}, every change delivered once\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
