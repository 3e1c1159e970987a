"""Where the files of tests lie: in memory, where a machine has plenty of it.

Everything durable is synced, often and in small pieces, and no test cuts the power. So on a disk many tests
mostly wait. `TMPDIR` names another place.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
FREE_BYTES_MIN = 12 << 30
"""For files and processes together; a whole run leaves a few gigabytes of files."""


def use_memory() -> None:
    """Have this process and its children make temporary files in memory."""
    if "TMPDIR" not in os.environ and has_room():
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # pytest has asked already.


def has_room() -> bool:
    """Whether there is a file system in memory that runs programs and has room."""
    try:
        found = os.statvfs(MEMORY)
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    kilobytes = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    free = min(found.f_bavail * found.f_frsize, kilobytes.get("MemAvailable", 0) << 10)
    return free >= FREE_BYTES_MIN and not found.f_flag & os.ST_NOEXEC
