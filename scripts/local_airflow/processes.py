"""Free ports and ended child processes, for code that starts and stops servers."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path
from typing import Final

_PORT_MIN: Final = 10_000
_HANDED_OUT_MIN: Final = 32_768
_HANDED_OUT: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES_MAX: Final = 100

_given: set[int] = set()


def free_port() -> int:
    """A free port of the loopback interface that this process has not returned before.

    It is below the system's ephemeral ports if one is free there: a server needs seconds before it listens,
    and a connection opened meanwhile could get its port."""
    known = range(_PORT_MIN, _first_handed_out())
    for port in random.sample(known, min(_TRIES_MAX, len(known))):
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _first_handed_out() -> int:
    """The first of the system's ephemeral ports."""
    try:
        return int(_HANDED_OUT.read_text().split()[0])
    except OSError:
        return _HANDED_OUT_MIN


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def reap() -> None:
    """Reap the ended children of this process, if it has any."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
