"""Starting, finding and stopping a Spark Connect server, among them the project's warm Spark.

The server is the one in the pyspark package, with the jars and confs of `session_confs`. It listens on the
loopback interface only and requires a token. It gets the token through its environment, because every user
of the machine can read a command line. Clients read the token from the same variable and must use the host
name `localhost`: for any other name a client with a token speaks TLS.

The warm Spark is one server per project that outlives the command that started it. `tidemark spark start`
records it in a file below `home()` that only its owner can read, because the token is in it. Every command
of the project finds it there until `tidemark spark stop`. A record whose process has ended is ignored; the
start time of the process distinguishes it from a later process with the same pid.

Known limitation: paths are resolved by the server. It must see the pipeline's folders under the same paths.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.runtime.jars import jar_paths
from tidemark.runtime.machine import home, use_java
from tidemark.spark.session import session_confs

TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_HOST: Final = "localhost"
_ADDRESS: Final = "127.0.0.1"
_STOP_SECONDS_MAX: Final = 20
_POLL_SECONDS: Final = 0.2
_START_SECONDS_MAX: Final = 300
_LOG_CHARACTERS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class Server:
    """A server that this process started. As a context manager it stops the server on exit."""

    url: str
    process: subprocess.Popen[bytes]
    log_file: Path

    def stop(self) -> None:
        """Stop the server; kill it if it doesn't stop in time. Idempotent."""
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
    confs: Mapping[str, str] | None = None,
) -> Server:
    """Start a server and wait until it listens. `folder` receives its log, confs and temporary files.

    Raises `InvalidUsage` if the token is empty or the port is in use, `Determinate` if the server doesn't
    come up.
    """
    if not token:
        raise InvalidUsage(
            "a Spark Connect server without a token accepts work from everybody", hint="set a token"
        )
    if _listens(port):
        raise InvalidUsage(
            f"port {port} is in use", hint="choose another port, or stop the process that uses it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    merged = {
        **session_confs(master=master, jars=jar_paths(), scratch_folder=folder),
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
        _wait(server, port)
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
    # The user's own defaults are for settings that are not given here, as in any other Spark application.
    given = ["--properties-file", str(properties), "--load-spark-defaults"]
    command = [str(home / "bin" / "spark-submit"), *given]
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [*command, "--class", _CLASS, "spark-internal"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # The server outlives the terminal.
        )
    return Server(f"sc://{_HOST}:{port}", process, log_file)


def _wait(server: Server, port: int) -> None:
    """Wait until the server listens; give up when its process ends or at the deadline (Invariant 14)."""
    deadline = time.monotonic() + _START_SECONDS_MAX
    while not _listens(port):
        ended = server.process.poll()
        if ended is not None or time.monotonic() > deadline:
            output = server.log_file.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS_MAX:]
            fact = (
                f"ended with code {ended}"
                if ended is not None
                else f"did not listen in {_START_SECONDS_MAX} s"
            )
            raise Determinate(f"the Spark Connect server {fact}: {output}", hint=f"see {server.log_file}")
        time.sleep(_POLL_SECONDS)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((_ADDRESS, port), timeout=1):
            return True
    except OSError:
        return False


# The warm Spark.

_WARM_STOP_SECONDS_MAX: Final = 20.0
_WARM_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class WarmServer:
    """The recorded server, whichever process started it."""

    url: str
    token: str
    pid: int
    began: str

    @property
    def is_alive(self) -> bool:
        return bool(self.began) and process_start(self.pid) == self.began


def folder() -> Path:
    return home() / "spark"


def _note() -> Path:
    return folder() / "server.json"


def find() -> WarmServer | None:
    """The recorded server, alive or not; None if none was started or it was stopped."""
    try:
        return WarmServer(**json.loads(_note().read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def start(*, memory: str) -> WarmServer:
    """Start the project's server. Raises `InvalidUsage` if one is running."""
    found = find()
    if found is not None and found.is_alive:
        raise InvalidUsage(
            f"a warm Spark already runs at {found.url} as process {found.pid}",
            hint="stop it with `tidemark spark stop`",
        )
    token = secrets.token_urlsafe(24)
    server = start_server(_free_port(), token, folder=folder(), memory=memory)
    warm = WarmServer(server.url, token, server.process.pid, process_start(server.process.pid))
    _note().unlink(missing_ok=True)
    with os.fdopen(os.open(_note(), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as sink:
        json.dump(asdict(warm), sink)
    return warm


def stop() -> WarmServer | None:
    """Stop the project's server, wait until its process ends, and return its record (None if there was
    none)."""
    found = find()
    if found is not None and found.is_alive:
        os.kill(found.pid, signal.SIGTERM)
        deadline = time.monotonic() + _WARM_STOP_SECONDS_MAX
        while found.is_alive:
            if time.monotonic() > deadline:
                raise Determinate(
                    f"the warm Spark, process {found.pid}, has not ended in {_WARM_STOP_SECONDS_MAX:.0f} s",
                    hint=f"it may still work; try again, or end it with `kill -9 {found.pid}`",
                )
            time.sleep(_WARM_POLL_SECONDS)
    _note().unlink(missing_ok=True)
    return found


def process_start(pid: int) -> str:
    """The start time of a process in clock ticks since boot; empty if the process doesn't exist or has
    ended."""
    try:
        state, *facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else facts[18]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
