"""The journal: a record of events, and the hash chain that all ledgers use.

Bindings, seals and checkpoints record what is decided. The journal records what happened: rejections,
verdicts of the gate, lost races and their winners, replays and their verdicts, and what people accepted or
skipped and why.

Every stored record, of the journal and of the other ledgers, carries a link: a checksum of itself and of the
previous link. A lost or changed record breaks the chain, and so differs from a step in which nothing
happened. Records also carry their format; another format is rejected instead of guessed at (scenario P6).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import UPPER, Head, Put

FORMAT: Final = 2
CHAIN: Final = "chain"


class Event(StrEnum):
    """The events of a transaction."""

    REFUSED = "refused"
    JUDGED = "judged"
    LOST = "lost"
    VERIFIED = "verified"
    SAMPLED = "sampled"
    ACCEPTED = "accepted"
    OVERRULED = "overruled"
    ANNOUNCED = "announced"
    SKIPPED = "skipped"
    RELEASED = "released"
    REPAIRED = "repaired"
    RECOVERED = "recovered"
    FROZEN = "frozen"
    PASSED_OVER = "passed over"
    WATERMARK = "watermark"
    ALARM = "alarm"
    ALARM_OVER = "alarm over"
    REQUESTED = "requested"
    PROMOTED = "promoted"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One event. `detail` is for people and machines: short text without rows or secrets. Only a sample of
    what differs (`Event.SAMPLED`) has keys of rows."""

    number: int
    txn: Txn
    event: Event
    token: WriterToken
    detail: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return str(self.txn)


def decide_note(
    *,
    head: Head,
    txns: Sequence[Txn],
    event: Event,
    token: WriterToken,
    detail: Mapping[str, str],
    noted: bool,
) -> Put[JournalEntry, None] | None:
    """Add an event for each transaction under the next numbers, all or none. `noted` is whether it was found
    there already, after a lost reply."""
    if noted:
        return None
    entries = [
        JournalEntry(number, txn, event, token, detail) for number, txn in enumerate(txns, start=head.upper)
    ]
    return Put(marks={UPPER: head.upper + len(entries)}, records=tuple(entries), result=None)


def link(previous: int, body: str) -> int:
    """The link after a record: 63 bits, so that it fits a Delta application transaction."""
    data = previous.to_bytes(8, "big") + body.encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def check_format(found: int, *, table: str) -> None:
    if found == FORMAT:
        return
    older = found < FORMAT
    raise InvalidUsage(
        f"{table} has records of format {found}, and this version reads format {FORMAT}",
        hint="read the warehouse with the older version of tidemark that wrote it"
        if older
        else "use the newer version of tidemark that wrote them",
    )


def check_chain(records: Iterable[tuple[int, int, str]], *, previous: int, table: str) -> int:
    """Verify (number, link, body) in order from a known link; return the last link."""
    for number, found, body in records:
        expected = link(previous, body)
        if found != expected:
            raise InvariantViolation(
                f"{table}: record {number} does not follow the one before it",
                hint="a record was lost or changed; restore the table's files from a backup",
            )
        previous = found
    return previous
