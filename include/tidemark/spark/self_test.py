"""A self-test of Spark and Delta: write a small table, delete from it, and read it back.

`python -m tidemark.spark.self_test FOLDER` runs it in a process of its own, so that the caller can set a
deadline and does not inherit the JVM.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tidemark.core.errors import InvariantViolation, TidemarkError
from tidemark.spark.session import build_session


@dataclass(frozen=True)
class SelfTest:
    """The measurements of a passed self-test."""

    java_version: str
    session_seconds: float
    table_seconds: float


def run_selftest(folder: Path) -> SelfTest:
    """Write ten rows below `folder`, delete one, read nine back. Raises `InvariantViolation` on another
    count."""
    begun = time.monotonic()
    spark = build_session("tidemark-selftest", master="local[1]", scratch_folder=folder / "scratch")
    started = time.monotonic()
    try:
        table = str(folder / "table")
        spark.range(10).write.format("delta").save(table)
        spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 3")
        rows = spark.read.format("delta").load(table).count()
        if rows != 9:
            raise InvariantViolation(
                f"a Delta table of 9 rows reads back as {rows}", hint="run `tidemark doctor`"
            )
        java = spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version')").head()
    finally:
        spark.stop()
    return SelfTest(
        java_version=str(java[0]) if java else "unknown",
        session_seconds=round(started - begun, 1),
        table_seconds=round(time.monotonic() - started, 1),
    )


def main(arguments: list[str]) -> int:
    """Run the self-test in the given folder; print one line, the result or the reason of a failure."""
    try:
        result = run_selftest(Path(arguments[0]))
    except TidemarkError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(
        f"Java {result.java_version}: session in {result.session_seconds} s, "
        f"Delta write, delete and read in {result.table_seconds} s\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
