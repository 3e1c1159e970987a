"""The connections of docs/cluster.md, as `spark-submit` takes them: by Spark's own parser."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, Connection
from pyspark.sql import SparkSession

from tests.support import ROOT
from tidemark.airflow.operators import IngestOperator
from tidemark.app.job import Order

pytestmark = [pytest.mark.spark, pytest.mark.airflow]

GUIDE = (ROOT / "docs" / "cluster.md").read_text()
GIVEN = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)]


def name_of(given: dict[str, Any]) -> str:
    return f"{given['host'].partition(':')[0]}-{given['extra']['deploy-mode']}"


def submitted(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments that the provider calls `spark-submit` with."""
    extra = json.dumps(given["extra"])
    found = Connection(conn_id="c", conn_type=given["conn_type"], host=given["host"], extra=extra)
    commands: list[list[str]] = []

    def send(step: SparkSubmitOperator, context: object) -> None:
        commands.append(step._get_hook()._build_spark_submit_command(step.application))

    monkeypatch.setattr(BaseHook, "get_connection", classmethod(lambda cls, name: found))
    monkeypatch.setattr(SparkSubmitOperator, "execute", send)
    # The provider looks for the Kubernetes client, which is not installed here, and needs none to submit.
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    step = IngestOperator(task_id="ingest", pipeline_file="/lake/shop.yaml", conf=given.get("conf"))
    step.submit({}, Order("/lake/shop.yaml", "run", "token"))  # type: ignore[typeddict-item]
    return commands[0][1:]


@pytest.mark.parametrize("given", GIVEN, ids=map(name_of, GIVEN))
def test_spark_takes_the_arguments_of_the_guide(
    given: dict[str, Any], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = submitted(given, monkeypatch)
    jvm: Any = spark.sparkContext._jvm
    words = jvm.java.util.ArrayList()
    for word in arguments:
        words.add(word)
    environment = jvm.java.util.HashMap()
    environment.put("HADOOP_CONF_DIR", "/etc/hadoop")
    convert = jvm.scala.jdk.javaapi.CollectionConverters.asScala
    empty = jvm.scala.collection.immutable.HashMap()
    parsed = jvm.org.apache.spark.deploy.SparkSubmitArguments(
        convert(words).toSeq(), empty.concat(convert(environment))
    )
    assert (parsed.master(), parsed.deployMode()) == (given["host"], given["extra"]["deploy-mode"])
    assert parsed.isPython()
    on_image = given["host"].startswith("k8s") and given["extra"]["deploy-mode"] == "cluster"
    places = [parsed.primaryResource(), *parsed.jars().split(",")]
    assert all(place.removeprefix("file:").startswith("local:///" if on_image else "/") for place in places)
    for name, value in given.get("conf", {}).items():
        assert parsed.sparkProperties().apply(name) == value
    assert "--pipeline-file=/lake/shop.yaml" in str(parsed.childArgs())
