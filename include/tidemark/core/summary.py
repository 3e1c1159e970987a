"""The sentence: what a run, or one step of it, has done, in one line for people.

    loaded transaction 2: 301 read = 294 applied + 7 quarantined
    proved 1: identical, 0 bytes written
    nothing to do; 1 file waiting

It is made from durable facts alone, so that whoever asks again gets the same one: a task's log, the pages in
Airflow, the command. *Applied* is every record that was read and is not quarantined, whether or not the fold
kept it as its key's last one. A proof writes to no table, which is why it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from tidemark.core.ids import QUARANTINE, Txn
from tidemark.core.replay import Verdict
from tidemark.core.seal import Decision, Seal

REASON_CHARACTERS_MAX: Final = 200
_PROVEN: Final = f"{Verdict.IDENTICAL}, 0 bytes written"


@dataclass(frozen=True, slots=True)
class Proof:
    """What a run's proof of one transaction came to, and how a person overruled it, if one did."""

    txn: Txn
    verdict: str
    overruled: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is on record of a run. `sealed` are its transactions that are decided and not proven by it; `own`
    are the numbers of those that its own try has decided. `open` has why each open one was stopped, empty
    where nothing is known. `waiting` is what the source says of input that belongs to nobody yet."""

    sealed: tuple[Seal, ...] = ()
    own: frozenset[Txn] = frozenset()
    proofs: tuple[Proof, ...] = ()
    open: Mapping[Txn, str] = field(default_factory=dict)
    waiting: str = ""


def run_sentence(facts: RunFacts) -> str:
    """What the run did. What a person decided, what another run decided, what is held or open, and a verdict
    that is not `identical` are never folded into a sum."""
    committed = [seal for seal in facts.sealed if seal.decision is Decision.COMMITTED]
    loaded = [seal for seal in committed if seal.txn in facts.own]
    by_others = [seal.txn for seal in committed if seal.txn not in facts.own]
    clauses = []
    if loaded:
        total = counted(sum(seal.source.count for seal in loaded), sum(map(quarantined_in, loaded)))
        clauses.append(f"loaded {named(seal.txn for seal in loaded)}: {total}")
    if by_others:
        clauses.append(f"{named(by_others)} decided by another run")
    clauses += [_overruled(seal) for seal in facts.sealed if seal.decision is not Decision.COMMITTED]
    clauses += [
        f"shard {shard} held at {seal.txn}: {short(parts.held)}"
        for seal in facts.sealed
        for shard, parts in seal.shards.items()
        if parts.held
    ]
    proven = [one.txn for one in facts.proofs if _is_proven(one)]
    if proven:
        clauses.append(f"proved {numbers(proven)}: {_PROVEN}")
    for one in facts.proofs:
        if not _is_proven(one):
            overruled = f", overruled: {short(one.overruled)}" if one.overruled else ""
            clauses.append(f"transaction {one.txn}: {one.verdict}{overruled}")
    clauses += [f"transaction {txn} open: {short(why)}" for txn, why in facts.open.items() if why]
    waiting = [txn for txn, why in facts.open.items() if not why]
    clauses += [f"{named(waiting)} open"] if waiting else []
    if not clauses:
        clauses = ["nothing to do", *filter(None, [facts.waiting])]
    return "; ".join(clauses)


def _is_proven(one: Proof) -> bool:
    return one.verdict == Verdict.IDENTICAL and not one.overruled


def _overruled(seal: Seal) -> str:
    """A transaction that a person decided, or that was lost."""
    if seal.decision is Decision.LOST:
        return f"transaction {seal.txn} lost: {short(seal.reason)}"
    counts = ""
    if seal.decision is Decision.ACCEPTED:
        counts = f", {counted(seal.source.count, quarantined_in(seal))}"
    return f"transaction {seal.txn} {seal.decision} by a person: {short(seal.reason)}{counts}"


def quarantined_in(seal: Seal) -> int:
    """How many records of a transaction are quarantined."""
    return seal.shards[QUARANTINE].digest.count if seal.touches(QUARANTINE) else 0


def counted(read: int, quarantined: int) -> str:
    """The equation that every transaction has to meet; where the counts don't, they are told side by side."""
    if quarantined > read:
        return f"{read:,} read, {quarantined:,} quarantined"
    return f"{read:,} read = {read - quarantined:,} applied + {quarantined:,} quarantined"


def waiting_text(pieces: int, unit: str, trouble: str = "") -> str:
    """What waits in a source, in a few words; empty where nothing does."""
    if trouble:
        return f"what waits is not known: {short(trouble)}"
    if not pieces:
        return ""
    one = pieces == 1 and " " not in unit
    return f"{pieces:,} {unit.removesuffix('s') if one else unit} waiting"


def numbers(txns: Iterable[int]) -> str:
    """Transactions by number, neighbours as a range: `1 to 3, 5`."""
    spans = groupby(enumerate(sorted(set(txns))), key=lambda pair: pair[1] - pair[0])
    runs = [[txn for _, txn in span] for _, span in spans]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def named(txns: Iterable[int]) -> str:
    """`transaction 2`, or `transactions 2 to 4`."""
    found = list(txns)
    return f"transaction{'s' if len(found) > 1 else ''} {numbers(found)}"


def short(text: str) -> str:
    """A reason on one line, cut to a length that a log line bears."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARACTERS_MAX else f"{line[: REASON_CHARACTERS_MAX - 1]}…"


def step_sentence(step: str, told: Mapping[str, Any]) -> str:
    """What one step of a run has done, from what its task tells."""
    return _STEPS[step](told)


def _reclocked(told: Mapping[str, Any]) -> str:
    clauses = []
    if told["owned"]:
        bound = "bound" if told["minted"] else "found"
        clauses = [f"{bound} {named(told['owned'])} for this run"]
        lower = [txn for txn in told["open"] if txn not in told["owned"]]
        clauses += [f"{named(lower)} open before"] if lower else []
    elif told["open"]:
        clauses = [f"nothing new to bind; {named(told['open'])} open"]
    return "; ".join(clauses) or "nothing to bind"


def _ingested(told: Mapping[str, Any]) -> str:
    clauses, total = [], told["total"]
    staged, replayed, gone = told["staged"], told["replayed"], told["gone"]
    if staged:
        which = _listed([one["txn"] for one in staged], total["staged"])
        clauses.append(f"staged {which}: {counted(total['read'], total['quarantined'])}")
    if replayed:
        which = _listed(replayed, total["replayed"])
        clauses.append(f"read the input of {which} again, 0 bytes written")
    clauses += [f"transaction {txn}: input gone: {short(why)}" for txn, why in gone.items()]
    clauses += [f"input gone of {more:,} more"] if (more := total["gone"] - len(gone)) else []
    return "; ".join(clauses) or "nothing to stage"


def _listed(txns: Sequence[int], count: int) -> str:
    """The first of so many transactions by number."""
    more = count - len(txns)
    return named(txns) + (f" and {more:,} more" if more else "")


def _validated(told: Mapping[str, Any]) -> str:
    return "; ".join(map(verdict_sentence, told["verdicts"])) or "nothing to validate"


def verdict_sentence(one: Mapping[str, Any]) -> str:
    """The gate's verdict on one transaction, with what it is based on."""
    facts = [f"{one['compared']:,} digests compared", f"{one['rows']:,} rows"] if one["compared"] else []
    if one["expectations"]:
        broken = len(one["held"]) + len(one["warned"])
        facts.append(f"{one['expectations']:,} expectations" + ("" if broken else " met"))
    facts += [f"shard {shard} held: {short(why)}" for shard, why in one["held"].items()]
    facts += [f"warning: {short(why)}" for why in one["warned"]]
    what = "replay of transaction" if one["replayed"] else "transaction"
    return ", ".join([f"{what} {one['txn']}: {one['verdict']}", *facts])


def _upserted(told: Mapping[str, Any]) -> str:
    clauses = [f"sealed {named(told['sealed'])}"] if told["sealed"] else []
    lost: Sequence[int] = [int(txn) for txn in told["lost"]]
    if lost:
        clauses.append(f"{named(lost)} decided by another run")
    states = [f"{shard} at {one['txn']}" for shard, one in told["published"].items()]
    clauses += [f"states: {', '.join(states)}"] if states else []
    return "; ".join(clauses) or "nothing to seal"


def _checkpointed(told: Mapping[str, Any]) -> str:
    return f"{told['sentence']}; checkpoint {told['checkpoint']}"


def _replayed(told: Mapping[str, Any]) -> str:
    proven = [one["txn"] for one in told["findings"] if one["verdict"] == Verdict.IDENTICAL]
    restored = len(told["restored"])
    same = f"{Verdict.IDENTICAL}, {restored:,} parts restored" if restored else _PROVEN
    clauses = [f"proved {numbers(proven)}: {same}"] if proven else []
    clauses += [
        f"transaction {one['txn']}: {one['verdict']}"
        for one in told["findings"]
        if one["verdict"] != Verdict.IDENTICAL
    ]
    return "; ".join(clauses) or "nothing to prove"


def _maintained(told: Mapping[str, Any]) -> str:
    done, left = (len(told.get(name, ())) for name in ("done", "left"))
    return f"maintenance: {left:,} chores left" if left else f"maintenance: {done:,} chores done"


_STEPS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "reclock": _reclocked,
    "ingest": _ingested,
    "validate": _validated,
    "upsert": _upserted,
    "checkpoint": _checkpointed,
    "replay": _replayed,
    "maintain": _maintained,
}
