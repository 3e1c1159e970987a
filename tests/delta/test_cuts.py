"""The table of cuts in a warehouse: what it adds to a publish, and how it heals."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from typer.testing import CliRunner

from tests.support.keyed_log import SHARD, Change, KeyedLog
from tidemark.cli.app import app
from tidemark.core.errors import InvariantViolation
from tidemark.core.history import HistoryLost
from tidemark.core.ids import Txn
from tidemark.core.publish import VERSION_NONE
from tidemark.delta.control import DeltaControl
from tidemark.delta.head import damaged_entries, set_aside, tables_below
from tidemark.delta.state_maintenance import DeltaStateKeeper, MaintainedState
from tidemark.delta.state_status import same_rows_version
from tidemark.delta.store import Store
from tidemark.pipeline.checkpoint import advance_cut, cuts_of, renew_cut

DOCUMENT = Path(__file__).parents[2] / "docs" / "reading.md"
PUBLISHES = 30


def published(log: KeyedLog, value: str) -> int:
    """Append and publish one transaction, and cut; the version."""
    log.append(Change(("k", 1), value, log.txn), Change(("new", log.txn), value, log.txn))
    version = log.publish().version
    advance_cut(log.control, [SHARD])
    return version


def reopened(log: KeyedLog) -> DeltaControl:
    return DeltaControl(str(log.root), "p")


def test_a_cut_costs_a_publish_one_commit_however_many_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts: list[str] = []

    def count(name: str) -> None:
        put = getattr(Store, name)

        def counted(self: Store, path: str, data: bytes) -> Any:
            puts.append(f"{self.uri}/{path}")
            return put(self, path, data)

        monkeypatch.setattr(Store, name, counted)

    count("put_synced")
    count("put_if_absent")
    log = KeyedLog(tmp_path)
    costs, versions = [], {}
    for number in range(1, PUBLISHES + 1):
        log.append(Change(("k", 1), f"{number}", log.txn))
        versions[number] = {SHARD: log.publish().version}
        puts.clear()
        assert advance_cut(log.control, [SHARD]) == number
        costs.append(len([one for one in puts if "/_control/cuts/" in one]))
        assert len(puts) == costs[-1], "nothing else is written"
    assert min(costs) >= 2, "the file of rows and the log's entry"
    # Now and then files are merged and the log gets a checkpoint, as in every control table.
    assert sum(costs[-10:]) <= sum(costs[:10]) + 2
    assert dict(cuts_of(reopened(log), last=PUBLISHES)) == versions


def test_a_table_of_cuts_that_is_gone_or_set_back_is_made_up_for_by_the_next_publish(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path)
    place = tmp_path / "p" / "_control" / "cuts"
    published(log, "a")
    shutil.copytree(place, tmp_path / "copy")
    second = published(log, "b")
    shutil.rmtree(place)
    (tmp_path / "copy").rename(place)
    control = reopened(log)
    assert cuts_of(control)[0][0] == 1
    assert advance_cut(control, [SHARD]) == 2
    assert cuts_of(control)[0] == (2, {SHARD: second})
    shutil.rmtree(place)
    control = reopened(log)
    assert cuts_of(control) == []
    assert advance_cut(control, [SHARD]) == 2
    assert cuts_of(reopened(log)) == [(2, {SHARD: second})]


def test_regression_a_damaged_entry_of_the_cuts_is_set_aside_by_a_recovery(tmp_path: Path) -> None:
    """It is named with the command that mends it, and cuts are made again."""
    log = KeyedLog(tmp_path)
    versions = [published(log, value) for value in ("a", "b")]
    home = str(tmp_path / "p")
    entries = sorted((tmp_path / "p" / "_control" / "cuts" / "_delta_log").glob("*.json"))
    entries[-1].write_bytes(b"")
    with pytest.raises(InvariantViolation, match=r"_control/cuts is lost.*`tidemark recover PIPELINE`"):
        advance_cut(reopened(log), [SHARD])
    assert [one.table for one in damaged_entries(home)] == ["_control/cuts"]
    set_aside(home, damaged_entries(home))
    assert advance_cut(reopened(log), [SHARD]) == 2
    assert cuts_of(reopened(log))[0] == (2, {SHARD: versions[1]})


def test_every_table_of_a_pipeline_is_looked_at_for_damage(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path)
    published(log, "a")
    control = log.control
    below = {table.uri.removeprefix(f"{control.root}/") for table in control.tables}
    others = {f"{SHARD}/{name}" for name in ("log", "state", "tombstones")}
    assert below | others == set(tables_below(control.root))


def test_a_cut_of_a_transaction_that_the_history_has_not_stops_whoever_publishes(tmp_path: Path) -> None:
    log, other = KeyedLog(tmp_path / "one"), KeyedLog(tmp_path / "other")
    for one in (log, other, other):
        published(one, "a")
    place, others = (tmp_path / root / "p" / "_control" / "cuts" for root in ("one", "other"))
    shutil.rmtree(place)
    others.rename(place)
    with pytest.raises(HistoryLost, match="the newest cut"):
        advance_cut(reopened(log), [SHARD])


def test_a_state_that_was_compacted_and_cleaned_up_is_named_by_a_version_that_is_still_there(
    tmp_path: Path,
) -> None:
    log = KeyedLog(tmp_path)
    last = [published(log, value) for value in ("a", "b", "c")][-1]
    keeper = DeltaStateKeeper("p", {SHARD: MaintainedState(log.spec.uri, history_days=0)})
    keeper.merge(SHARD, tombstones=VERSION_NONE)
    expected = pl.read_delta(log.spec.state).sort("a", "b").rows()
    renew_cut(log.control, SHARD, lambda version: same_rows_version(log.spec.state, version))
    (newest, *_) = cuts_of(reopened(log))
    assert newest[0] == 3
    assert newest[1][SHARD] > last
    # What the publish's own version needs goes; the cut's stays.
    keeper.vacuum(SHARD, tombstones=VERSION_NONE)
    with pytest.raises(Exception, match=r"No such file|not found"):
        pl.read_delta(log.spec.state, version=last)
    assert pl.read_delta(log.spec.state, version=newest[1][SHARD]).sort("a", "b").rows() == expected
    assert advance_cut(log.control, [SHARD]) == Txn(3)


def test_the_command_lists_cuts_and_finds_the_one_below_a_transaction(tmp_path: Path) -> None:
    log = KeyedLog(tmp_path / "wh")
    versions = [published(log, value) for value in ("a", "b", "c")]
    (tmp_path / "in").mkdir()
    file = tmp_path / "p.yaml"
    file.write_text(
        "name: p\nsource: {type: files, path: in, format: json}\nwarehouse: wh\n"
        "shards: [{name: t, schema: 'a STRING, b BIGINT, v STRING, s BIGINT', keys: [a, b]}]\n"
    )

    def told(*words: str) -> list[tuple[int, dict[str, int]]]:
        done = CliRunner().invoke(app, ["cuts", str(file), *words, "--json"], catch_exceptions=False)
        return [(one["txn"], one["versions"]) for one in json.loads(done.output)]

    assert told() == [(txn, {SHARD: versions[txn - 1]}) for txn in (3, 2, 1)]
    assert told("--as-of", "2") == [(2, {SHARD: versions[1]})]
    assert told("--last", "1") == [(3, {SHARD: versions[2]})]
    shown = CliRunner().invoke(app, ["cuts", str(file)], catch_exceptions=False).output
    assert f"t {versions[2]}" in shown


def test_the_documented_question_for_the_versions_of_a_cut_is_right_in_duckdb(tmp_path: Path) -> None:
    """Its extension for Delta is not there in tests, so it gets the table's rows by another way."""
    log = KeyedLog(tmp_path)
    versions = [published(log, value) for value in ("a", "b", "c")]
    rows = pl.read_delta(str(tmp_path / "p" / "_control" / "cuts"))
    (asked,) = re.findall(r"^SELECT key, arg_max.*;$", DOCUMENT.read_text(), re.MULTILINE)
    table = duckdb.from_arrow(rows.to_arrow())
    for upper, version in ((17, versions[2]), (2, versions[1])):
        question = re.sub(r"delta_scan\([^)]*\)", "cuts", asked).replace("<= 17", f"<= {upper}")
        assert table.query("cuts", question).fetchall() == [(SHARD, str(version))]
