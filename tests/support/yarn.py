"""A YARN mini-cluster on loopback: a resource manager and two node managers, in a JVM of their own.

It is started from source, which needs the compiler of a JDK; where there is only a runtime, its tests are
skipped with that reason. Its jars are fetched on first use.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.support import ROOT
from tests.support.waiting import wait_until
from tidemark.runtime import jars as ivy
from tidemark.runtime.jars import fetch, read_lock
from tidemark.runtime.machine import home, use_java

LOCK = Path(__file__).with_suffix(".lock")
SOURCE = Path(__file__).with_name("YarnCluster.java")
FROM_SPARK = ("hadoop-client-api", "hadoop-client-runtime")
EXECUTORS = 2


@contextmanager
def running_yarn(folder: Path) -> Iterator[dict[str, str]]:
    """Start the cluster, and end it with all its containers; the environment of a driver."""
    java = use_java()
    if not (java.home / "bin" / "javac").exists():
        pytest.skip(f"a YARN mini-cluster needs a JDK, and {java.home} is a runtime")
    said = folder / "yarn.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [java.home / "bin" / "java", "-Xmx512m", "--add-opens=java.base/java.lang=ALL-UNNAMED",
             "-cp", class_path(), SOURCE, folder],
            env=os.environ | {"JAVA_HOME": str(java.home)}, cwd=folder, stdin=subprocess.PIPE, stdout=log,
            stderr=log,
        )  # fmt: skip

    def is_up() -> bool:
        assert process.poll() is None, said.read_text()[-3000:]
        return (folder / "yarn-site.xml").exists()

    try:
        wait_until(is_up, what="the YARN mini-cluster")
        yield _environment(folder)
    finally:
        # It ends its containers when its standard input ends.
        process.communicate(timeout=120)


def _environment(folder: Path) -> dict[str, str]:
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.instances": EXECUTORS,
        "spark.executor.cores": 1,
        "spark.yarn.am.memory": "512m",
        "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
        "spark.yarn.stagingDir": (folder / "staging").as_uri(),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
    }
    (folder / "events").mkdir()
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    (folder / "spark-defaults.conf").write_text(lines)
    return {
        "TIDEMARK_SPARK_MASTER": "yarn",
        "HADOOP_CONF_DIR": str(folder),
        "SPARK_CONF_DIR": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # An executor that needed Python would fail its job.
        "PYSPARK_PYTHON": shutil.which("false") or "/bin/false",
    }


def class_path() -> str:
    """The cluster's jars, fetched where they are not there yet."""
    # In a process of its own: the resolver's JVM and a Spark session don't go together in one.
    subprocess.run([sys.executable, "-m", "tests.support.yarn"], cwd=ROOT, check=True)
    spark = Path(pyspark.__file__).parent / "jars"
    shipped = [next(spark.glob(f"{name}-[0-9]*.jar")) for name in FROM_SPARK]
    locked = [jars_folder() / jar.coordinate.filename for jar in read_lock(LOCK)]
    return ":".join(str(path) for path in [*locked, *shipped])


def jars_folder() -> Path:
    return home() / "yarn-jars"


if __name__ == "__main__":
    fetch(jars_folder(), read_lock(LOCK), ivy.download_jars)
