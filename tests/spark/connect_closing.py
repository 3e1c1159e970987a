"""A client process: `python -m tests.spark.connect_closing URL ROOT` runs a pipeline below ROOT over Spark
Connect, closes it, and prints as JSON how many sessions it has begun and ended, and how its own one is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.deployed import arrive, begun
from tidemark.spark import session as session_module
from tidemark.spark.session import child_session, connect_session


def main() -> None:
    url, root = sys.argv[1:]
    spark = connect_session(url)
    made: list[SparkSession] = []

    def noted(parent: SparkSession) -> SparkSession:
        made.append(child_session(parent))
        return made[-1]

    session_module.child_session = noted  # type: ignore[assignment]
    works = begun(spark, Path(root), schema="k STRING, v INT", keys=["k"])
    arrive(works, {"k": "a", "v": 1})
    works.close()
    ended = sum(bool(session.is_stopped) for session in made)  # type: ignore[attr-defined]
    given = "ended" if spark.is_stopped else "open"  # type: ignore[attr-defined]
    sys.stdout.write(json.dumps({"begun": len(made), "ended": ended, "given": given}))
    spark.stop()


if __name__ == "__main__":
    main()
