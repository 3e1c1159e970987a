"""The names of a state's data files. A file's name, or that of its folder, says for which version of the
table it was written: it goes in with that version or never.
"""

from __future__ import annotations

import re
from typing import Final
from uuid import UUID

_NAME: Final = re.compile(r"v(\d{20})-[0-9a-f]{32}(?:\.parquet|/.+)\Z")


def name_of(version: int, nonce: UUID) -> str:
    """The name of a data file that is written for a version."""
    return f"v{version:020}-{nonce.hex}.parquet"


def folder_of(version: int, nonce: UUID) -> str:
    """The folder of data files that an engine writes for a version."""
    return f"v{version:020}-{nonce.hex}"


def version_in(path: str) -> int | None:
    """The version that a data file was written for; None for one that is not ours."""
    found = _NAME.match(path)
    return int(found[1]) if found else None
