"""The `generation` step as a Spark application; see `tidemark.app.job`."""

from __future__ import annotations

import sys

from tidemark.app.job import main

if __name__ == "__main__":
    sys.exit(main("generation"))
