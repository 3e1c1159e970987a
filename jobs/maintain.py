"""The `maintain` step as a Spark application; see `tidemark.job`."""

from __future__ import annotations

import sys

from tidemark.job import main

if __name__ == "__main__":
    sys.exit(main("maintain"))
