"""Values as text for people and machines, and one-line summaries of what a run, or one step of it, has done.

A sequence is an integer, a time in UTC, or a date. Its number is the integer itself, microseconds, or days
since 1970; the unit of the shard's `lateness` decides which: `seconds` for times, `days` for dates.

Summaries are lines such as

    loaded transaction 2: 301 read = 294 applied + 7 quarantined
    proved 1: identical, 0 bytes written
    no new transaction; 1 file waiting

A summary is made from durable facts alone, so a task's log, the pages in Airflow and the command show the
same text, also later. *Applied* is every record that was read and is not quarantined, whether or not the fold
kept it as its key's last one. A proof writes to no table, and its summary states that.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from itertools import groupby
from typing import Any, Final

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import QUARANTINE, Txn
from tidemark.core.replay import Verdict
from tidemark.core.seal import Decision, Seal


def plain(value: Any) -> Any:
    """Convert a value to types that JSON supports. Fields that are no part of a value's `repr` are left
    out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = (field.name for field in dataclasses.fields(value) if field.repr)
        return {name: plain(getattr(value, name)) for name in shown}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return str(value)


def moment(at: datetime | None) -> str:
    """A time as text in UTC; empty if unknown."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if at is not None else ""


UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def span(seconds: float | None) -> str:
    """A duration as text, in its two largest units; empty if unknown."""
    if seconds is None:
        return ""
    units = [(unit, size) for unit, size in UNITS if seconds >= size > 1]
    if not units:
        return f"{max(seconds, 0.0):.1f} s"
    unit, size = units[0]
    lower, lower_size = UNITS[UNITS.index(units[0]) + 1]
    rest = int(seconds % size // lower_size)
    return f"{int(seconds // size)} {unit}" + (f" {rest} {lower}" if rest else "")


def seconds_in(text: str) -> float:
    """Parse a duration such as `90s`, `10m`, `24h` or `7d`."""
    found = re.fullmatch(r"(\d+)([smhd])", text.strip())
    if found is None:
        raise InvalidUsage(
            f"{text!r} is not a length of time", hint="write a number with s, m, h or d: 10m, 24h"
        )
    return int(found[1]) * dict(UNITS)[found[2]]


_BYTES: Final = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def bytes_in(text: str) -> int:
    """Parse a size such as `500MB` or `10GB`."""
    found = re.fullmatch(r"(\d+)(KB|MB|GB|TB)", text.strip())
    if found is None:
        raise InvalidUsage(f"{text!r} is not a size", hint="write a number with KB, MB, GB or TB: 10GB")
    return int(found[1]) * _BYTES[found[2]]


def share_in(text: str) -> float:
    """Parse a percentage such as `5%` or `0.5%`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%", text.strip())
    if found is None or float(found[1]) > 100:
        raise InvalidUsage(f"{text!r} is not a percentage", hint="write a number up to 100 with %: 5%")
    return float(found[1]) / 100


SECONDS: Final = "seconds"
DAYS: Final = "days"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def sequence_text(number: int, *, unit: str) -> str:
    """A sequence number as text; the number itself if it is beyond the calendar."""
    try:
        if unit == SECONDS:
            return str((_EPOCH + timedelta(microseconds=number)).replace(tzinfo=None))
        if unit == DAYS:
            return str(_EPOCH.date() + timedelta(days=number))
    except OverflowError:
        pass
    return str(number)


def sequence_number(text: str, *, unit: str) -> int:
    """Parse a sequence; a time without a zone is in UTC."""
    try:
        if unit == SECONDS:
            at = datetime.fromisoformat(text)
            at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
            return (at - _EPOCH) // timedelta(microseconds=1)
        if unit == DAYS:
            return (date.fromisoformat(text) - _EPOCH.date()).days
        return int(text)
    except (ValueError, OverflowError):
        kinds = {SECONDS: "a time, 2026-01-31 12:00:00", DAYS: "a date, 2026-01-31"}
        hint = f"write {kinds.get(unit, 'a whole number')}"
        raise InvalidUsage(f"{text[:80]!r} is not a sequence of this shard", hint=hint) from None


REASON_CHARACTERS_MAX: Final = 200
_PROVEN: Final = f"{Verdict.IDENTICAL}, 0 bytes written"


@dataclass(frozen=True, slots=True)
class Proof:
    """A run's verdict on one transaction, and how a person overruled it, if one did."""

    txn: Txn
    verdict: str
    overruled: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The records of a run. `sealed` are its decided transactions that it did not prove; `own` are those that
    its own try decided. `open` maps each open one to why it stopped, empty if unknown. `waiting` is the
    source's report of unbound input."""

    sealed: tuple[Seal, ...] = ()
    own: frozenset[Txn] = frozenset()
    proofs: tuple[Proof, ...] = ()
    open: Mapping[Txn, str] = field(default_factory=dict)
    waiting: str = ""


def run_sentence(facts: RunFacts) -> str:
    """The summary of a run. Decisions of a person or of another run, held or open transactions, and verdicts
    other than `identical` are always listed individually."""
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
        clauses = ["no new transaction", *filter(None, [facts.waiting])]
    return "; ".join(clauses)


def _is_proven(one: Proof) -> bool:
    return one.verdict == Verdict.IDENTICAL and not one.overruled


def _overruled(seal: Seal) -> str:
    """The clause for a transaction that a person decided, or that was lost."""
    if seal.decision is Decision.LOST:
        return f"transaction {seal.txn} lost: {short(seal.reason)}"
    if seal.decision is Decision.CORRECTED:
        rows = sum(added.digest.count for added in seal.shards.values())
        return f"transaction {seal.txn} promoted {short(seal.reason)}, {amount(rows, 'row')} corrected"
    counts = ""
    if seal.decision is Decision.ACCEPTED:
        counts = f", {counted(seal.source.count, quarantined_in(seal))}"
    return f"transaction {seal.txn} {seal.decision} by a person: {short(seal.reason)}{counts}"


def quarantined_in(seal: Seal) -> int:
    """The number of records that a transaction has read and quarantined. A promotion reads none: it adds what
    the new generation has quarantined of earlier transactions."""
    if seal.decision is Decision.CORRECTED or not seal.touches(QUARANTINE):
        return 0
    return seal.shards[QUARANTINE].digest.count


def applied_in(seal: Seal) -> int | None:
    """The number of records of a transaction that were read and are not quarantined. None for a promotion: it
    reads nothing, and quarantines records that earlier transactions have read."""
    if seal.decision is Decision.CORRECTED or quarantined_in(seal) > seal.source.count:
        return None
    return seal.source.count - quarantined_in(seal)


def counted(read: int, quarantined: int) -> str:
    """The equation that every transaction must satisfy; if it doesn't, the two counts."""
    if quarantined > read:
        return f"{read:,} read, {quarantined:,} quarantined"
    return f"{read:,} read = {read - quarantined:,} applied + {quarantined:,} quarantined"


def amount(number: int, unit: str) -> str:
    """`1 row`, or `1,200 rows`."""
    return f"{number:,} {unit}" + ("" if number == 1 else "s")


def waiting_text(pieces: int, unit: str, trouble: str = "") -> str:
    """Waiting input in a few words; empty if there is none."""
    if trouble:
        return f"the waiting input is unknown: {short(trouble)}"
    if not pieces:
        return ""
    one = pieces == 1 and " " not in unit
    return f"{pieces:,} {unit.removesuffix('s') if one else unit} waiting"


def ranges(txns: Iterable[int]) -> list[tuple[int, int]]:
    """Transactions by number, neighbours as a range of the first and the last one."""
    found = groupby(enumerate(sorted(set(txns))), key=lambda pair: pair[1] - pair[0])
    runs = [[txn for _, txn in run] for _, run in found]
    return [(run[0], run[-1]) for run in runs]


def numbers(txns: Iterable[int]) -> str:
    """Transactions by number, as text: `1 to 3, 5`."""
    return _spelled(ranges(txns))


def _spelled(found: Iterable[Sequence[int]]) -> str:
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in found)


def named(txns: Iterable[int]) -> str:
    """`transaction 2`, or `transactions 2 to 4`."""
    found = list(txns)
    return f"transaction{'s' if len(found) > 1 else ''} {numbers(found)}"


def named_in(report: Mapping[str, Any]) -> str:
    """The same of transactions that a task tells as ranges, of which the last ones may be left out."""
    more = report["count"] - sum(last - first + 1 for first, last in report["ranges"])
    rest = f" and {more:,} more" if more else ""
    return f"transaction{'s' if report['count'] > 1 else ''} {_spelled(report['ranges'])}{rest}"


def short(text: str) -> str:
    """A reason on one line, truncated for a log line."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARACTERS_MAX else f"{line[: REASON_CHARACTERS_MAX - 1]}…"


def step_sentence(step: str, report: Mapping[str, Any]) -> str:
    """The summary of one step of a run, from its task's report."""
    return _STEPS[step](report)


def _reclocked(report: Mapping[str, Any]) -> str:
    clauses = []
    owned = report["owned"]
    if owned["count"]:
        bound = "bound" if report["minted"] else "found"
        clauses = [f"{bound} {named_in(owned)} for this run"]
        lower = [
            txn for txn in report["open"] if not any(low <= txn <= high for low, high in owned["ranges"])
        ]
        clauses += [f"{named(lower)} open before"] if lower else []
    elif report["open"]:
        clauses = [f"nothing new to bind; {named(report['open'])} open"]
    return "; ".join(clauses) or "nothing to bind"


def _ingested(report: Mapping[str, Any]) -> str:
    clauses, total = [], report["total"]
    staged, replayed, gone = report["staged"], report["replayed"], report["gone"]
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
    """The listed transactions by number, and how many more there are."""
    more = count - len(txns)
    return named(txns) + (f" and {more:,} more" if more else "")


def _validated(report: Mapping[str, Any]) -> str:
    clauses = list(map(verdict_sentence, report["verdicts"]))
    more = report["total"] - len(clauses)
    clauses += [f"{more:,} more"] if more else []
    return "; ".join(clauses) or "nothing to validate"


def verdict_sentence(one: Mapping[str, Any]) -> str:
    """The gate's verdict on one transaction, and its basis."""
    facts = (
        [f"{amount(one['compared'], 'digest')} compared", amount(one["rows"], "row")]
        if one["compared"]
        else []
    )
    if one["expectations"]:
        broken = len(one["held"]) + len(one["warned"])
        facts.append(amount(one["expectations"], "expectation") + ("" if broken else " met"))
    facts += [f"shard {shard} held: {short(why)}" for shard, why in one["held"].items()]
    facts += [f"warning: {short(why)}" for why in one["warned"]]
    what = "replay of transaction" if one["replayed"] else "transaction"
    return ", ".join([f"{what} {one['txn']}: {one['verdict']}", *facts])


def _upserted(report: Mapping[str, Any]) -> str:
    clauses = [f"sealed {named_in(report['sealed'])}"] if report["sealed"]["count"] else []
    if report["lost"]["count"]:
        clauses.append(f"{named_in(report['lost'])} decided by another run")
    states = [f"{shard} at {one['txn']}" for shard, one in report["published"].items()]
    clauses += [f"states: {', '.join(states)}"] if states else []
    return "; ".join(clauses) or "nothing to seal"


def _checkpointed(report: Mapping[str, Any]) -> str:
    return f"{report['sentence']}; checkpoint {report['checkpoint']}"


def _replayed(report: Mapping[str, Any]) -> str:
    proven = [one["txn"] for one in report["findings"] if one["verdict"] == Verdict.IDENTICAL]
    restored = len(report["restored"])
    same = f"{Verdict.IDENTICAL}, {amount(restored, 'part')} restored" if restored else _PROVEN
    clauses = [f"proved {numbers(proven)}: {same}"] if proven else []
    clauses += [
        f"transaction {one['txn']}: {one['verdict']}"
        for one in report["findings"]
        if one["verdict"] != Verdict.IDENTICAL
    ]
    return "; ".join(clauses) or "nothing to prove"


def _generation(report: Mapping[str, Any]) -> str:
    if report.get("already"):
        return f"generation {report['generation']} is in charge already"
    if report["part"] == "follow":
        left = f", {report['behind']:,} behind" if report["behind"] else ""
        followed = amount(report["followed"], "transaction")
        return f"followed {followed}{left}; {report['differs']:,} give other rows"
    rows = report.get("compared") or {}
    if report["part"] == "compare":
        others = report["others"]
        changed = sum(sum(one.values()) for one in rows.values())
        changed += sum(others[kind] for kind in ("new", "changed", "gone"))
        return f"{amount(changed, 'row')} would change in {amount(len(rows) + others['shards'], 'shard')}"
    return (
        f"generation {report['generation']} is in charge since transaction {report['txn']},"
        f" {amount(report['rows_total'], 'row')} corrected"
    )


def _maintained(report: Mapping[str, Any]) -> str:
    done, left = (len(report.get(name, ())) for name in ("done", "left"))
    return (
        f"maintenance: {amount(left, 'step')} left" if left else f"maintenance: {amount(done, 'step')} done"
    )


_STEPS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "reclock": _reclocked,
    "ingest": _ingested,
    "validate": _validated,
    "upsert": _upserted,
    "checkpoint": _checkpointed,
    "replay": _replayed,
    "generation": _generation,
    "maintain": _maintained,
}
