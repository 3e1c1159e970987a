"""A folded tail over a state, by the key index: which rows go, which come, and the digest afterwards, so that
the state is the fold of its log (Invariant 18).

A record that is older than its key's live row (`is_older`) changes nothing; any other takes the row's place,
or takes it out. Without a sequence the tail always wins.

A row that is the same again stays as it is. That it is the same is for the caller to see by comparing it
(`alike` are the rows to compare), since two rows with one 64-bit digest need not be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemark.core.checksum import Digest
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import TXN_NONE
from tidemark.core.publish import carried_forward
from tidemark.delta.index import Hits
from tidemark.delta.state_files import RowKeys, digest_of
from tidemark.delta.vectors import Rows


@dataclass(frozen=True, slots=True)
class Overlay:
    """What a tail does to a state: the tail's rows that come, the state's that go, the digest after it."""

    comes: npt.NDArray[np.bool_]
    hidden: Mapping[str, Rows]
    digest: Digest


def is_older(
    sequence: npt.NDArray[np.int64],
    txns: npt.NDArray[np.int64],
    *,
    than: npt.NDArray[np.int64],
    at: npt.NDArray[np.int64] | int = TXN_NONE,
) -> npt.NDArray[np.bool_]:
    """Which records lose to another record of their key or to its row, by (sequence, txn): `core.fold` on
    arrays, as `spark.tail.is_older` is on columns. A state's rows stand before all transactions."""
    found: npt.NDArray[np.bool_] = (sequence < than) | ((sequence == than) & (txns < at))
    return found


def alike(tail: RowKeys, upserts: npt.NDArray[np.bool_], hits: Hits) -> npt.NDArray[np.bool_]:
    """The hits that are upserted with the digest that they have."""
    digests = np.ascontiguousarray(hits.records["digest"]).view(np.int64)
    found: npt.NDArray[np.bool_] = upserts[hits.query] & (digests == tail.digest[hits.query])
    return found


def overlay(
    tail: RowKeys,
    txns: npt.NDArray[np.int64],
    upserts: npt.NDArray[np.bool_],
    hits: Hits,
    *,
    base: Digest,
    same: npt.NDArray[np.bool_] | None = None,
) -> Overlay:
    """Lay a tail, which has each key once, over the state in which its keys have these rows. `same` are the
    hits that an upsert would not change."""
    goes = np.ones(len(hits.records), np.bool_)
    if tail.sequence is not None:
        own, at = tail.sequence[hits.query], txns[hits.query]
        goes = ~is_older(own, at, than=hits.records["sequence"])
    if same is not None:
        goes &= ~same
    comes = upserts.copy()
    comes[hits.query[~goes]] = False
    removed = digest_of(np.ascontiguousarray(hits.records["digest"][goes]))
    added = digest_of(np.ascontiguousarray(tail.digest[comes]))
    digest = carried_forward(base, removed=removed, added=added)
    hidden = hits.places(goes)
    if sum(map(len, hidden.values())) != removed.count:
        raise InvariantViolation(
            f"{removed.count} rows are to go, and they lie in {sum(map(len, hidden.values()))} places",
            hint="verify the state, then make the key index again",
        )
    return Overlay(comes, hidden, digest)
