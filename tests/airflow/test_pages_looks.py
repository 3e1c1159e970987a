"""A look at a pipeline that was looked at before reads what is new, and never shows what is no longer so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.test_pages_api import loaded
from tidemark.airflow.pages import answers
from tidemark.airflow.pages.answers import pipeline_body, transaction_body
from tidemark.airflow.pages.registry import PipelineDag
from tidemark.app.tasks import open_pipeline
from tidemark.core.errors import InvalidUsage
from tidemark.delta import ledger

pytestmark = pytest.mark.airflow


@pytest.fixture
def one(tmp_path: Path) -> PipelineDag:
    return PipelineDag("mine", str(loaded(tmp_path, "mine")), None)


def folder(one: PipelineDag) -> Path:
    return Path(one.pipeline_file).parent


def test_the_second_look_reads_nothing_that_the_first_has_read(
    one: PipelineDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    read = ledger.read_file

    def reading(store: Any, file: Any, **more: Any) -> Any:
        opened.append(file)
        return read(store, file, **more)

    monkeypatch.setattr(ledger, "read_file", reading)
    first = pipeline_body(one)
    assert opened
    opened.clear()
    assert {**pipeline_body(one), "at": ""} == {**first, "at": ""}
    assert opened == []


def test_what_is_new_since_is_seen(one: PipelineDag) -> None:
    assert (pipeline_body(one)["waiting"]["pieces"], pipeline_body(one)["sealed"]) == (1, 2)
    (folder(one) / "landing" / "4.json").write_text(json.dumps({"id": 4}) + "\n")
    assert pipeline_body(one)["waiting"]["pieces"] == 2
    control = open_pipeline(one.pipeline_file, None).control
    assert control.seals.head().upper == 3


def test_a_warehouse_that_is_set_back_or_made_anew_is_shown_as_it_is(
    one: PipelineDag, tmp_path: Path
) -> None:
    """A handle follows a table forward only: it would show for ever what is gone."""
    warehouse = folder(one) / "warehouse"
    other = Path(loaded(tmp_path / "other", "mine")).parent / "warehouse"
    first = transaction_body(one, 1)["bound_at"]
    assert pipeline_body(one)["sealed"] == 2
    shutil.move(warehouse, tmp_path / "kept")
    shutil.copytree(other, warehouse)  # As many transactions, by another history.
    second = transaction_body(one, 1)["bound_at"]
    assert (pipeline_body(one)["sealed"], second != first) == (2, True)
    shutil.rmtree(warehouse)
    assert (pipeline_body(one)["sealed"], pipeline_body(one)["waiting"]["pieces"]) == (0, 3)
    shutil.move(tmp_path / "kept", warehouse)
    assert (pipeline_body(one)["sealed"], transaction_body(one, 1)["bound_at"]) == (2, first)


def test_a_pipeline_file_that_has_changed_is_read_again_and_a_broken_one_says_so(one: PipelineDag) -> None:
    pipeline_body(one)
    file = Path(one.pipeline_file)
    text = file.read_text()
    file.write_text(text + "alarms: {behind: 0s}\n")
    assert [alarm["kind"] for alarm in pipeline_body(one)["alarms"]] == ["behind"]
    file.write_text("name: [")
    with pytest.raises(InvalidUsage):
        pipeline_body(one)
    file.write_text(text)
    assert pipeline_body(one)["alarms"] == []


def test_no_more_pipelines_are_kept_than_is_said(one: PipelineDag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "OPEN_MAX", 1)
    pipeline_body(one)
    other = PipelineDag("other", one.pipeline_file, "nowhere")
    pipeline_body(other)
    assert len(answers._open) == 1
    assert pipeline_body(one)["sealed"] == 2
