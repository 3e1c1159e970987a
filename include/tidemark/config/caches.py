"""Where caches lie that can be made again: beside what they are of, or in a temporary folder of this machine.

A disk of another machine counts as none: files there can't be mapped into memory safely, and locks on them
don't always hold. A temporary folder is for its owner alone, as is a folder beside a table.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

from tidemark.core.errors import InvalidUsage

_ELSEWHERE: Final = (
    "9p", "afs", "ceph", "cifs", "fuse", "gluster", "lustre", "ncpfs", "nfs", "smb", "vboxsf",
)  # fmt: skip


def cache_folder(folder: Path | None, *, uri: str) -> Path:
    """Where the cache of a folder lies: beside it, where it goes with it, if that is a disk of this machine,
    and no other user of it has theirs there. The URI names what is in no folder."""
    if folder is not None and not _is_elsewhere(folder):
        beside = folder.parent / "_index"
        if not beside.exists() or beside.stat().st_uid == os.getuid():
            return beside / folder.name
    found = Path(tempfile.gettempdir()) / f"tidemark-{os.getuid()}"
    found.mkdir(mode=0o700, exist_ok=True)
    if found.stat().st_uid != os.getuid():
        raise InvalidUsage(f"{found} is somebody else's", hint="remove it, or set TMPDIR")
    return found / hashlib.sha256(uri.encode()).hexdigest()[:32]


def _is_elsewhere(folder: Path) -> bool:
    """Whether a folder lies on a disk of another machine, as far as this system tells."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return False
    wanted = folder.absolute()
    kinds = {Path(mount[1]): mount[2] for mount in mounts if wanted.is_relative_to(mount[1])}
    return bool(kinds) and kinds[max(kinds, key=lambda one: len(one.parts))].startswith(_ELSEWHERE)
