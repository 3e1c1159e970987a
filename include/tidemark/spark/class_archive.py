"""A class data sharing (CDS) archive of Spark's classes, which makes a JVM start faster.

A starting Spark spends most of its time on reading, verifying and linking some fifteen thousand classes.
Java can do that once and map the result into every later JVM.

`python -m tidemark.spark.class_archive` makes the archive: it runs a small example of Tidemark's work and
dumps the loaded classes. Set-up does it once. `session_confs` uses the archive if there is one. A JVM with
another Java version or other jars ignores the archive and starts without it, so the archive needs no
maintenance.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.core.errors import Determinate
from tidemark.runtime.home import archive_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_DUMP_SECONDS_MAX = 300


def archive_options() -> str:
    """The JVM options to start from the archive; empty if there is no archive."""
    file = archive_file()
    return f"-XX:SharedArchiveFile={file} {_QUIET}" if file.is_file() and " " not in str(file) else ""


def make_archive() -> Path:
    """Make or replace the archive atomically. Raises `Determinate` if this Java can't write one."""
    from tidemark.spark.session import build_session

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
                "spark.driver.defaultJavaOptions": f"-XX:ArchiveClassesAtExit={fresh} {_QUIET}",
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


def main() -> int:
    """Make the archive; exit code 1 if that fails."""
    try:
        sys.stdout.write(f"archive: {make_archive()}\n")
    except Exception as error:  # Everything works without the archive.
        sys.stderr.write(f"archive: not written ({error}); Spark starts slower without it\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
