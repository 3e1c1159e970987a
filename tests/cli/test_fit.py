"""A pipeline file that no longer fits its warehouse is told by `check`, `run` and `status`, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from bench.start import done
from tidemark.cli.app import app
from tidemark.core.shape import Misfit

Edit = Callable[[str, str], None]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a pipeline that has one transaction, and nothing new to read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("tidemark.spark.session.build_session", no_spark)
    return done(tmp_path)


def no_spark(*args: object, **kwargs: object) -> None:
    raise AssertionError("Spark was started")


def tree(folder: Path) -> dict[str, int]:
    """What is durable; locks and caches are not."""
    files = [path for path in (folder / ".tidemark").rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path): path.stat().st_mtime_ns for path in files if "_index" not in path.parts}


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize(
    ("before", "after", "fact"),
    [
        ("id BIGINT", "id STRING", "column 'id' is recorded as BIGINT, and the pipeline file says STRING"),
        ("id BIGINT NOT NULL, keys: [id]", "'id BIGINT, at INT', keys: [id], sequence_by: at",
         "sequence_by is recorded as none, and the pipeline file says at"),
        ("id BIGINT NOT NULL, keys: [id]", "'id BIGINT, k INT', keys: [k]",
         "keys is recorded as [id], and the pipeline file says [k]"),
    ],
)  # fmt: skip
def test_c1_c2_c3_c5_what_does_not_fit_is_told_without_new_input_and_changes_nothing(
    file: Path, before: str, after: str, fact: str
) -> None:
    was, there = file.read_text(), tree(file.parent)
    assert before in was
    file.write_text(was.replace(before, after))
    checked = call("check", str(file))
    assert (checked.exit_code, f"shard rows: {fact}" in checked.output) == (2, True), checked.output
    told = json.loads(call("status", str(file), "--json").output)
    assert [fact in one["why"] for one in told["blocked"]] == [True]
    assert [shard["log_upper"] for shard in told["shards"]] == [2], "the rest is told as ever"
    shown = call("status", str(file), "--fail-if", "blocked")
    assert (shown.exit_code, "blocked: the pipeline file does not fit: shard rows: " in shown.output) == (
        4,
        True,
    )
    for word in ("run", "publish", "rebuild"):
        refused = call(word, str(file)).exception
        assert isinstance(refused, Misfit), (word, refused)
        assert (refused.fact, "restore the recorded shape" in refused.hint) == (f"shard rows: {fact}", True)
    assert tree(file.parent) == there
    file.write_text(was)
    assert [call(word, str(file)).exit_code for word in ("check", "run")] == [0, 0]
    assert json.loads(call("status", str(file), "--json").output)["blocked"] == []


def test_c4_a_renamed_shard_is_told_by_name_and_goes_on_by_a_higher_generation(file: Path) -> None:
    was, there = file.read_text(), tree(file.parent)
    file.write_text(was.replace("name: rows", "name: clients"))
    fact = "shard rows has rows up to transaction 1, but is not in the pipeline file"
    checked = call("check", str(file))
    assert (checked.exit_code, fact in checked.output) == (2, True), checked.output
    assert getattr(call("run", str(file)).exception, "fact", "") == fact
    told = json.loads(call("status", str(file), "--json").output)
    assert [(one["shard"], one["left_out"]) for one in told["shards"]] == [("clients", False), ("rows", True)]
    assert tree(file.parent) == there
    file.write_text(file.read_text() + "generation: 1\n")
    still = "shard rows is not in the pipeline file and stays at transaction 1"
    proposed = "generation 0 is in charge, and the file proposes 1: see `tidemark generation plan`"
    assert json.loads(call("check", str(file), "--json").output)["pipelines"][0]["compared"] == [proposed]
    ran = call("run", str(file))
    assert (ran.exit_code, proposed in ran.output, still in ran.output) == (0, True, False), ran.output
    started = call("generation", "start", str(file), "--from-now", "--reason", "another name")
    promoted = call("generation", "promote", str(file))
    assert (started.exit_code, promoted.exit_code) == (0, 0), (started.output, promoted.output)
    assert json.loads(call("check", str(file), "--json").output)["pipelines"][0]["compared"] == [
        "the next run creates shard clients", still,
    ]  # fmt: skip
    for _ in range(2):
        ran = call("run", str(file))
        assert (ran.exit_code, still in ran.output) == (0, True), ran.output
    line = next(one for one in call("status", str(file)).output.splitlines() if one.startswith("rows"))
    assert line.split() == ["rows", "1", "1", "0", "not", "in", "the", "pipeline", "file"]


def test_check_tells_what_the_next_run_adds(file: Path) -> None:
    there = tree(file.parent)
    file.write_text(file.read_text().replace("id BIGINT NOT NULL", "'id BIGINT, more INT'"))
    checked = call("check", str(file))
    assert (checked.exit_code, "the next run adds more to shard rows" in checked.output) == (0, True)
    assert tree(file.parent) == there


def test_a_warehouse_that_cant_be_read_is_no_fault_of_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "nowhere"}
    for name, value in {**settings, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", "s3://nobody/warehouse")
    checked = call("check", str(file))
    assert (checked.exit_code, "not compared with the warehouse: " in checked.output) == (0, True)
