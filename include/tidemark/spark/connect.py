"""A warm Spark of one's own: start a Spark Connect server, and stop it.

The server is the one inside of the pyspark package, with the jars and confs of `session_confs`. It listens on
the loopback interface only, and asks for a token, which it gets by its environment: a command line is for
everybody on the machine to read. Clients find the token in the same variable, and must say `localhost`: to
any other name they speak TLS as soon as there is a token.

Known limitation: paths are the server's. A pipeline's folders have to be where the server sees them too.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.spark.jars import jar_paths
from tidemark.spark.java import use_java
from tidemark.spark.session import session_confs

TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_HOST: Final = "localhost"
_ADDRESS: Final = "127.0.0.1"
_STOP_SECONDS_MAX: Final = 20
_POLL_SECONDS: Final = 0.2
_LOG_CHARACTERS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class Server:
    """A server that this process has started. As a context, it ends with it."""

    url: str
    process: subprocess.Popen[bytes]
    log_file: Path

    def stop(self) -> None:
        """End the server; one that doesn't listen is killed. A second time is nothing."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_STOP_SECONDS_MAX)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_server(
    port: int,
    token: str,
    *,
    folder: Path,
    master: str = "local[*]",
    memory: str = "2g",
    jars_folder: Path | None = None,
    confs: Mapping[str, str] | None = None,
    start_seconds_max: float = 300,
) -> Server:
    """Start a server and wait until it listens. `folder` gets its log, its confs and its temporary files.

    Raises `InvalidUsage` where it can't be started as asked, `Determinate` where it doesn't come up.
    """
    if not token:
        raise InvalidUsage(
            "a Spark Connect server without a token takes work from anybody", hint="give it a token"
        )
    if _listens(port):
        raise InvalidUsage(f"port {port} is in use", hint="choose another one, or stop what has it")
    folder.mkdir(parents=True, exist_ok=True)
    merged = {
        **session_confs(master=master, jars=jar_paths(jars_folder), scratch_folder=folder),
        "spark.master": master,
        "spark.app.name": "tidemark-connect",
        "spark.driver.memory": memory,
        "spark.log.level": "WARN",
        "spark.connect.grpc.binding.address": _ADDRESS,
        "spark.connect.grpc.binding.port": str(port),
        **(confs or {}),
    }
    server = _launch(port, token, folder, merged)
    try:
        _wait(server, port, seconds_max=start_seconds_max)
    except BaseException:
        server.stop()
        raise
    return server


def _launch(port: int, token: str, folder: Path, confs: Mapping[str, str]) -> Server:
    import pyspark

    home = Path(pyspark.__file__).parent
    properties = folder / "spark.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in confs.items()), encoding="utf-8")
    local = {"SPARK_LOCAL_IP": _ADDRESS} if confs["spark.master"].startswith("local") else {}
    environment = {
        **local,
        **os.environ,
        "JAVA_HOME": str(use_java().home),
        "SPARK_HOME": str(home),
        TOKEN_VARIABLE: token,
    }
    log_file = folder / "server.log"
    command = [str(home / "bin" / "spark-submit"), "--properties-file", str(properties)]
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [*command, "--class", _CLASS, "spark-internal"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # It ends when it is told to, not with a terminal.
        )
    return Server(f"sc://{_HOST}:{port}", process, log_file)


def _wait(server: Server, port: int, *, seconds_max: float) -> None:
    """Until the server listens; it ends with the process, or with the time (Invariant 14)."""
    deadline = time.monotonic() + seconds_max
    while not _listens(port):
        ended = server.process.poll()
        if ended is not None or time.monotonic() > deadline:
            said = server.log_file.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS_MAX:]
            fact = f"ended with code {ended}" if ended is not None else f"did not listen in {seconds_max} s"
            raise Determinate(f"the Spark Connect server {fact}: {said}", hint=f"see {server.log_file}")
        time.sleep(_POLL_SECONDS)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((_ADDRESS, port), timeout=1):
            return True
    except OSError:
        return False
