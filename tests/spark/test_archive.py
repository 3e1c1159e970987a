"""The archive of Spark's classes: used where it is, refused in silence where it does not fit."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidemark.runtime.machine import find_java
from tidemark.spark import session
from tidemark.spark.session import archive_options, session_confs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ran(*options: str) -> subprocess.CompletedProcess[str]:
    java = str(find_java().home / "bin" / "java")
    return subprocess.run([java, *options, "--version"], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("made", ["nothing", "garbage"])
def test_a_java_that_can_not_use_the_archive_starts_without_a_word(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "spark.jsa"
    file.write_text("no archive")
    monkeypatch.setattr(session, "archive_file", lambda: file)
    options = archive_options().split()
    if made == "nothing":
        file.unlink()
    with_archive, without = ran(*options), ran()
    assert with_archive.returncode == 0
    assert with_archive.stderr == without.stderr
    assert with_archive.stdout.splitlines()[0] == without.stdout.splitlines()[0]


def test_only_a_local_driver_is_told_of_it_and_only_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "spark.jsa"
    monkeypatch.setattr(session, "archive_file", lambda: file)

    def options(master: str) -> str:
        return session_confs(master=master, jars=[])["spark.driver.defaultJavaOptions"]

    assert str(file) not in options("local[2]")
    file.touch()
    assert str(file) in options("local[2]")
    assert "avro.limits.string.maxLength" in options("local[2]"), "and beside the limits of Avro's decoder"
    assert str(file) not in options("spark://elsewhere:7077")


@pytest.mark.spark
def test_sparks_classes_come_from_it(spark: SparkSession, tmp_path: Path) -> None:
    """With the class path that a session has, for the Java and the jars that set-up made it of."""
    if not session.archive_file().is_file():
        pytest.skip("set-up made none on this machine")
    runtime = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()  # type: ignore[union-attr]
    assert any(str(session.archive_file()) in option for option in runtime.getInputArguments())
    loaded = tmp_path / "loaded"
    options = ["-cp", runtime.getClassPath(), *archive_options().split()]
    assert (
        ran(*options, f"-Xlog:class+load:file={loaded}", "org.apache.spark.deploy.SparkSubmit").returncode
        == 0
    )
    sources = [
        line.rpartition("source: ")[2]
        for line in loaded.read_text().splitlines()
        if "org.apache.spark" in line
    ]
    assert sources.count("shared objects file (top)") >= 100
