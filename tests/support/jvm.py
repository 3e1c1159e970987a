"""A JVM that outlives the Python processes that use it.

`python -m tests.support.jvm FOLDER` starts a Spark session and prints the address of its gateway. Any number
of other processes may `attach`; when one of them is killed, what it had asked the JVM to do goes on to its
end. That is the zombie that a killed driver leaves behind on a cluster or a Connect server. The session
ends when the holder's standard input does, or with the holder's whole process group.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.support import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEAD_SECONDS_MAX = 180


@dataclass(frozen=True)
class Gateway:
    """Where a JVM listens."""

    port: int
    secret: str


class Jvm:
    """A holder process in a group of its own, with its JVM."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._process: subprocess.Popen[str] | None = None
        self.starts = 0

    def gateway(self) -> Gateway:
        """The running JVM's address; starts one where there is none."""
        if self._process is None or self._process.poll() is not None:
            self._scratch.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "tests.support.jvm", str(self._scratch)]
            # Killed drivers and late commits make Spark talk; what it says is kept beside its files.
            with (self._scratch / "messages").open("a") as messages:
                self._process = subprocess.Popen(
                    command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages,
                    text=True, start_new_session=True,
                )  # fmt: skip
            self.starts += 1
            told: Any = json.loads(self._process.stdout.readline())  # type: ignore[union-attr]
            self._gateway = Gateway(told["port"], told["secret"])
        return self._gateway

    def is_asked_by_dead(self) -> bool:
        """Whether it does something still for a process that has died: who is gone has closed its end of the
        connection, and the JVM closes its own when it is done."""
        return self._process is not None and any(
            one.status == psutil.CONN_CLOSE_WAIT and one.laddr.port == self._gateway.port
            for one in psutil.net_connections("tcp")
        )

    def wait_for_dead(self) -> None:
        """Until it has done all that they had asked for."""
        deadline = time.monotonic() + DEAD_SECONDS_MAX
        while self.is_asked_by_dead() and time.monotonic() < deadline:
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL to the holder, its JVM and whatever they started."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def attach(gateway: Gateway) -> SparkSession:
    """A session of this process's own in a JVM that is running already."""
    os.environ["PYSPARK_GATEWAY_PORT"] = str(gateway.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = gateway.secret
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    link = launch_gateway()
    # The classic gateway keeps its token here; pyspark looks for it there.
    context = link.jvm.org.apache.spark.SparkContext.getOrCreate()
    java = link.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(context)
    shared = SparkContext(gateway=link, jsc=java, conf=SparkConf(_jconf=java.getConf()))
    return SparkSession(shared).newSession()


def main() -> None:
    from tidemark.spark.session import SHORT_JOBS, build_session

    scratch = Path(sys.argv[1])
    session = build_session(
        "tidemark-crash",
        master="local[2]",
        scratch_folder=scratch,
        confs={
            "spark.driver.memory": "1g",
            # For a few hundred rows, planning again and compiling code costs more than all the work.
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.driver.extraJavaOptions": (
                f"{SHORT_JOBS['spark.driver.extraJavaOptions']} -Dderby.system.home={scratch}"
            ),
        },
    )
    parameters = session.sparkContext._gateway.gateway_parameters
    told = {"port": parameters.port, "secret": parameters.auth_token}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
