"""`tidemark recover`: its plan for people and machines, and what it does with --yes, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.delta.test_power_cut import files, newest, work
from tests.support.light import SHARD
from tidemark.cli.app import app
from tidemark.cli.doctor import check_address
from tidemark.core.errors import InvalidUsage, InvariantViolation

PIPELINE = """\
name: race
warehouse: wh
source: {type: files, path: in, format: json, settle_seconds: 0}
shards:
  - {name: points, schema: 'id BIGINT NOT NULL, value STRING', keys: [id]}
"""
LOG = f"{SHARD}/log"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "race.yaml").write_text(PIPELINE)
    for number in (1, 2):
        work(tmp_path, number)
    return tmp_path


def said(*options: str) -> str:
    result = CliRunner().invoke(app, ["recover", "race.yaml", *options])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def told(*options: str) -> Any:
    return json.loads(said(*options, "--json"))


def test_where_nothing_is_lost_it_says_so(root: Path) -> None:
    before = files(root)
    assert "nothing shows a loss; there is nothing to recover" in said()
    done = told("--yes")
    assert (told()["needed"], done["changed"], done["epoch"]) == (False, False, 0)
    assert "there was nothing to recover" in (yes := said("--yes"))
    assert "is recovered" not in yes
    assert files(root) == before


def test_a_stop_at_a_damaged_entry_names_the_command_that_goes_on(root: Path) -> None:
    newest(root, "_control/history").write_bytes(b"")
    with pytest.raises(InvariantViolation, match="`tidemark recover PIPELINE` sets it aside"):
        work(root, 3)


def test_the_plan_names_what_proves_the_loss_and_what_will_be_done(root: Path) -> None:
    for _ in range(2):
        newest(root, "_control/history").unlink()
    before = files(root)
    plan = told()
    assert (plan["needed"], plan["epoch"], plan["lost"], plan["next_txn"]) == (True, 1, [2], 3)
    assert "the newest checkpoint has transaction 2" in plan["proven_by"]
    shown = said()
    assert "epoch 1 begins" in shown
    assert "transactions 2: lost; the next run binds again what they had read" in shown
    assert "nothing was changed; --yes does it" in shown
    assert files(root) == before


def test_a_damaged_entry_is_set_aside_and_its_log_takes_in_what_is_sealed(root: Path) -> None:
    newest(root, LOG).write_bytes(b"")
    [entry] = told()["entries"]
    assert (entry["table"], entry["why"]) == (LOG, "it is empty")
    assert f"entry {entry['version']} of the log of {LOG} is set aside: it is empty" in said()
    done = told("--yes")
    assert (done["changed"], done["epoch"], done["logs"], done["lost"]) == (True, 0, {SHARD: [2]}, {})
    work(root, 3)


def test_parts_that_are_gone_keep_their_log_behind_and_the_way_out_is_named(root: Path) -> None:
    newest(root, LOG).unlink()
    for part in (root / "wh" / "race" / SHARD / "log").glob("_txn-*2/*/*.parquet"):
        part.unlink()
    assert told()["damaged"] == {SHARD: [2]}
    result = CliRunner().invoke(app, ["recover", "race.yaml", "--yes"])
    assert result.exit_code == 3
    assert "`tidemark replay race --from 2 --to 2 --mode repair`, then recover again" in result.output


def test_status_names_the_outside_witness_and_a_recovery(root: Path) -> None:
    def status(*options: str) -> str:
        return CliRunner().invoke(app, ["status", "race.yaml", *options]).output

    assert "outside witness: none; a restore of all tables together can't be noticed" in status()
    told("--yes", "--restored")
    assert "epoch 1: the history was recovered" in status()
    assert (json.loads(status("--json"))["epoch"], json.loads(status("--json"))["witness"]) == (1, "")


def test_a_warehouse_that_was_put_back_as_a_whole_gets_an_epoch_when_asked_for(root: Path) -> None:
    assert "epoch 1 begins" in said("--restored")
    assert told("--yes", "--restored")["epoch"] == 1
    work(root, 3)
    assert told()["needed"] is False


def test_a_copied_warehouse_is_named_and_goes_on_only_once_it_is_adopted(root: Path) -> None:
    (root / "wh").rename(root / "copy")
    (root / "wh").symlink_to(root / "copy")  # The same path leads to another place.
    before = files(root)
    fact = f"this warehouse was made at {root}/wh/race and is opened at {root}/copy/race"
    with pytest.raises(InvalidUsage, match=fact):
        work(root, 3)
    status = CliRunner().invoke(app, ["status", "race.yaml", "--fail-if", "blocked"])
    assert (status.exit_code, "blocked: the warehouse is a copy" in status.output) == (4, True)
    check = check_address(str(root / "wh"))
    assert (check.ok, check.found.startswith(fact)) == (False, True)
    assert "goes on here only with --adopt" in said()
    assert told()["copied"].startswith(fact)
    assert CliRunner().invoke(app, ["recover", "race.yaml", "--yes"]).exit_code != 0
    assert files(root) == before
    assert "this address is adopted" in said("--adopt")
    done = told("--yes", "--adopt")
    assert (done["changed"], done["epoch"], done["lost"]) == (True, 1, {})
    work(root, 3)
    assert check_address(str(root / "wh")).found == "as recorded by 1 pipelines"
