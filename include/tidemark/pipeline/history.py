"""Checks that the history and its dependents agree, made before anything is written (Invariant 16).

Any table can lose its newest commits: by a power cut on a store that had not synced, by a restored copy, by
hand. Each of them names transactions by number and link, so two tables reveal a loss in one of them:

- a checkpoint, a log, a publish on record or a consumer's lease is ahead of the history, or has another
  transaction under the same number: the history has lost commits (`HistoryLost`);
- a log is behind the newest checkpoint's mark for it, or behind the transaction that touched its shard
  last: the log has lost commits (`LogLost`).

Checkpoints are derived, so one that was set back is simply written again. Runs, publishes, maintenance and
readers make these checks first. `status` checks the logs that it looks at: every log on request, for JSON and
for alarms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidemark.core.checkpoint import Checkpoint
from tidemark.core.errors import Determinate, InvariantViolation
from tidemark.core.history import CopiedWarehouse, HistoryLost, LogLost, Recovery, check_known
from tidemark.core.ids import TXN_FIRST, TXN_NONE, ShardId, Txn, WriterToken
from tidemark.core.ledger import EPOCH, Head
from tidemark.core.publish import VERSION_NONE
from tidemark.core.seal import replaced_mark, touch_mark
from tidemark.pipeline.leases import Leases
from tidemark.ports.control import Control

LOOKS_MAX: Final = 2
LOGS_LOOKED_AT: Final = 20
LEASES_LOOKED_AT: Final = 50


def require_known(control: Control, what: str, *, txn: Txn, link: int) -> None:
    """Raise `HistoryLost` where the history does not have this transaction with this link. `what` names the
    dependent."""
    for _ in range(LOOKS_MAX):
        seal = next(iter(control.seals.read(txn, txn + 1)), None)
        if txn == TXN_NONE or (seal is not None and seal.link == link):
            return
        # The loaded version may be an old one, so look twice; a loss stays.
        upper = control.seals.head().upper
    recovery = newest_recovery(control)
    if recovery is not None and txn >= upper and recovery.proves(txn, link):
        return  # It is a known loss, and is decided again with this link.
    seal = next(iter(control.seals.read(txn, txn + 1)), None)
    check_known(what, txn=txn, link=link, upper=upper, seal=seal)


def newest_recovery(control: Control) -> Recovery | None:
    """The history's last recovery, at its loaded version; None when there was none."""
    upper = control.recoveries.mark(EPOCH)
    return next(iter(control.recoveries.read(upper - 1, upper)), None) if upper else None


def epoch_of(control: Control, txn: Txn) -> int:
    """The epoch of a transaction: how often the history had been recovered when it was bound."""
    recoveries = control.recoveries.read(1, control.recoveries.mark(EPOCH))
    return max((one.number for one in recoveries if one.first <= txn), default=0)


def require_home(control: Control) -> None:
    """Raise `CopiedWarehouse` where the warehouse is opened at an address that its history does not have. A
    copy goes on only once it was adopted: else two pipelines would acknowledge one source."""
    if not control.made_at:
        control.recoveries.head()
    made_at, address = control.made_at, control.address
    if made_at in ("", address):
        return
    # It may have been adopted since the loaded version.
    control.recoveries.head()
    recoveries = control.recoveries.read(1, control.recoveries.mark(EPOCH))
    if all(one.adopted != address for one in recoveries):
        raise CopiedWarehouse(made_at=made_at, opened=address)


def require_history(control: Control) -> Checkpoint:
    """The newest checkpoint, once the warehouse is known to be no copy, and the history to have that
    transaction. A checkpoint follows every transaction, so this is the cheapest check."""
    require_home(control)
    return _known_checkpoint(control)


def _known_checkpoint(control: Control) -> Checkpoint:
    checkpoints = control.checkpoints
    upper = checkpoints.head().upper
    last = next(iter(checkpoints.read(upper - 1, upper)), Checkpoint())
    require_known(control, "the newest checkpoint", txn=last.txn, link=last.link)
    return last


def require_logs(control: Control) -> None:
    """Check the history, and the shards that the last transactions touch, up to a bounded number of them.
    Where nothing is sealed, no shard may have anything. Other shards are checked when a transaction touches
    them."""
    last = require_history(control)
    upper = control.seals.head().upper
    unfinished = _unfinished(control, upper)
    if unfinished is not None:
        raise unfinished
    seals = control.seals.read(last.txn + 1, upper)
    touched = {shard for seal in seals for shard in seal.shards} | set(last.tables)
    for shard in sorted(control.shards() if upper == TXN_FIRST else touched)[:LOGS_LOOKED_AT]:
        require_shard(control, shard, last)
    require_leases(control, upper)


def require_leases(control: Control, sealed_upper: Txn) -> None:
    """Check that the history has what consumers have confirmed. A number that was bound again would else be
    another transaction to them.

    Every consumer is compared with the history's end, and the ones that are furthest also by their links, up
    to a bounded number. Of the others each compares its link when it reads."""
    latest = Leases(control.leases).latest()
    known = sorted((one for one in latest if one.link and one.is_kept), key=lambda one: -one.txn)
    for place, lease in enumerate(known):
        if lease.txn <= sealed_upper and place >= LEASES_LOOKED_AT:
            break
        require_known(control, f"consumer {lease.name}", txn=Txn(lease.txn - 1), link=lease.link)


def link_of(control: Control, what: str, *, txn: Txn) -> int:
    """The link of a transaction that `what` has had, 0 for none at all. `HistoryLost` where the history lacks
    it."""
    upper = TXN_FIRST
    for _ in range(LOOKS_MAX if txn != TXN_NONE else 0):
        for seal in control.seals.read(txn, txn + 1):
            return seal.link
        # The loaded version may be an old one.
        upper = control.seals.head().upper
    check_known(what, txn=txn, link=0, upper=upper, seal=None)
    return 0


def _unfinished(control: Control, upper: Txn) -> Determinate | None:
    """The error that a recovery is not finished; None when there is no such recovery."""
    recovery = newest_recovery(control)
    if recovery is None or upper > recovery.ends:
        return None
    return Determinate(
        f"a recovery is not finished: transaction {upper} comes next, and {recovery.ends} last",
        hint="run `tidemark recover PIPELINE --yes` to its end",
    )


def require_shard(control: Control, shard: ShardId, last: Checkpoint) -> None:
    """Check that a shard's log, its publishes and its state have no transaction that the history lacks, and
    that the log has everything up to the newest checkpoint's mark."""
    log_head(control, shard, last)
    publishes = control.publishes(shard)
    upper = publishes.head().upper
    what, version = f"the state of shard {shard}", VERSION_NONE
    for published in publishes.read(upper - 1, upper):
        require_known(control, what, txn=published.txn, link=published.commit.link)
        version = published.version
    # A publisher may have died before its record, or the record was set back: ask the table itself.
    commit = control.state_commit(shard, after=version)
    if commit is not None:
        require_known(control, what, txn=commit.txn, link=commit.link)


def log_head(control: Control, shard: ShardId, last: Checkpoint | None = None) -> Head:
    """The head of a shard's log, once it is known to agree with the history; with the newest checkpoint, also
    with its mark."""
    try:
        return _checked_head(control, shard, last)
    except (HistoryLost, LogLost):
        # The loaded version may be an old one, so look twice; a loss stays.
        return _checked_head(control, shard, last)


def _checked_head(control: Control, shard: ShardId, last: Checkpoint | None) -> Head:
    head = control.log(shard).head()
    require_known(control, f"the log of shard {shard}", txn=Txn(head.upper - 1), link=head.link)
    _require_whole(control, shard, head, last)
    return head


def _require_whole(control: Control, shard: ShardId, head: Head, last: Checkpoint | None) -> None:
    """Raise `LogLost` where a log lacks transactions that the newest checkpoint or the history's touch mark
    has."""
    if last is None:
        return
    mark = last.tables.get(shard)
    recovery = newest_recovery(control)
    seen = mark.upper if mark is not None else TXN_NONE
    if recovery is not None and seen <= recovery.ends + 1:
        # Those may be lost for good; the history's touch mark alone decides what the log must have.
        seen = TXN_NONE
    touched = Txn(control.seals.mark(touch_mark(shard)))
    waits = mark is not None and mark.waits_at != TXN_NONE
    if head.upper < seen:
        raise LogLost(shard, ends=Txn(head.upper - 1), wanted=Txn(seen - 1))
    if head.upper <= touched <= last.txn and not waits:
        raise LogLost(shard, ends=Txn(head.upper - 1), wanted=touched)


def replaced_at(control: Control, shard: ShardId) -> Txn:
    """The last transaction that replaced a shard, in the loaded version of the seals; 0 if none did."""
    return Txn(control.seals.mark(replaced_mark(shard)))


def has_replacement(control: Control, shard: ShardId) -> bool:
    """Whether a shard's log has the last transaction that replaced it, in the loaded version of the seals."""
    replaced = replaced_at(control, shard)
    return replaced == TXN_NONE or control.log(shard).head().upper > replaced


def require_replacement(control: Control, shard: ShardId) -> None:
    """Raise `Determinate` where a sealed transaction has replaced the shard and its log does not have it yet:
    the settings of now don't fit the log's rows."""
    for _ in range(LOOKS_MAX):
        if has_replacement(control, shard):
            return
    raise Determinate(
        f"transaction {replaced_at(control, shard)} replaces shard {shard}, and its log does not have it yet",
        hint="run the pipeline, which appends it",
    )


def is_in_a_log(control: Control, txn: Txn, token: WriterToken) -> bool:
    """Whether a log has parts of this attempt: then they are no leftovers, whatever the seal has."""
    for shard in control.shards():
        log = control.log(shard)
        if log.head().upper > txn and any(one.txn == txn for one in log.find(token)):
            return True
    return False


def _settings_lost(control: Control) -> list[str]:
    """Why the settings of the newest binding can't be read."""
    upper = control.bindings.head().upper
    try:
        for last in control.bindings.read(upper - 1, upper):
            _ = last.configuration.text
    except InvariantViolation as lost:
        return [str(lost)]
    return []


def losses(control: Control, shards: Sequence[ShardId]) -> list[str]:
    """The disagreements, as text for people: between the history and its newest checkpoint, and between each
    of these shards and both."""
    try:
        last = _known_checkpoint(control)
    except InvariantViolation as lost:
        return [str(lost)]
    unfinished = _unfinished(control, control.seals.head().upper)
    found = [str(unfinished)] if unfinished is not None else []
    found += _settings_lost(control)
    for shard in shards:
        try:
            require_shard(control, shard, last)
        except (HistoryLost, LogLost) as lost:
            found.append(str(lost))
    return found
