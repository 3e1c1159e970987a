"""The warm Spark of a project: one Spark Connect server that outlasts the command that has started it.

`tidemark spark start` notes the server below `home()`, readable by its owner only, since its token is in the
note. Every command of the same project finds it there, until `tidemark spark stop`. A note whose process has
ended is worth nothing; a process that has been given the same number since is told from it by its start.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.home import home
from tidemark.spark.connect import start_server

_STOP_SECONDS_MAX: Final = 20.0
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Warm:
    """A server that was started, by whichever process."""

    url: str
    token: str
    pid: int
    began: str

    @property
    def is_alive(self) -> bool:
        return bool(self.began) and began_at(self.pid) == self.began


def folder() -> Path:
    return home() / "spark"


def _note() -> Path:
    return folder() / "server.json"


def find() -> Warm | None:
    """The server on note, alive or not; None where none was started, or it was stopped."""
    try:
        return Warm(**json.loads(_note().read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def start(*, memory: str) -> Warm:
    """Start the project's server; `InvalidUsage` where there is one."""
    found = find()
    if found is not None and found.is_alive:
        raise InvalidUsage(
            f"a warm Spark runs already, at {found.url} as process {found.pid}",
            hint="stop it with `tidemark spark stop`",
        )
    token = secrets.token_urlsafe(24)
    server = start_server(_free_port(), token, folder=folder(), memory=memory)
    warm = Warm(server.url, token, server.process.pid, began_at(server.process.pid))
    _note().unlink(missing_ok=True)
    with os.fdopen(os.open(_note(), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as sink:
        json.dump(asdict(warm), sink)
    return warm


def stop() -> Warm | None:
    """End the project's server, and wait until it has ended; returns what was on note."""
    found = find()
    if found is not None and found.is_alive:
        os.kill(found.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        while found.is_alive:
            if time.monotonic() > deadline:
                raise Determinate(
                    f"the warm Spark, process {found.pid}, has not ended in {_STOP_SECONDS_MAX:.0f} s",
                    hint=f"it may still be at work; try again, or end it with `kill -9 {found.pid}`",
                )
            time.sleep(_POLL_SECONDS)
    _note().unlink(missing_ok=True)
    return found


def began_at(pid: int) -> str:
    """When a process began, in the system's own count; empty for one that is not there or has ended."""
    try:
        state, *facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else facts[18]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
