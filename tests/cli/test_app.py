"""The list of commands: complete, and right about where each command is."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tidemark.app.decisions import released
from tidemark.cli import app as cli
from tidemark.cli.app import MODULES, app, commands_of
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Txn
from tidemark.core.log import CaughtUp, Paused
from tidemark.pipeline.upsert import LogReport

PIPELINE = """\
name: p
source: {type: files, path: in, format: json, settle_seconds: 3600}
shards: [{name: t, schema: id BIGINT, keys: [id]}]
"""


def test_the_list_has_every_command_that_a_module_registers_and_no_other() -> None:
    registered = {(name, module) for module in set(MODULES.values()) for name in commands_of(module)}
    assert registered == set(MODULES.items())


def test_help_lists_every_command() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert all(f" {name} " in shown.output for name in MODULES)


def test_a_command_that_there_is_not_is_refused_with_the_nearest_one() -> None:
    refused = CliRunner().invoke(app, ["stats"])
    assert refused.exit_code == 2
    assert "'status'" in refused.output


def test_no_line_of_help_ends_in_the_middle_of_a_sentence() -> None:
    texts = [command.help for module in set(MODULES.values()) for command in commands_of(module).values()]
    assert all(texts)
    assert not [text for text in texts if "\n" in text.replace("\n\n", "")]


def test_a_run_tells_which_files_it_has_seen_and_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yaml").write_text(PIPELINE)
    (tmp_path / "in").mkdir()
    for number in range(25):
        (tmp_path / "in" / f"{number:02}.json").write_text("{}\n")
    shown = CliRunner().invoke(app, ["run", "p"])
    assert shown.exit_code == 0
    assert "not taken: 07.json, it is younger than 3600 s" in shown.output
    assert "and 5 more files" in shown.output
    found = json.loads(CliRunner().invoke(app, ["run", "p", "--json"]).output)["not_taken"]
    assert (len(found), found["24.json"]) == (25, "it is younger than 3600 s")


@pytest.mark.parametrize("words", [["show", "p", "9"], ["skip", "p", "9", "--reason", "x"]])
def test_a_transaction_that_there_is_not_is_nothing_to_retry(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yaml").write_text(PIPELINE)
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, InvalidUsage)
    assert "transaction 9 is not bound" in str(refused.exception)


def test_where_a_released_log_ends_is_told_in_words() -> None:
    done = LogReport(appended=(Txn(1),), dropped=(), end=CaughtUp(Txn(4)))
    assert released(done).endswith("; it has all transactions up to 3")
    assert released(replace(done, end=Paused(Txn(2), "odd"))).endswith("; it is paused again at 2: odd")


def ended_with(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """The exit code of a command that fails."""
    monkeypatch.setattr("sys.argv", ["tidemark", *words])
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr("gc.set_threshold", lambda _: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_what_the_disk_refuses_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pipelines").write_text("a file where a folder should be")
    assert ended_with(monkeypatch, "init", "p", "--folder", str(tmp_path)) == 1
    assert f"error: {tmp_path / 'pipelines'}: " in capsys.readouterr().err


def test_an_error_is_json_where_json_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended_with(monkeypatch, "status", "nowhere", "--json") == 2
    shown = capsys.readouterr()
    told = json.loads(shown.err)
    assert (shown.out, told["error"], told["exit_code"]) == ("", "no pipeline 'nowhere' in .", 2)
    assert told["what_to_do"].startswith("there are: none")


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        ("show p abc --json", "invalid value for 'TXN': "),
        ("replay p --from 0 --json", "invalid value for '--from': "),
        ("status --json", "missing argument 'PIPELINE'"),
        ("nosuch --json", "no such command 'nosuch'"),
        ("stats --json", "no such command 'stats'. Did you mean 'status'?"),
        ("status p --jsn --json", "no such option: --jsn"),
    ],
)
def test_regression_words_that_are_wrong_are_json_too_where_json_was_asked_for(
    words: str, fact: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended_with(monkeypatch, *words.split()) == 2
    shown = capsys.readouterr()
    told = json.loads(shown.err)
    assert (shown.out, told["exit_code"]) == ("", 2)
    assert told["error"].startswith(fact)
    assert told["what_to_do"].startswith("`tidemark")


def test_a_command_keeps_its_own_exit_code_where_json_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yaml").write_text(PIPELINE)
    assert ended_with(monkeypatch, "check", "--json") == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    (tmp_path / "p.yaml").write_text(PIPELINE + "shads: []\n")
    assert ended_with(monkeypatch, "check", "--json") == 2
    assert not json.loads(capsys.readouterr().out)["ok"]


@pytest.mark.parametrize(
    ("end", "code"), [(typer.Abort(), 1), (typer.Exit(3), 3), (KeyboardInterrupt(), 130)]
)
def test_a_command_that_is_ended_from_within_keeps_its_exit_code(
    end: BaseException, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends() -> None:
        raise end

    monkeypatch.setattr("tidemark.app.workspace.find_files", lambda _: ends())
    assert ended_with(monkeypatch, "check", "--json") == code


def test_regression_a_pipeline_of_two_files_or_of_a_broken_one_is_not_said_not_to_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(PIPELINE)
    for words in (["status", "p"], ["check", "p"]):
        assert ended_with(monkeypatch, *words) == 2
        told = "".join(capsys.readouterr())
        assert "a.yaml: name: " in told
        assert "b.yaml: name: " in told
    (tmp_path / "a.yaml").unlink()
    (tmp_path / "b.yaml").write_text(PIPELINE + "shads: []\n")
    for words in (["status", "p"], ["check", "p"]):
        assert ended_with(monkeypatch, *words) == 2
        assert "b.yaml:4:1: shads: unknown key 'shads'" in "".join(capsys.readouterr())
    assert ended_with(monkeypatch, "status", "q") == 2
    assert "there are: none besides b.yaml, which can't be used" in capsys.readouterr().err
