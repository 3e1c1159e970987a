"""What the suites share: small records, scripted faults, a ledger that loses replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deltalake import Field, Schema
from deltalake.schema import PrimitiveType

from tests.support.memory.ledger import Fault
from tidemark.core.binding import Binding, Configuration, Owner
from tidemark.core.errors import Indeterminate
from tidemark.core.ids import Frontier, ShardId, Txn, WriterToken
from tidemark.core.ledger import UPPER, CommitOutcome, Committed, Event, Head, JournalEntry, Put
from tidemark.ports.control import Ledger

SHARDS = (ShardId("orders"), ShardId("parties"))
LOG_COLUMNS = {"id": "long", "value": "string", "_txn": "long", "_op": "string"}
LOG_SCHEMA = Schema([Field(name, PrimitiveType(kind)) for name, kind in LOG_COLUMNS.items()])
LOG_SCHEMAS = dict.fromkeys(SHARDS, LOG_SCHEMA)


class Scripted:
    """A chaos that follows a script per call, and is calm when it ends."""

    def __init__(self, script: Mapping[str, Sequence[Fault]]) -> None:
        self._script = {call: list(faults) for call, faults in script.items()}

    def meet(self, call: str) -> Fault:
        faults = self._script.get(call)
        return faults.pop(0) if faults else Fault.NONE


class Lossy:
    """Any ledger, behind a network that loses requests or replies as told."""

    def __init__(self, ledger: Ledger[Any], faults: Sequence[Fault]) -> None:
        self._ledger = ledger
        self._faults = list(faults)
        self.commits = 0

    def head(self) -> Head:
        return self._ledger.head()

    def read(self, lower: int, upper: int) -> Sequence[Any]:
        return self._ledger.read(lower, upper)

    def find(self, key: str) -> Sequence[Any]:
        return self._ledger.find(key)

    def commit(self, head: Head, put: Put[Any, Any]) -> CommitOutcome:
        fault = self._faults.pop(0) if self._faults else Fault.NONE
        if fault is Fault.LOSE_REQUEST:
            raise Indeterminate("no answer")
        self.commits += 1
        outcome = self._ledger.commit(head, put)
        if fault is Fault.LOSE_REPLY:
            raise Indeterminate("no answer")
        return outcome


def entry(number: int, *, txn: int = 0, token: str = "w", note: str = "") -> JournalEntry:
    return JournalEntry(number, Txn(txn or number), Event.LOST, WriterToken(token), {"note": note})


def put_next(ledger: Ledger[JournalEntry], **fields: Any) -> JournalEntry:
    """Add one record at the upper, which nobody contends for."""
    head = ledger.head()
    added = entry(head.upper, **fields)
    outcome = ledger.commit(head, Put({UPPER: head.upper + 1}, (added,), None))
    assert isinstance(outcome, Committed)
    return added


def binding(txn: int, lower: Mapping[str, int], upper: Mapping[str, int]) -> Binding:
    return Binding(
        Txn(txn), Frontier.of(lower), Frontier.of(upper), Owner(f"run-{txn}"), Configuration.of("{}")
    )
