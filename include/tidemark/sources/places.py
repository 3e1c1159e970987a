"""Where a record of a file stands, as people look for it: the file's name, and the line or the row.

Text is read in blocks, and a record's ordinal has the block and the record's number in it, from 0 on. People
and editors count from 1; blank lines and a header are lines too.
"""

from __future__ import annotations

from typing import Final

from tidemark.sources.manifest import Manifest

BLOCK_BYTES: Final = 32 * 1024**2
"""Where a file is cut; another number would give other ordinals, in the same order."""
LINE_BITS: Final = 33


def line_place(ordinal: int, *, what: str = "line") -> str:
    """As Hadoop has it, a line belongs to the block that it begins in, and one that begins at the very start
    of a block to the block before."""
    block, number = divmod(ordinal, 1 << LINE_BITS)
    after = f" of those that begin after byte {block * BLOCK_BYTES}" if block else ""
    return f"{what} {number + 1}{after}"


def record_place(manifest: Manifest, offset: int, ordinal: int) -> str:
    """A record's file and its place in it."""
    name = next((repr(file.name) for file in manifest.files if file.seq == offset), str(offset))
    return f"file {name}, {line_place(ordinal, what='row' if manifest.format == 'parquet' else 'line')}"
