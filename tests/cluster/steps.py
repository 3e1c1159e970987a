"""A submitted application that does all steps of a run and then proves it, by the jobs' own entry points.

One driver does them all, as each would start a JVM of its own. Great Expectations, whose import takes longer
than these steps, does not confirm the verdict.
"""

from __future__ import annotations

import sys

from tidemark.app.job import Order, main
from tidemark.app.tasks import open_pipeline
from tidemark.pipeline.validate import judge_gathered


def judge(order: Order) -> None:
    """The gate, which needs no Spark."""
    judge_gathered(open_pipeline(order.pipeline_file, None).pipeline, order.attempt)


if __name__ == "__main__":
    code = main("ingest")
    judge(Order.parsed(sys.argv[1:]))
    sys.exit(code or main("upsert") or main("replay"))
