"""What the pages tell of a transaction's story: who won its seal and who lost, how long each step took, every
verdict on it; and what maintenance would do. The control plane is real; nothing here needs Spark."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.airflow.test_pages_actions import Rig, Said, rig  # noqa: F401
from tests.airflow.test_pages_api import as_user
from tests.support.light import LightPlane
from tidemark.app.consume import leases_of
from tidemark.app.deployment import Deployment
from tidemark.app.tasks import open_pipeline
from tidemark.config import load_pipeline
from tidemark.core.binding import Owner
from tidemark.core.checksum import Digest
from tidemark.core.generation import Candidate, correction_seal
from tidemark.core.ids import QUARANTINE, Txn, WriterToken
from tidemark.core.lease import HolderToken
from tidemark.core.ledger import UPPER, Event, Put
from tidemark.core.seal import Part, ShardParts
from tidemark.pipeline.context import Attempt, Pipeline, binding_at, note
from tidemark.pipeline.ingest import gather
from tidemark.pipeline.reclock import mint
from tidemark.pipeline.upsert import seal_judged
from tidemark.pipeline.validate import judge_gathered

pytestmark = pytest.mark.airflow


def works_of(rig: Rig) -> Pipeline:  # noqa: F811
    deployment = Deployment(load_pipeline(rig.file), lambda: pytest.fail("no Spark here"))
    plane = LightPlane(rig.folder / "warehouse" / "mine", rig.folder / "landing")
    return replace(deployment.pipeline, plane=plane, gate=Said(checked=4))


def judged(works: Pipeline, run_id: str, *, cleared: int = 0) -> Attempt:
    """A run's attempt, up to its verdict."""
    attempt = Attempt(Owner(run_id), WriterToken(f"{run_id}-{cleared}"), cleared > 0, cleared)
    mint(works, attempt)
    gather(works, attempt)
    judge_gathered(works, attempt)
    return attempt


def told(rig: Rig, path: str) -> Any:  # noqa: F811
    answer = rig.client.get(f"/api/pipelines/mine{path}", headers=as_user("ann"))
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_row_tells_the_race_for_the_seal_every_verdict_and_the_steps(rig: Rig) -> None:  # noqa: F811
    (rig.folder / "landing" / "1.json").write_text('{"id": 1, "value": "v"}\n')
    works = works_of(rig)
    early = judged(works, "early")
    late = judged(works, "late")
    seal_judged(works, late)
    seal_judged(works, early)
    judged(works, "early", cleared=1)
    (row,) = told(rig, "/transactions")["transactions"]
    assert (row["run"], row["won"]) == ("early", {"token": "late-0", "run": "late"})
    assert row["lost"] == [{"token": "early-0", "run": "early"}]
    gate, replay = ({"verdict": "identical", "replayed": by} for by in (False, True))
    assert row["verdicts"] == [gate, gate, replay]
    assert set(row["steps"]) == {"ingest", "validate", "upsert", "transaction"}
    parts = [row["steps"][name] for name in ("ingest", "validate", "upsert")]
    assert sum(parts) == pytest.approx(row["steps"]["transaction"])
    one = told(rig, "/transactions/1")
    assert [(try_["token"], try_["won"], set(try_["on_disk"])) for try_ in one["attempts"]] == [
        ("early-0", False, {"shard:points"}),
        ("late-0", True, {"shard:points"}),
        ("early-1", False, {"shard:points"}),
    ]


def promoted(rig: Rig, *, quarantined: int) -> None:  # noqa: F811
    """A promotion on record that quarantines records of earlier transactions and corrects no row."""
    deployment = open_pipeline(rig.file, None)
    control, configuration = deployment.control, deployment.pipeline.configuration
    last = binding_at(deployment.pipeline, Txn(control.bindings.head().upper - 1))
    txn, nothing = Txn(last.txn + 1), deployment.pipeline.source.nothing_after(last, lost=False)
    bound = replace(last, txn=txn, lower=last.upper, manifest=nothing.manifest, promotes=1).linked(last)
    put = Put(marks={UPPER: txn + 1}, records=(bound,), result=None)
    control.bindings.commit(control.bindings.head(), put)
    candidate = Candidate(1, 1, WriterToken("c"), configuration, Txn(1), Txn(0), "other types")
    rows = ShardParts((Part("a", quarantined, 1),), Digest.of(range(quarantined)))
    seal = correction_seal(
        bound, token=WriterToken("p"), candidate=candidate, shards={QUARANTINE: rows}, engine="light",
        watermark=None, base=None,
    )  # fmt: skip
    control.seals.commit(control.seals.head(), Put({UPPER: txn + 1}, (seal,), None))


def test_a_promotion_that_quarantines_has_no_applied_records_and_no_part_in_the_share(
    rig: Rig,  # noqa: F811
) -> None:
    rig.work()
    promoted(rig, quarantined=3)
    row, first = told(rig, "/transactions")["transactions"]
    found = {name: row[name] for name in ("decision", "read", "quarantined", "applied")}
    assert found == {"decision": "corrected", "read": 0, "quarantined": 0, "applied": None}
    assert (first["read"], first["quarantined"], first["applied"]) == (1, 0, 1)
    share = told(rig, "")["quarantined"]
    assert (share["newest_txns"], share["newest_read"], share["newest_records"]) == (1, 1, 0)


def test_an_open_transaction_has_no_winner_and_no_loser(rig: Rig) -> None:  # noqa: F811
    rig.work(failed=("red",))
    (row,) = told(rig, "/transactions")["transactions"]
    assert (row["won"], row["lost"]) == (None, [])
    assert row["verdicts"] == [{"verdict": "expectations not met", "replayed": False}]


def test_what_maintenance_would_do_is_told_with_who_holds_it_back_and_changes_nothing(
    rig: Rig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(12):
        rig.work()
    rig.file.write_text(rig.file.read_text() + "retention: {log_days: 1}\n")
    leases_of(open_pipeline(rig.file, None)).take("backup", HolderToken("restic"), start=Txn(4))
    before = {path: path.stat().st_mtime_ns for path in rig.folder.rglob("*")}
    later_ns = time.time_ns() + 10 * 86_400 * 10**9
    monkeypatch.setattr("tidemark.app.maintenance.time", SimpleNamespace(time_ns=lambda: later_ns))
    plan = told(rig, "/maintenance")
    assert {path: path.stat().st_mtime_ns for path in rig.folder.rglob("*")} == before
    assert plan["since"] == 1
    held = [(one["what"], one["shard"], one["held_by"]) for one in plan["left"] if one["held_by"]]
    assert held, json.dumps(plan)
    assert all("points" in shard for _, shard, _ in held)


def test_a_source_that_this_server_has_no_credentials_for_is_not_asked(
    rig: Rig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig.work()
    monkeypatch.setattr("tidemark.airflow.pages.answers.is_asked", lambda deployment: False)
    monkeypatch.setattr(
        "tidemark.sources.files.source.FileSource.replayable",
        lambda *args, **more: pytest.fail("the source was asked"),
    )
    assert told(rig, "/maintenance")["warnings"] == []


def test_the_sample_of_a_red_replay_is_for_who_may_edit_the_dag_and_nothing_masked_is_in_it(
    rig: Rig,  # noqa: F811
) -> None:
    rig.work()
    works = open_pipeline(rig.file, None).pipeline
    keys = [{"shard": "points", "key": {"id": "7", "value": "since masked"}, "what": "value"}]
    keys.append({"shard": "points", "key": {"id": "8", "value": "***0123abcd"}, "what": "value"})

    def replayed(token: str, verdict: str) -> None:
        detail = {"verdict": verdict, "finding": "", "run": token}
        note(works, Event.VERIFIED, txn=Txn(1), token=WriterToken(token), detail=detail)

    replayed("a", "differs")
    detail = {"keys": json.dumps(keys), "run": "a"}
    note(works, Event.SAMPLED, txn=Txn(1), token=WriterToken("a"), detail=detail)
    address = "/api/pipelines/mine/transactions/1"
    shown = rig.client.get(address, headers=as_user("eve"))
    assert [list(one["key"].values()) for one in shown.json()["sample"]] == [
        ["7", "***"],
        ["8", "***0123abcd"],
    ]
    hidden = rig.client.get(address, headers=as_user("ann"))
    assert (hidden.json()["sample"], hidden.json()["sampled"]) == ([], 2)
    assert '"7"' not in hidden.text
    for answer in (shown, hidden):
        assert "since masked" not in answer.text
        assert "0123abcd" not in json.dumps(answer.json()["journal"])
    replayed("b", "identical")
    assert rig.client.get(address, headers=as_user("eve")).json()["sampled"] == 0
