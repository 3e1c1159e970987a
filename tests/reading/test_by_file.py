"""The public calls that read take a pipeline by its file, by its name, or as it was loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidemark
from tidemark.app.workspace import open_deployment

PIPELINE = """\
name: shop
source: {type: files, path: in, format: json, settle_seconds: 0}
warehouse: wh
shards:
- {name: orders, schema: "id BIGINT NOT NULL, v STRING", keys: [id]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.yaml").write_text(PIPELINE)
    (tmp_path / "in").mkdir()
    return tmp_path


def test_a_pipeline_is_given_in_any_form(folder: Path) -> None:
    shop = tidemark.load_pipeline("shop")
    for form in (shop, "shop", "shop.yaml", folder / "shop.yaml"):
        opened = open_deployment(form)
        assert opened.config == shop
        assert open_deployment(opened) is opened


@pytest.mark.spark
def test_what_was_run_is_read_and_followed_with_the_session_that_is_given(
    spark: SparkSession, folder: Path
) -> None:
    (folder / "in" / "1.json").write_text('{"id": 1, "v": "a"}\n')
    done = tidemark.run("shop.yaml", spark=spark, publishes=False)
    assert done.report.checkpoint == 1
    found = tidemark.read_together("shop", spark=spark)
    assert [row.asDict() for row in found.rows["orders"].collect()] == [{"id": 1, "v": "a"}]
    with tidemark.Consumer("shop", "orders", "billing", spark=spark) as billing:
        assert [batch.txn for batch in billing.listen()] == [found.txn] == [1]


def test_a_view_that_is_none_is_refused_before_spark_is_asked_for(folder: Path) -> None:
    with pytest.raises(tidemark.InvalidUsage, match="no view 'frsh': use state, fresh, log"):
        tidemark.read("shop", "orders", view="frsh")
