"""The commands of a pipeline's life, one after the other, in one driver on the cluster of its environment.

`python -m tests.cluster.plain ROOT` prints what they came to.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.cluster.shop import land, make, opened, seen, tell


def main() -> None:
    root = Path(sys.argv[1])
    file, found = make(root), dict[str, Any]()
    land(root, 0)
    found["first"] = tell("run", str(file))
    land(root, 1)
    tell("run", str(file), "--no-publish")
    found["fresh"] = seen(opened(file))
    found["replayed"] = tell("replay", str(file))
    sys.stdout.write(json.dumps(found, default=str))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
