"""Lineage by OpenLineage's own classes, its client and Airflow's provider. The control plane is real; no
Spark and no Airflow run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attr
import pytest
from airflow.providers.openlineage import conf
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from jsonschema import Draft202012Validator, FormatChecker
from openlineage.client.facet_v2 import BaseFacet
from openlineage.client.serde import Serde
from referencing import Registry, Resource

from tests.airflow.test_pages_api import HOSTILE, SECRET, loaded
from tests.support.waiting import SECONDS_MAX
from tidemark.airflow.operators import CheckpointOperator, lineage_for_provider
from tidemark.app import lineage
from tidemark.app.deployment import Deployment
from tidemark.app.lineage import Place, emitted, events_of
from tidemark.app.tasks import open_pipeline
from tidemark.config import PipelineConfig
from tidemark.core.binding import Binding, Configuration, Owner
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate
from tidemark.core.ids import Frontier, ShardId, Txn, WriterToken
from tidemark.core.ledger import Event
from tidemark.core.seal import Decision, Part, Seal, Sealed, ShardParts
from tidemark.pipeline.context import Attempt, note

pytestmark = pytest.mark.airflow

BEGUN = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return loaded(tmp_path_factory.mktemp("lineage"), "shop")


@pytest.fixture
def deployment(file: Path) -> Deployment:
    return open_pipeline(file, None)


def seals_of(deployment: Deployment) -> list[Seal]:
    seals = deployment.control.seals
    return list(seals.read(1, seals.head().upper))


def event(deployment: Deployment, **more: Any) -> Any:
    """The last event of a run, as it is sent."""
    return json.loads(
        Serde.to_json(events_of(deployment, "r", seals_of(deployment), begun=BEGUN, **more)[-1])
    )


def facets_in(value: Any) -> list[Any]:
    """Every facet of an event, wherever it is."""
    if isinstance(value, BaseFacet):
        return [value]
    if isinstance(value, list | tuple):
        return [one for item in value for one in facets_in(item)]
    if isinstance(value, dict):
        return facets_in(list(value.values()))
    return (
        facets_in([getattr(value, one.name) for one in attr.fields(type(value))])
        if attr.has(type(value))
        else []
    )


def test_an_event_has_the_folder_that_was_read_and_the_tables_that_were_written(
    deployment: Deployment, file: Path
) -> None:
    told = event(deployment)
    (read,) = told["inputs"]
    landing = str(file.parent / "landing")
    assert (read["namespace"], read["name"]) == ("file", landing)
    counted = read["inputFacets"]["inputStatistics"]
    size = sum((file.parent / "landing" / f"{number}.json").stat().st_size for number in (1, 2))
    assert (counted["rowCount"], counted["fileCount"], counted["size"]) == (2, 2, size)
    (written,) = told["outputs"]
    assert written["name"] == str(file.parent / "warehouse" / "shop" / "points" / "log")
    log = deployment.control.log(ShardId("points"))
    assert written["facets"]["version"]["datasetVersion"] == str(log.head().version)
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert [one["name"] for one in written["facets"]["schema"]["fields"]] == ["id", "value"]
    origin = written["facets"]["columnLineage"]["fields"]["value"]["inputFields"][0]
    assert (origin["name"], origin["field"]) == (landing, "value")
    assert origin["transformations"] == [{"type": "DIRECT", "subtype": "IDENTITY"}]
    assert (told["job"]["name"], told["eventType"]) == ("tidemark.shop", "COMPLETE")
    assert SECRET not in json.dumps(told), "no value of a row"


def test_the_gates_verdicts_are_assertions_with_what_was_not_met(deployment: Deployment) -> None:
    (read,) = event(deployment)["inputs"]
    told = read["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert [(one["assertion"], one["success"], one["name"]) for one in told] == [
        ("digests_identical", True, "transaction 1"),
        ("digests_identical", True, "transaction 2"),
    ]
    seal = seals_of(deployment)[0]
    detail = {"verdict": "identical", "finding": "", "expectations": "3", "warned": json.dumps(["id is odd"])}
    judged = replace(deployment.pipeline, control=deployment.control)
    note(judged, Event.JUDGED, txn=Txn(1), token=seal.token, detail=detail)
    told = list(lineage.assertions_of(deployment, seal))
    assert [(one["assertion"], one["success"]) for one in told] == [
        ("digests_identical", True), ("expectations_met", False), ("expectation", False),
    ]  # fmt: skip
    assert (told[1]["expected"], told[1]["actual"]) == ("3", "2")
    assert (told[2]["severity"], told[2]["description"]) == ("warn", "id is odd")


def test_every_facet_is_one_of_openlineages_own_and_says_where_its_schema_is(deployment: Deployment) -> None:
    events = events_of(deployment, "r", seals_of(deployment), begun=BEGUN, error="it broke")
    assert [one.eventType.value for one in events] == ["START", "FAIL"]
    assert events[0].run.runId == events[1].run.runId
    found = [facet for one in events for facet in facets_in(one)]
    assert {type(one).__module__.split(".")[0] for one in found} == {"openlineage"}
    for one in found:
        assert one._schemaURL.startswith("https://openlineage.io/spec/facets/"), one
        assert one._producer == lineage.PRODUCER, one
    assert len(found) >= 9


def schemas() -> dict[str, Any]:
    """OpenLineage's schemas by their ids, from the folder `spec` of a checkout of its repository, which
    `TIDEMARK_TEST_OPENLINEAGE` names: no wheel has them."""
    folder = os.environ.get("TIDEMARK_TEST_OPENLINEAGE")
    if not folder:
        pytest.skip("TIDEMARK_TEST_OPENLINEAGE names no folder with OpenLineage's schemas")
    files = [Path(folder) / "OpenLineage.json", *(Path(folder) / "facets").glob("*.json")]
    return {found["$id"]: found for found in (json.loads(file.read_text()) for file in files)}


def test_every_event_and_facet_is_valid_by_openlineages_own_schema(deployment: Deployment) -> None:
    known = schemas()
    registry = Registry().with_resources((name, Resource.from_contents(one)) for name, one in known.items())

    def wrong(value: Any, schema: str) -> list[str]:
        validator = Draft202012Validator({"$ref": schema}, registry=registry, format_checker=FormatChecker())
        return [error.message for error in validator.iter_errors(value)]

    (core,) = (name for name in known if name.endswith("/OpenLineage.json"))
    sealed, checked = seals_of(deployment), 0
    for more in ({}, {"error": "it broke"}):
        for one in events_of(deployment, "r", sealed, begun=BEGUN, **more):
            told = json.loads(Serde.to_json(one))
            assert wrong(told, core) == []
            assert wrong({**told, "eventTime": 1}, core) != []
            for facet in facets_told(told):
                assert wrong(facet, facet["_schemaURL"]) == [], facet
                checked += 1
    assert checked >= 18


def facets_told(value: Any) -> Iterator[dict[str, Any]]:
    """Every facet of an event as it is sent."""
    if isinstance(value, dict):
        if "_schemaURL" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from facets_told(one)


def test_the_providers_extractor_gets_them_from_the_checkpoint_task(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = CheckpointOperator(task_id="checkpoint", pipeline_file="shop.yaml", pipeline="shop")
    extractor = DefaultExtractor(task)
    assert extractor.extract_on_complete(SimpleNamespace()) is None, "it has not run"
    attempt = Attempt(Owner("first"), WriterToken("w"))
    assert lineage_for_provider(deployment, attempt) is None, "the provider is not configured"
    monkeypatch.setattr(conf, "is_disabled", lambda: False)
    task.lineage = lineage_for_provider(deployment, attempt)
    found = extractor.extract_on_complete(SimpleNamespace())
    assert found is not None
    assert [len(one) for one in (found.inputs, found.outputs)] == [1, 1]
    counted: Any = found.inputs[0].inputFacets["inputStatistics"]
    assert counted.rowCount == 1, "what this run has sealed, and no other"
    monkeypatch.setattr(lineage, "lineage_of", lambda *args: 1 / 0)
    assert lineage_for_provider(deployment, attempt) is None, "lineage stops nothing"


def test_a_run_of_the_command_is_emitted_by_the_clients_own_settings(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sent = tmp_path / "events.ndjson"
    report: Any = SimpleNamespace(decided=[Sealed(seal) for seal in seals_of(deployment)])
    with emitted(deployment, "r") as told:
        told(report)
    assert not sent.exists(), "nothing is configured"
    for name, value in (("TYPE", "file"), ("LOG_FILE_PATH", str(sent)), ("APPEND", "true")):
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    with emitted(deployment, HOSTILE) as told:
        told(report)
    with emitted(deployment, "idle"):
        """Nothing was sealed, so nothing is told."""
    with pytest.raises(Determinate), emitted(deployment, "broken"):
        raise Determinate("the disk is full", hint="make room")
    with pytest.raises(ZeroDivisionError), emitted(deployment, "worse"):
        raise ZeroDivisionError("a value that nobody should see")
    events = [json.loads(line) for line in sent.read_text().splitlines()]
    assert [one["eventType"] for one in events] == ["START", "COMPLETE", *["START", "FAIL"] * 2]
    messages = [
        one["run"]["facets"]["errorMessage"]["message"] for one in events if one["eventType"] == "FAIL"
    ]
    assert messages == ["the disk is full: make room", "ZeroDivisionError"]
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "pigeon")
    with emitted(deployment, "r") as told:
        told(report)
    assert "lineage events are not sent" in caplog.text
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    assert not lineage.is_asked()


def test_datasets_are_named_as_openlineage_names_them() -> None:
    assert Place.of("/lake/in") == Place("file", "/lake/in")
    assert Place.of("file:///lake/in") == Place("file", "/lake/in")
    assert Place.of("s3://bucket/lake/shop") == Place("s3://bucket", "lake/shop")


def told_by(
    monkeypatch: pytest.MonkeyPatch, source: dict[str, Any], upper: dict[str, int], **shard: Any
) -> Any:
    """The lineage of one transaction of another source, with a published state, as it is sent."""
    settings = {"name": "t", "schema": "id BIGINT, v STRING, h STRING", "keys": ["id"], **shard}
    named = {"name": "shop", "source": source, "warehouse": "wh", "shards": [settings]}
    kind = "debezium" if source["type"] == "postgres" else "upsert"
    config = PipelineConfig.model_validate({**named, "envelope": kind})
    binding = Binding(Txn(1), Frontier.of({}), Frontier.of(upper), Owner("r"), Configuration.of("{}"))
    parts = ShardParts((Part("x", 1, 9),), Digest.of([1]))
    seal = Seal(Txn(1), WriterToken("w"), 0, Decision.COMMITTED, Digest.of(range(3)), {ShardId("t"): parts})
    empty = SimpleNamespace(head=lambda: SimpleNamespace(version=4), find=lambda key: [])
    state = SimpleNamespace(version=12, txn=Txn(1))
    monkeypatch.setattr(lineage, "binding_at", lambda pipeline, txn: binding)
    monkeypatch.setattr(lineage, "last_published", lambda control, shard: state)
    works: Any = SimpleNamespace(
        config=config, pipeline=None, control=SimpleNamespace(journal=empty, log=lambda shard: empty),
        shard_uri=lambda shard: f"s3://lake/shop/{shard}",
    )  # fmt: skip
    return json.loads(Serde.to_json(events_of(works, "r", [seal], begun=BEGUN)[-1]))


def test_a_topic_is_the_origin_of_its_columns_but_not_of_headers_and_of_several_none_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = {"type": "kafka", "topics": ["orders", "bills", "idle"], "bootstrap_servers": "a:9092,b:9092"}
    source |= {"headers": {"h": "trace"}}
    told = told_by(monkeypatch, source, {"orders-0": 5, "orders-1": 2})
    assert [(one["namespace"], one["name"]) for one in told["inputs"]] == [("kafka://a:9092", "orders")]
    log, state = told["outputs"]
    assert (log["namespace"], log["name"], state["name"]) == ("s3://lake", "shop/t/log", "shop/t/state")
    assert [one["facets"]["version"]["datasetVersion"] for one in (log, state)] == ["4", "12"]
    fields = state["facets"]["columnLineage"]["fields"]
    assert {name: one["inputFields"][0]["name"] for name, one in fields.items()} == {
        "id": "orders",
        "v": "orders",
    }
    told = told_by(monkeypatch, source, {"orders-0": 5, "bills-0": 1})
    assert [one["name"] for one in told["inputs"]] == ["bills", "orders"]
    assert "columnLineage" not in told["outputs"][1]["facets"]
    assert told["inputs"][0]["inputFacets"]["inputStatistics"].get("rowCount") is None, (
        "not known of it alone"
    )


def test_a_table_is_named_by_its_database_and_nothing_secret_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"type": "postgres", "postgres_conn_id": "shop_db", "slot": "s", "publication": "p"}
    route = {"route": {"table": "public.orders"}}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "postgres://ann:s3cret@db.example:5433/shop")
    told = told_by(monkeypatch, source, {"captured": 1}, **route)
    (read,) = told["inputs"]
    assert (read["namespace"], read["name"]) == ("postgres://db.example:5433", "shop.public.orders")
    origin = told["outputs"][1]["facets"]["columnLineage"]["fields"]["v"]["inputFields"][0]
    assert (origin["name"], origin["field"]) == ("shop.public.orders", "v")
    assert "s3cret" not in json.dumps(told)
    monkeypatch.delenv("AIRFLOW_CONN_SHOP_DB")
    (read,) = told_by(monkeypatch, source, {"captured": 1}, **route)["inputs"]
    assert (read["namespace"], read["name"]) == ("postgres://shop_db", "public.orders")


PROGRAM = """\
import sys
sys.modules["openlineage"] = None
import os
os.environ["OPENLINEAGE_URL"] = "http://localhost:1"
from tidemark.airflow.operators import CheckpointOperator
from tidemark.app import lineage
from tidemark.app.tasks import open_pipeline
CheckpointOperator(task_id="checkpoint", pipeline_file=sys.argv[1], pipeline="shop")
works = open_pipeline(sys.argv[1], None)
seals = works.control.seals
from datetime import UTC, datetime
lineage.emit_run(works, "r", seals.read(1, seals.head().upper), begun=datetime.now(UTC))
print("went on")
"""


def test_dags_are_parsed_and_runs_go_on_without_the_package(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    assert "went on" in done.stdout, done.stderr
    assert "lineage events are not sent" in done.stdout + done.stderr
