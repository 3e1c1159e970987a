"""Publishes: how a shard's state follows its log, how that is verified; and cuts, where all states meet.

A *publish* brings the state from its transaction to a later one by a single commit of the tail, so that every
version of the state is at a transaction boundary (Invariant 15). That commit carries a `StateCommit`:
transaction, writer, and the digest of the whole state after it. Afterwards the shard's ledger of publishes
records the same facts, with the table's version.

The table and the record are two places, so each decision first compares them:

- They are equal: publish the tail, or there is nothing to do.
- The table is ahead by a commit that carries its own facts: a publisher died in between. Its publish is put
  on record, not repeated (Invariant 5).
- The table is behind, has another commit than the recorded one, or has foreign writes: the state was
  overwritten. Publishers and readers stop there (scenario M13).

Restriction: the digest is carried forward from publish to publish, so it states what the state should
contain; only reading the state verifies it.

A *cut* is a transaction at which every shard's state is exact. The table of cuts has a row for each state
that changed since the cut before, so its cost follows the change and not the number of shards. At a cut
`n`, a shard's version is that of its last row with `txn <= n`; a shard without one has no state yet.

Cuts are derived from the publishes and the seals, for readers that use neither: another engine needs only
this table. A missing cut makes the choice coarser, and nothing wrong. Each row names its transaction by
number and link, as everything does that depends on the history.

Restriction: the search looks back over a bounded number of transactions and publishes. Shards whose
policies meet more rarely than that get a cut only when all of them are up to date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.ids import TXN_NONE, ShardId, Txn, WriterToken, next_txn
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.log import agreed
from tidemark.core.seal import Seal

VERSION_NONE: Final = -1
_BITS_64: Final = (1 << 64) - 1


class BeingPublished(Determinate):
    """Another process has published the shard while its files were rearranged; nothing was changed."""


@dataclass(frozen=True, slots=True)
class StateCommit:
    """The facts that a commit of the state carries. `tombstones` is the version of the shard's tombstone
    table that belongs to it, or -1 if there is none; `link` is that of the transaction's seal."""

    txn: Txn
    token: WriterToken
    digest: Digest
    tombstones: int = VERSION_NONE
    link: int = 0

    def __post_init__(self) -> None:
        if self.txn < TXN_NONE or not self.token:
            raise InvalidUsage(f"not a commit of a state: transaction {self.txn}, token {self.token!r}")


@dataclass(frozen=True, slots=True)
class Published:
    """One publish on record: the commit, and the version of the state's table that it made."""

    number: int
    version: int
    commit: StateCommit

    @property
    def key(self) -> str:
        return self.commit.token

    @property
    def txn(self) -> Txn:
        return self.commit.txn

    @property
    def token(self) -> WriterToken:
        return self.commit.token


@dataclass(frozen=True, slots=True)
class StateStatus:
    """The status of the state's table at one moment.

    `txn` is its last application transaction. `newest` and `newest_version` are the last commit that carries
    its own facts. `at_record` is the writer of the requested version, empty if the table's log doesn't reach
    back to it. `foreign_writes` are other writers' commits since then that changed rows, as `version
    operation`."""

    version: int = VERSION_NONE
    txn: Txn = TXN_NONE
    newest: StateCommit | None = None
    newest_version: int = VERSION_NONE
    at_record: str = ""
    foreign_writes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """When the state is published: every so many transactions, or only on request (None)."""

    every_transactions: int | None = 1


@dataclass(frozen=True, slots=True)
class UpToDate:
    """The state has everything below the log's upper."""

    txn: Txn


@dataclass(frozen=True, slots=True)
class PutOnRecord:
    """The table has a publish that the record lacks: record it, then decide again."""

    version: int
    commit: StateCommit


@dataclass(frozen=True, slots=True)
class PublishTail:
    """Fold the log's rows with lower <= txn < upper into the state that `base` left behind."""

    lower: Txn
    upper: Txn
    base: Published | None

    @property
    def txn(self) -> Txn:
        return Txn(self.upper - 1)


NextPublish = UpToDate | PutOnRecord | PublishTail


class StateOverwritten(InvariantViolation):
    """The state differs from its record: another program wrote to it, or it was rolled back."""

    def __init__(self, shard: ShardId, *, what: str) -> None:
        super().__init__(
            f"the state of {shard} differs from what was published: {what}",
            hint="find the other writer, then run `tidemark rebuild PIPELINE SHARD`",
        )


class HistoryGone(InvalidUsage):
    """An older version of a state has lost files: another program vacuumed it, or it is too old."""

    def __init__(self, shard: ShardId, base: Published, *, lost: Sequence[str]) -> None:
        super().__init__(
            f"the state of {shard} as of transaction {base.txn} (version {base.version}) has lost {len(lost)}"
            f" files, {lost[0]} first",
            hint="a VACUUM with RETAIN 0 does that; read as of a later transaction, or rebuild the state",
        )
        self.lost = tuple(lost)


def published_txn(last: Published | None) -> Txn:
    """The highest transaction in the state; 0 when nothing is published."""
    return last.txn if last is not None else TXN_NONE


def due(*, published: Txn, log_upper: Txn, policy: Policy) -> bool:
    """Whether the policy asks for a publish now."""
    every = policy.every_transactions
    return every is not None and log_upper - 1 - published >= every


def check_state_status(shard: ShardId, *, last: Published | None, status: StateStatus) -> None:
    """Raise `StateOverwritten` unless the table still holds what is on record."""
    if last is not None:
        if status.txn < last.txn or status.version < last.version:
            raise StateOverwritten(
                shard,
                what=f"it is at transaction {status.txn}, version {status.version}, "
                f"but the record says {last.txn} and {last.version}",
            )
        if status.at_record not in ("", last.token):
            what = (
                f"version {last.version} was written by {status.at_record}, but the record says {last.token}"
            )
            raise StateOverwritten(shard, what=what)
    if status.foreign_writes:
        raise StateOverwritten(shard, what=f"other writers changed it ({', '.join(status.foreign_writes)})")


def decide_publish(
    shard: ShardId, *, last: Published | None, status: StateStatus, log_upper: Txn
) -> NextPublish:
    """What the state needs next, from the last record, the table itself and the log's upper."""
    check_state_status(shard, last=last, status=status)
    published = published_txn(last)
    if status.txn > published:
        newest = status.newest
        if newest is None or newest.txn != status.txn:
            raise StateOverwritten(shard, what=f"no publish is recorded for its transaction {status.txn}")
        return PutOnRecord(status.newest_version, newest)
    if published >= log_upper:
        raise InvariantViolation(
            f"the state of {shard} has transaction {published}, but its log only reaches {log_upper - 1}",
            hint="the log lost commits; restore it from a backup",
        )
    if log_upper == next_txn(published):
        return UpToDate(published)
    return PublishTail(lower=next_txn(published), upper=log_upper, base=last)


def decide_record(
    *, head: Head, last: Published | None, version: int, commit: StateCommit
) -> Put[Published, Published] | Published:
    """Put a publish on record, once. What is found there already must be the same publish."""
    if last is not None and commit.txn <= last.txn:
        if last.commit == commit and last.version == version:
            return last
        if commit.txn < last.txn or version <= last.version:
            raise InvariantViolation(
                f"a publish of transaction {commit.txn} at version {version} by {commit.token} comes after "
                f"one of {last.txn} at version {last.version} by {last.token}",
                hint="two publishers wrote to one state; run `tidemark rebuild PIPELINE SHARD`",
            )
    record = Published(head.upper, version, commit)
    return Put(marks={UPPER: head.upper + 1}, records=(record,), result=record)


def state_as_of(records: Sequence[Published], *, as_of: Txn) -> Published | None:
    """The publish to start from for a read as of a transaction: the latest at or below it."""
    below = [record for record in records if record.txn <= as_of]
    return below[-1] if below else None


def carried_forward(base: Digest, *, removed: Digest, added: Digest) -> Digest:
    """The digest of a set of rows after some were removed and some added, without reading the others."""
    if not base.encoding == removed.encoding == added.encoding:
        raise InvalidUsage(
            "a digest of another encoding can't be carried forward",
            hint="run `tidemark rebuild PIPELINE SHARD`",
        )
    if removed.count > base.count + added.count:
        raise InvariantViolation(f"{removed.count} rows are to be removed from a state of {base.count}")
    return Digest(
        base.count - removed.count + added.count,
        base.xor ^ removed.xor ^ added.xor,
        (base.sum_low - removed.sum_low + added.sum_low) & _BITS_64,
        (base.sum_high - removed.sum_high + added.sum_high) & _BITS_64,
        base.encoding,
    )


TXNS_MAX: Final = 200
PUBLISHES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Cut:
    """The version of one shard's state at a cut. `link` is that of the transaction's seal."""

    number: int
    txn: Txn
    shard: ShardId
    version: int
    link: int

    def __post_init__(self) -> None:
        if self.txn <= TXN_NONE or self.version <= VERSION_NONE:
            raise InvalidUsage(f"no cut: transaction {self.txn}, version {self.version} of {self.shard!r}")

    @property
    def key(self) -> str:
        return self.shard


@dataclass(frozen=True, slots=True)
class Meeting:
    """A transaction at which every state is exact, and the versions of those that changed since the cut
    before."""

    txn: Txn
    versions: Mapping[ShardId, int]


def next_cut(
    *,
    last: Txn,
    as_of: Txn,
    touched: Mapping[ShardId, Txn],
    publishes: Mapping[ShardId, Sequence[Published]],
    seals: Sequence[Seal],
) -> Meeting | None:
    """The highest transaction above `last`, at or below `as_of`, at which every state is exact; None where
    there is none, or where the bounded search can't find it.

    `touched` has the shards that transactions above `last` touch, with the last such transaction. `publishes`
    are their newest, and `seals` the newest up to `as_of`, both in order and bounded."""
    seals_from = seals[0].txn if seals else Txn(as_of + 1)
    while as_of > last:
        found = {shard: state_as_of(publishes[shard], as_of=as_of) for shard in touched}
        published = {shard: published_txn(one) for shard, one in found.items()}
        behind = {shard: txn for shard, txn in published.items() if txn < touched[shard]}
        if any(max(txn, last) + 1 < seals_from for txn in behind.values()):
            return None
        lower = agreed(as_of=as_of, published=behind, seals=seals)
        if lower == as_of:
            changed = {shard: one.version for shard, one in found.items() if one and one.txn > last}
            return Meeting(as_of, changed)
        as_of = lower
    return None


def decide_cut(head: Head, meeting: Meeting, *, link: int) -> Put[Cut, Txn]:
    """A row for each state that changed."""
    rows = (
        Cut(head.upper + at, meeting.txn, shard, version, link)
        for at, (shard, version) in enumerate(sorted(meeting.versions.items()))
    )
    records = tuple(rows)
    return Put(marks={UPPER: head.upper + len(records)}, records=records, result=meeting.txn)
