"""`tidemark check`: what a user sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.config.harness import GOOD
from tidemark.cli import definitions

Write = Callable[..., Path]


@pytest.fixture
def run() -> Callable[..., tuple[int, str]]:
    app = typer.Typer()
    app.add_typer(definitions.commands)
    app.command(name="other")(lambda: None)

    def run(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["check", *map(str, arguments)], env={"COLUMNS": "200"})
        return result.exit_code, result.output

    return run


def test_a_good_file_gives_a_summary_and_exit_code_0(
    run: Callable[..., tuple[int, str]], write: Write
) -> None:
    code, output = run(write(add="environments:\n  prod: {warehouse: 's3://lake/x'}\n"))
    assert code == 0
    for said in ("orders", "json files", "in prod", "s3a://lake/x/orders", "every 1"):
        assert said in output
    assert len(output.splitlines()) < 25


def test_a_pipeline_is_found_by_its_name_and_without_a_name_all_are_looked_at(
    run: Callable[..., tuple[int, str]], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write().parent
    write(name="broken.yaml", pairs=[("format: json", "format: jsn")])
    monkeypatch.chdir(folder.parent.parent)
    assert run("orders") == run(folder / "p.yaml")
    code, output = run("broken")
    assert (code, "broken.yaml:5:11" in output, "1 problem in 1 file" in output) == (2, True, True)
    code, output = run()
    assert (code, "broken.yaml:5:11" in output) == (2, True)
    (folder / "broken.yaml").unlink()
    assert run()[0] == 0
    code, output = run("nobody")
    assert (code, "no such file" in output) == (2, True)


def test_every_problem_is_one_line_with_its_place_and_exit_code_2(
    run: Callable[..., tuple[int, str]], write: Write
) -> None:
    file = write(pairs=[("format: json", "format: jsn"), ("[id]", "[id]\n    on_eror: '[red]x[/red]'")])
    code, output = run(file)
    assert code == 2
    assert (
        f"{file}:5:11: source.format: 'jsn' is not 'json', 'csv' or 'parquet': did you mean 'json'?" in output
    )
    assert f"{file}:10:5: shards[0].on_eror: unknown key 'on_eror': did you mean 'on_error'?" in output
    assert "2 problems in 1 file" in output


def test_json_holds_the_problems_or_the_effective_configuration(
    run: Callable[..., tuple[int, str]], write: Write
) -> None:
    code, output = run("--json", write())
    report = json.loads(output)
    assert (code, report["ok"], report["problems"]) == (0, True, [])
    assert report["pipelines"][0]["configuration"]["shards"][0]["keys"] == ["id"]
    code, output = run("--json", write(pairs=[("format: json", "format: jsn")]))
    [problem] = json.loads(output)["problems"]
    assert (code, problem["line"], problem["path"]) == (2, 5, "source.format")


def test_every_environment_is_checked_unless_one_is_asked_for(
    run: Callable[..., tuple[int, str]], write: Write
) -> None:
    file = write(add="environments:\n  dev: {warehouse: lake}\n  prod: {warehouse: '../lake'}\n")
    code, output = run(file)
    assert code == 2
    assert "environments.prod.warehouse: '../lake' contains '..'" in output
    assert run("-e", "dev", file)[0] == 0


def test_regression_an_environment_that_is_set_is_called_by_its_name(
    run: Callable[..., tuple[int, str]], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(add="environments:\n  dev: {warehouse: lake}\n  prod: {warehouse: '/prod'}\n")
    assert [line for line in run(file)[1].splitlines() if line.startswith("in no environment")]
    monkeypatch.setenv("TIDEMARK_ENVIRONMENT", "prod")
    code, output = run(file)
    labelled = [line.split("  ")[0] for line in output.splitlines() if line.startswith("in ")]
    assert (code, labelled) == (0, ["in prod", "in dev"])
    shown = json.loads(run("--json", file)[1])["pipelines"]
    assert [one["environment"] for one in shown] == ["prod", "dev"]
    assert shown[0]["configuration"]["warehouse"] == "/prod"
    code, output = run("--json", write(name="plain.yaml"))
    assert (code, json.loads(output)["pipelines"][0]["environment"]) == (0, None)
    monkeypatch.setenv("TIDEMARK_ENVIRONMENT", "prud")
    code, output = run(file)
    assert (code, "no environment 'prud'" in output) == (2, True)


def test_a_folder_is_checked_whole_and_two_files_may_not_share_a_name(
    run: Callable[..., tuple[int, str]], write: Write
) -> None:
    folder = write(name="a.yaml").parent
    assert run(folder)[0] == 0
    write(GOOD, name="b.yaml")
    code, output = run(folder)
    assert code == 2
    assert "'orders' names a pipeline of" in output
    code, output = run(folder / "missing.yaml")
    assert code == 2
    assert "can't be read, no such file" in output
