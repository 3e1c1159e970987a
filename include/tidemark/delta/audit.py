"""Proof of what a state holds, by its files alone, and of the index against them.

A publish believes the index. If that forgets a live row, the old row and the new one both stay, and the
digest that is carried forward is still that of the files; if it says a wrong place, another key's row is
hidden. So a state is proven by two things: the digest of its live rows, and that no key has two of them. Both
come from the columns beside the rows; that those are the rows' own is proven by an engine that hashes rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tidemark.core.checksum import Digest
from tidemark.core.errors import InvalidUsage
from tidemark.delta.head import LiveFile, TableHead
from tidemark.delta.index import KeyIndex
from tidemark.delta.runs import RunDamaged
from tidemark.delta.state_files import RowKeys, digest_of
from tidemark.delta.vectors import Rows

ReadKeys = Callable[[LiveFile], RowKeys | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, in words."""

    what: str

    def __str__(self) -> str:
        return self.what


def audit_state(
    head: TableHead, read: ReadKeys, hidden: Mapping[str, Rows], *, recorded: Digest
) -> list[Finding]:
    """Whether the live rows have the recorded digest, and each key one of them."""
    found: list[Finding] = []
    halves, digests = [], []
    for path, file in head.files.items():
        keys = _keys(file, read)
        if len(keys) != file.rows:
            found.append(Finding(f"{path} has {len(keys)} rows, and its statistics say {file.rows}"))
        live = np.ones(len(keys), np.bool_)
        live[np.frombuffer(hidden.get(path, Rows()).to_array(), np.uint32)] = False
        halves.append(np.stack([keys.hi[live], keys.lo[live]], axis=1))
        digests.append(keys.digest[live])
    both = np.concatenate(halves) if halves else np.empty((0, 2), np.uint64)
    repeated = len(both) - len(np.unique(both, axis=0))
    if repeated:
        found.append(Finding(f"{repeated} rows have a key that another live row has"))
    digest = digest_of(np.concatenate(digests) if digests else np.empty(0, np.int64))
    if digest != recorded:
        found.append(
            Finding(
                f"{digest.count} live rows have digest {digest},"
                f" recorded are {recorded.count} with {recorded}"
            )
        )
    return found


def audit_index(index: KeyIndex, head: TableHead, read: ReadKeys) -> list[Finding]:
    """Whether the index says of each live file's rows what the file says: each row once, with its key and its
    digest, and no file that the table hasn't."""
    found = [Finding(f"the index does not have {file.path}") for file in index.missing(head)]
    for run in index.runs:
        try:
            records = run.all()
        except RunDamaged as error:
            found.append(Finding(str(error)))
            continue
        if len(records) > 1 and (records["hi"][1:] < records["hi"][:-1]).any():
            found.append(Finding(f"{run.path.name} is not in order"))
        for number, file in enumerate(run.files):
            live = head.files.get(file.path)
            if live is None:
                continue
            own = records[records["file"] == number]
            own = own[np.argsort(own["row"], kind="stable")]
            if len(own) != file.rows or not np.array_equal(own["row"], np.arange(file.rows)):
                found.append(Finding(f"the index does not have each row of {file.path} once"))
                continue
            keys = _keys(live, read)
            for name, theirs in (("hi", keys.hi), ("lo", keys.lo), ("digest", keys.digest.view(np.uint64))):
                wrong = len(keys) if len(theirs) != len(own) else int((own[name] != theirs).sum())
                if wrong:
                    what = "digest" if name == "digest" else "key"
                    found.append(Finding(f"the index has another {what} for {wrong} rows of {file.path}"))
    return found


def _keys(file: LiveFile, read: ReadKeys) -> RowKeys:
    keys = read(file)
    if keys is None:
        raise InvalidUsage(
            f"{file.path} was written by something else, and does not say its rows' keys and digests",
            hint="have Spark verify the state",
        )
    return keys
