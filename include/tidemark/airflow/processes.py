"""Ports and processes of this machine, for who starts and stops servers."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def started_at(pid: int) -> str:
    """When a process began, so that a pid that was given to another one is not taken for it; empty for one
    that is not there, or has ended and waits to be collected."""
    try:
        state, *facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state == "Z" else facts[18]


def reap() -> None:
    """Collect ended children of this process, if it is the one that started them."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
