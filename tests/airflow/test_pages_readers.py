"""Who reads a pipeline's shards, as its page tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow.test_pages_api import loaded
from tidemark.airflow.pages.answers import pipeline_body
from tidemark.airflow.pages.registry import PipelineDag
from tidemark.app.consume import leases_of
from tidemark.app.tasks import open_pipeline
from tidemark.core.ids import ShardId, Txn
from tidemark.core.lease import HolderToken
from tidemark.core.reading import lease_name

pytestmark = pytest.mark.airflow


def test_a_pipeline_shows_who_reads_how_far_and_who_else_holds_transactions_back(tmp_path: Path) -> None:
    one = PipelineDag("mine", str(loaded(tmp_path, "mine")), None)
    assert (pipeline_body(one)["consumers"], pipeline_body(one)["leases"]) == ([], [])
    leases = leases_of(open_pipeline(one.pipeline_file, None))
    leases.take(lease_name("billing", ShardId("points")), HolderToken("worker-1"), start=Txn(2))
    leases.take("audit", HolderToken("worker-2"), start=Txn(1))
    (consumer,) = pipeline_body(one)["consumers"]
    assert (consumer["consumer"], consumer["shard"], consumer["frontier"]) == ("billing", "points", 2)
    assert (consumer["lag"], consumer["frozen"]) == (1, "")
    assert consumer["reading"] == "worker-1"
    assert [(lease["name"], lease["txn"]) for lease in pipeline_body(one)["leases"]] == [("audit", 1)]
