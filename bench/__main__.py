"""`make bench`: every measurement, one after the other, in Markdown; the comparison with others also as a
report in `docs/benchmarks.md`.

python -m bench            # all, in their default size
python -m bench flush control
python -m bench peers --sizes 2,8,20
"""

from __future__ import annotations

import subprocess
import sys

ALL = (
    "flush", "start", "small", "control", "commit", "publish", "state", "flat", "kafka", "postgres", "reader",
    "maintain", "generation", "cores", "peers", "airflow", "pages", "scale",
    "past",
)  # fmt: skip


def main() -> int:
    given = sys.argv[1:]
    first = next((at for at, word in enumerate(given) if word.startswith("-")), len(given))
    chosen, options = given[:first] or list(ALL), given[first:]
    unknown = [name for name in chosen if name not in ALL]
    if unknown:
        print(f"no measurement {', '.join(unknown)}: there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    if options and len(chosen) != 1:
        print(f"say which measurement {' '.join(options)} is for", file=sys.stderr)
        return 2
    # Each in its own process: one measurement's warm caches are not another's.
    return max(
        subprocess.run([sys.executable, "-m", f"bench.{name}", *options], check=False).returncode
        for name in chosen
    )


if __name__ == "__main__":
    sys.exit(main())
