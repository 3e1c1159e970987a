"""Publish: bring a shard's state up to its log; any number of processes may do so at once.

A publish is idempotent, and the next call completes one that crashed: it compares the table and its record
first, puts on record a commit that only the table has (Invariant 5), and then folds the tail. The log's
version is pinned when its upper is read, so the state ends exactly there (Invariant 15), whatever is
appended meanwhile.

Of two publishers on one state one commits; the other decides again, and finds the first one's work
(Invariant 4). Foreign writes to the state are noticed by the next publisher and by readers: both call
`checked_record`.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.generation import Superseded
from tidemark.core.ids import TXN_FIRST, ShardId, Txn, WriterToken, next_txn
from tidemark.core.lease import since_of
from tidemark.core.ledger import UPPER, Conflict, Head, Put
from tidemark.core.log import BeforeReplacement, Truncated, agreed, begins_at
from tidemark.core.publish import (
    Policy,
    Published,
    PublishTail,
    PutOnRecord,
    StateCommit,
    StateOverwritten,
    UpToDate,
    check_state_status,
    decide_publish,
    decide_record,
    due,
    published_txn,
)
from tidemark.core.seal import is_fenced, replaced_mark
from tidemark.pipeline.context import settle
from tidemark.pipeline.history import log_head, require_history, require_known
from tidemark.ports.control import Control, Ledger
from tidemark.ports.planes import StatePlane, StateStatusReader, Tail

STEPS_MAX: Final = 50
"""Each lost race means that another publish was committed."""
REBUILD_SECONDS_MAX: Final = 6 * 3600.0
"""How long a rebuild tries to win against publishes, and then follows the log."""


@dataclass(frozen=True, slots=True)
class NotDue:
    """The policy does not ask for a publish yet."""

    published: Txn
    log_upper: Txn


def last_published(control: Control, shard: ShardId) -> Published | None:
    """The newest publish on record."""
    ledger = control.publishes(shard)
    upper = ledger.head().upper
    for record in ledger.read(upper - 1, upper):
        return record
    if upper > TXN_FIRST:
        raise InvariantViolation(f"the record of publish {upper - 1} of {shard} is missing")
    return None


def published_as_of(ledger: Ledger[Published], *, as_of: Txn) -> Published | None:
    """The publish to start from for a read as of a transaction: the latest at or below it, in the loaded
    version of the record. Looks back from the newest in growing steps, because most reads are of recent
    transactions."""

    def at(number: int) -> Published:
        for record in ledger.read(number, number + 1):
            return record
        raise InvariantViolation(f"publish {number} is below the upper of its record, but is not there")

    above = ledger.mark(UPPER)
    number, step = above - 1, 1
    while number > 0 and at(number).txn > as_of:
        above, number, step = number, number - step, 2 * step
    below = max(number, 0)
    # Publish `below` is at or below `as_of`, or there is none; publish `above` is past it, or not there.
    found = below + bisect_left(range(below + 1, above), True, key=lambda one: at(one).txn > as_of)
    return at(found) if found else None


def checked_record(control: Control, plane: StateStatusReader, shard: ShardId) -> Published | None:
    """The newest publish on record, if the state still holds it; readers start here (scenario M13). None when
    nothing is published.

    Publishers may commit between the reading of the record and of the table. So a state that differs from its
    record is read again as long as its record moves."""
    last = last_published(control, shard)
    for _ in range(STEPS_MAX):
        status, before = plane.state_status(shard, last), last
        try:
            check_state_status(shard, last=last, status=status)
            return last
        except StateOverwritten:
            last = last_published(control, shard)
            if last == before:
                raise
    raise Determinate(f"the state of {shard} was published {STEPS_MAX} times while it was read", hint="retry")


def published_together(control: Control, shards: Sequence[ShardId], *, as_of: Txn) -> Txn:
    """The highest transaction at or below `as_of` at which every shard's state has an exact version; 0, where
    all states are empty, if there is no other. `as_of` must be readable in all of them."""
    ledgers = {shard: control.publishes(shard) for shard in shards}
    for ledger in ledgers.values():
        ledger.head()
    control.seals.head()
    while True:
        published = {
            shard: published_txn(published_as_of(ledger, as_of=as_of)) for shard, ledger in ledgers.items()
        }
        lower = next_txn(min(published.values(), default=as_of))
        found = agreed(as_of=as_of, published=published, seals=control.seals.read(lower, next_txn(as_of)))
        if found == as_of:
            return as_of
        as_of = found


def is_due(control: Control, shard: ShardId, policy: Policy) -> bool:
    """Whether the policy asks for a publish of the shard now; needs no engine."""
    published = published_txn(last_published(control, shard))
    return due(published=published, log_upper=control.log(shard).head().upper, policy=policy)


def put_record(control: Control, shard: ShardId, *, version: int, commit: StateCommit) -> Published:
    """Put a publish on record; returns the existing record if it is there already."""
    ledger = control.publishes(shard)

    def decide(head: Head) -> Put[Published, Published] | Published:
        last = next(iter(ledger.read(head.upper - 1, head.upper)), None)
        if last is not None and last.version > version:
            # Another publisher may have put it on record for us, and published more since.
            for found in ledger.find(commit.token):
                if (found.version, found.commit) == (version, commit):
                    return found
        return decide_record(head=head, last=last, version=version, commit=commit)

    what = f"the record of transaction {commit.txn} in the state of {shard}"
    return settle(ledger, decide, what=what)


def publish(
    control: Control,
    plane: StatePlane,
    shard: ShardId,
    *,
    token: WriterToken,
    policy: Policy | None = None,
    generation: int | None = None,
) -> Published | UpToDate | NotDue:
    """Bring the state up to the log's upper. Without a policy, a publish is always due. `Superseded` where
    the plane has the settings of another `generation` than the one in charge."""
    if policy is not None and not is_due(control, shard, policy):
        published = published_txn(last_published(control, shard))
        return NotDue(published, control.log(shard).head().upper)
    return _publish(control, plane, shard, token, generation)


def _publish(
    control: Control, plane: StatePlane, shard: ShardId, token: WriterToken, generation: int | None
) -> Published | UpToDate:
    """Decide and act until the tail is in the state; where the state has moved meanwhile, decide again."""
    for _ in range(STEPS_MAX):
        last = last_published(control, shard)
        status = plane.state_status(shard, last)
        log = log_head(control, shard, require_history(control))
        if log.upper <= max(status.txn, published_txn(last)):
            # The loaded version may be an old one, so look twice; a loss stays.
            log = log_head(control, shard)
        _require_in_charge(control, generation)
        _require_appended(control, shard, log)
        if last is not None:
            require_known(control, f"the state of shard {shard}", txn=last.txn, link=last.commit.link)
        try:
            decision = decide_publish(shard, last=last, status=status, log_upper=log.upper)
        except StateOverwritten:
            # Other publishers may have committed between the reading of the record and of the table.
            if last_published(control, shard) == last:
                raise
            continue
        match decision:
            case UpToDate() as done:
                return done
            case PutOnRecord(version, commit):
                put_record(control, shard, version=version, commit=commit)
            case PublishTail(lower, upper, base):
                begins = begins_at(log)
                afresh = lower <= begins
                tail = Tail(max(lower, begins), upper, log.version, log.link, afresh)
                made = plane.publish(shard, tail, base=base, token=token)
                if not isinstance(made, Conflict):
                    record = put_record(control, shard, version=made[0], commit=made[1])
                    plane.tidy(shard)
                    return record
    raise Determinate(f"the state of {shard} was published {STEPS_MAX} times meanwhile", hint="retry")


def _require_in_charge(control: Control, generation: int | None) -> None:
    """`Superseded` where another generation is in charge. It is asked after the log's version is pinned: a
    promotion is sealed before any log has it. So older settings never write a promotion or what comes after
    it, and what they write below it is what they wrote before."""
    if generation is None:
        return
    head = control.seals.head()
    if is_fenced(generation, newest=head.generation, sealed_upper=head.upper):
        raise Superseded(generation=generation, newest=head.generation)


def _require_appended(control: Control, shard: ShardId, log: Head) -> None:
    """`Determinate` where a promotion has replaced the shard and the log's version does not have it: rows
    from before it are not those of the settings in charge."""
    replaced = Txn(control.seals.mark(replaced_mark(shard)))
    if replaced >= log.upper:
        raise Determinate(
            f"transaction {replaced} replaces shard {shard}, and its log does not have it yet",
            hint="run the pipeline, which appends it",
        )


def rebuild(
    control: Control,
    plane: StatePlane,
    shard: ShardId,
    *,
    token: WriterToken,
    base: Published | None = None,
    seconds_max: float = REBUILD_SECONDS_MAX,
    clock: Callable[[], float] = time.monotonic,
    generation: int | None = None,
) -> Published:
    """Replace the state by a fold of its log, in one commit, whatever the state contains; then publish what
    the log has got meanwhile, until nothing is left. Returns the record of the rebuild.

    `base` is a recorded publish to start from. For a log that no longer reaches back to transaction 1, or to
    the one that replaced the shard, it defaults to the last one. Its version of the state is read back and
    must have the recorded digest.

    A rebuild that loses to a publish folds the log again, up to the deadline. What is left to publish at the
    deadline is left to the next publish."""
    deadline = clock() + seconds_max

    def work() -> Published | Conflict:
        last = last_published(control, shard)
        since = since_of(control.leases.head())
        log = log_head(control, shard, require_history(control))
        _require_in_charge(control, generation)
        control.seals.head()
        _require_appended(control, shard, log)
        start, lower = _rebuild_from(shard, log, base=base, last=last, since=since)
        if start is not None:
            check_rows(plane, shard, start)
        if lower < since:
            raise Truncated(shard, as_of=Txn(lower - 1), since=since)
        if log.upper - 1 < published_txn(last):
            raise InvariantViolation(
                f"the log of {shard} ends at {log.upper - 1}, below the published {published_txn(last)}",
                hint="restore the log from a backup first",
            )
        if log.upper == TXN_FIRST:
            fact = f"the log of {shard} has nothing to rebuild from"
            raise InvalidUsage(fact, hint="run the pipeline first")
        # Whatever happened to the table: its columns are those of the log that it is made of.
        afresh = start is None and begins_at(log) == lower
        tail = Tail(lower, log.upper, log.version, log.link, afresh)
        made = plane.rebuild(shard, tail, base=start, token=token)
        if isinstance(made, Conflict):
            return made
        return put_record(control, shard, version=made[0], commit=made[1])

    while isinstance(done := work(), Conflict):
        if clock() >= deadline:
            raise Determinate(
                f"the state of {shard} was published each time that it was rebuilt, for {seconds_max:g} s",
                hint="retry while no run publishes it",
            )
    published: Published | UpToDate = done
    while not isinstance(published, UpToDate) and clock() < deadline:
        published = _publish(control, plane, shard, token, generation)
    return done


def _rebuild_from(
    shard: ShardId, log: Head, *, base: Published | None, last: Published | None, since: Txn
) -> tuple[Published | None, Txn]:
    """The publish that a rebuild starts from, None for nothing, and the first transaction of its tail."""
    begins = begins_at(log)
    first = max(TXN_FIRST, begins)
    start = base if base is not None or since <= first else last
    if start is None:
        return None, first
    if start.txn < begins:
        raise BeforeReplacement(shard, as_of=start.txn, begins=begins)
    return start, next_txn(start.txn)


def check_rows(plane: StatePlane, shard: ShardId, base: Published) -> None:
    """Read the whole state of a publish and compare it with the record; `StateOverwritten` where they
    differ."""
    found = plane.digest(shard, base.version)
    if found != base.commit.digest:
        raise StateOverwritten(
            shard,
            what=f"version {base.version} has {found.count} rows with digest {found}, "
            f"recorded are {base.commit.digest.count} with {base.commit.digest}",
        )
    repeated = plane.repeated(shard, base.version)
    if repeated:
        raise StateOverwritten(shard, what=f"{repeated} keys of version {base.version} have several rows")


def verify_state(control: Control, plane: StatePlane, shard: ShardId) -> Published | None:
    """Read the whole state and compare it with the record; `StateOverwritten` where they differ. Returns the
    newest publish, None when there is none yet."""
    last = checked_record(control, plane, shard)
    if last is not None:
        require_republished(control, shard, last)
        check_rows(plane, shard, last)
    return last


def require_republished(control: Control, shard: ShardId, last: Published) -> None:
    """`Determinate` where a promotion has replaced the shard after its last publish: the state still has the
    shape of before."""
    control.seals.head()
    replaced = Txn(control.seals.mark(replaced_mark(shard)))
    if last.txn < replaced:
        raise Determinate(
            f"the state of shard {shard} is published up to transaction {last.txn}, and transaction"
            f" {replaced} replaced the shard",
            hint="publish it first: `tidemark publish PIPELINE SHARD`",
        )
