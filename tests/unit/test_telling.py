"""What an asset's event says of the gate."""

from __future__ import annotations

from tidemark.core.checksum import Digest
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.seal import Decision, Seal
from tidemark.telling import told_gate


def seal(txn: int, decision: Decision) -> Seal:
    reason = "" if decision is Decision.COMMITTED else "it was a refund"
    return Seal(Txn(txn), WriterToken("w"), 0, decision, Digest(), reason=reason)


def test_what_someone_accepted_is_not_told_as_identical() -> None:
    assert told_gate([seal(1, Decision.COMMITTED), seal(2, Decision.COMMITTED)]) == "identical"
    assert told_gate([seal(1, Decision.COMMITTED), seal(2, Decision.ACCEPTED)]) == "accepted"
