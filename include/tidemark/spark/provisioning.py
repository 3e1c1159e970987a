"""Two small Spark programs, for set-up and the doctor: an archive of Spark's classes, and a self-test.

`python -m tidemark.spark.provisioning archive` makes a class data sharing (CDS) archive, from which a JVM
starts faster. A starting Spark spends most of its time on reading, verifying and linking some fifteen
thousand classes. Java can do that once and map the result into every later JVM. The program runs a small
example of Tidemark's work and dumps the loaded classes. Sessions use the archive if there is one. A JVM with
another Java version or other jars ignores it, so it needs no maintenance.

`python -m tidemark.spark.provisioning test FOLDER` writes a small Delta table, deletes from it, and reads it
back. It runs in a process of its own, so that its caller can set a deadline and does not inherit the JVM.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tidemark.core.errors import Determinate, InvariantViolation, TidemarkError
from tidemark.runtime.machine import archive_file
from tidemark.spark.session import ARCHIVE_QUIETLY, build_session

_DUMP_SECONDS_MAX = 300


def make_archive() -> Path:
    """Make or replace the archive atomically. Raises `Determinate` if this Java can't write one."""
    file = archive_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="tidemark-archive-") as name:
        folder = Path(name)
        spark = build_session(
            "tidemark-archive",
            master="local[1]",
            scratch_folder=folder / "scratch",
            confs={
                "spark.driver.defaultJavaOptions": f"-XX:ArchiveClassesAtExit={fresh} {ARCHIVE_QUIETLY}",
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            },
        )
        gateway: Any = spark.sparkContext._gateway
        _rehearse(spark, folder)
        spark.stop()
        # The JVM writes the archive when it exits; it exits when its connection and its standard input
        # close.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=_DUMP_SECONDS_MAX)
    if not fresh.is_file():
        raise Determinate("Java did not write the class archive", hint="Spark starts without it, but slower")
    fresh.replace(file)
    return file


def _rehearse(spark: SparkSession, folder: Path) -> None:
    """Run a transaction and a publish in small: parse, fold, hash, append, merge by key, read."""
    lines = [f'{{"id": {n % 7}, "name": "n{n}", "at": "2026-01-01T00:00:0{n % 10}Z"}}\n' for n in range(40)]
    (folder / "in").mkdir()
    (folder / "in" / "one.json").write_text("".join(lines), encoding="utf-8")
    sql = spark.sql
    table = f"delta.`{folder / 'table'}`"
    sql(
        "SELECT from_json(value, 'id BIGINT, name STRING, at TIMESTAMP') AS row, "
        f"monotonically_increasing_id() AS position FROM text.`{folder / 'in'}`"
    ).createOrReplaceTempView("parsed")
    last = "max_by(row, position).name AS name"
    folded = sql(f"SELECT row.id, {last}, count(*) AS n FROM parsed GROUP BY row.id")
    folded.createOrReplaceTempView("folded")
    folded.write.format("delta").option("delta.enableDeletionVectors", "true").save(str(folder / "table"))
    sql(
        f"MERGE INTO {table} t USING folded s ON t.id = s.id AND t.id > 2 "
        "WHEN MATCHED AND s.id = 3 THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    sql(f"SELECT count(*), bit_xor(xxhash64(id, name)), sum(n) FROM {table}").collect()


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
    """Run `archive`, or `test` in the given folder; print one line, the result or the reason of a failure."""
    match arguments:
        case ["archive"]:
            return _archive()
        case ["test", folder]:
            return _test(Path(folder))
    sys.stderr.write("usage: python -m tidemark.spark.provisioning archive | test FOLDER\n")
    return 2


def _archive() -> int:
    try:
        sys.stdout.write(f"archive: {make_archive()}\n")
    except Exception as error:  # Everything works without the archive.
        sys.stderr.write(f"archive: not written ({error}); Spark starts slower without it\n")
        return 1
    return 0


def _test(folder: Path) -> int:
    try:
        result = run_selftest(folder)
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
