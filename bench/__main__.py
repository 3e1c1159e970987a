"""`make bench`: every measurement, one after the other, into one report in Markdown.

python -m bench            # all, in their default size
python -m bench flush control
"""

from __future__ import annotations

import subprocess
import sys

ALL = ("flush", "start", "control", "commit", "publish")


def main() -> int:
    chosen = sys.argv[1:] or list(ALL)
    unknown = [name for name in chosen if name not in ALL]
    if unknown:
        print(f"no measurement {', '.join(unknown)}: there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    # Each in its own process: one measurement's warm caches are not another's.
    return max(
        subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode for name in chosen
    )


if __name__ == "__main__":
    sys.exit(main())
