"""What a task hands on is a few kilobytes, however many transactions it has staged."""

from __future__ import annotations

import json

from tidemark.app.reports import gathered_report, txns_report, verdicts_report
from tidemark.core.binding import Owner
from tidemark.core.checksum import Digest
from tidemark.core.ids import QUARANTINE, ShardId, Txn, WriterToken
from tidemark.core.replay import Finding, Verdict
from tidemark.core.seal import Evidence, Part, ShardParts, Staged
from tidemark.core.text import step_sentence
from tidemark.pipeline.validate import Gated, Judged
from tidemark.ports.planes import Opinion

ONE = ShardParts((Part("", 1, 1),), Digest.of([7]))


def evidence(txn: int, *, replayed: bool = False, gone: str = "") -> Evidence:
    shards = {QUARANTINE: ONE, **{ShardId(f"t{number}"): ONE for number in range(20)}}
    staged = None if gone else Staged(Txn(txn), WriterToken("w"), Digest.of(range(30)), shards, "e")
    return Evidence(txn, Txn(txn), Owner("run"), 0, WriterToken("w"), staged, replayed, gone)


def test_regression_what_ingest_tells_does_not_grow_with_its_transactions() -> None:
    few = gathered_report([evidence(1), evidence(2, replayed=True), evidence(3, gone="a.json")])
    assert few == {
        "staged": [{"txn": 1, "read": 30, "quarantined": 1, "shards": 21}],
        "replayed": [2],
        "gone": {"3": "a.json"},
        "total": {"staged": 1, "replayed": 1, "gone": 1, "read": 30, "quarantined": 1},
    }
    kinds = [
        *(evidence(txn) for txn in range(1, 2_001)),
        *(evidence(txn, replayed=True) for txn in range(2_001, 3_001)),
        *(evidence(txn, gone="x" * 10_000) for txn in range(3_001, 4_001)),
    ]
    many = gathered_report(kinds)
    assert len(json.dumps(many)) < 50_000
    assert many["total"] == {
        "staged": 2_000,
        "replayed": 1_000,
        "gone": 1_000,
        "read": 60_000,
        "quarantined": 2_000,
    }
    said = step_sentence("ingest", many)
    assert said.startswith(
        "staged transactions 1 to 100 and 1,900 more: 60,000 read = 58,000 applied + 2,000 quarantined; "
        "read the input of transactions 2001 to 2100 and 900 more again, 0 bytes written; transaction 3001: "
    )
    assert said.endswith("; input gone of 900 more")


def test_regression_what_reclock_and_upsert_tell_does_not_grow_with_their_transactions() -> None:
    many, gaps = txns_report(range(1, 10_001)), txns_report(range(1, 10_001, 2))
    assert many == {"count": 10_000, "ranges": [[1, 10_000]]}
    assert len(json.dumps(gaps)) < 5_000
    assert gaps["count"] == 5_000
    none = txns_report(())
    told = {"owned": many, "open": [9_999, 10_001], "minted": True}
    bound = "bound transactions 1 to 10000 for this run; transaction 10001 open before"
    assert step_sentence("reclock", told) == bound
    said = step_sentence("upsert", {"sealed": many, "lost": gaps, "published": {}})
    assert said.startswith("sealed transactions 1 to 10000; transactions 1, 3, 5, ")
    assert said.endswith(", 199 and 4,900 more decided by another run")
    assert step_sentence("upsert", {"sealed": none, "lost": none, "published": {}}) == "nothing to seal"


def judged(txn: int, **opinion: object) -> Judged:
    finding = Finding(Txn(txn), Verdict.IDENTICAL)
    return Judged(Gated(finding, Opinion(**opinion), 2, 10), replayed=False)  # type: ignore[arg-type]


def test_regression_what_the_gate_tells_does_not_grow_and_has_what_was_not_met_first() -> None:
    warned = judged(1_999, warned=tuple(f"{number} " + "x" * 10_000 for number in range(1_000)))
    held = judged(2_000, held={ShardId(f"t{number}"): "y" * 10_000 for number in range(1_000)})
    told = verdicts_report([*map(judged, range(1, 1_999)), warned, held])
    assert told["total"] == 2_000
    assert [one["txn"] for one in told["verdicts"]] == [*range(1, 99), 1_999, 2_000]
    assert len(json.dumps(told)) < 50_000
    assert step_sentence("validate", told).endswith("; 1,900 more")
