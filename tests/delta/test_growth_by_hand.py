"""What people ask for of an open transaction works where its records bring new columns, as in a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.deployed import attempt
from tests.support.growing import COLUMNS, INT, Typed, land
from tidemark.app import tasks
from tidemark.cli.app import app
from tidemark.core.replay import Verdict
from tidemark.pipeline import reclock as minting


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three open transactions, of which the last two bring a column each."""
    (tmp_path / "in").mkdir()
    land(tmp_path)
    land(tmp_path, age=INT)
    land(tmp_path, size=INT)
    minting.mint(Typed(tmp_path).pipeline, attempt())
    return tmp_path


def test_regression_a_replay_of_open_transactions_finishes_them_at_once(root: Path) -> None:
    """It answered that it has to be retried."""
    found, _ = tasks.replay_range(Typed(root), attempt(), txn_from=1, txn_to=3, mode="verify")
    assert [(one.txn, one.verdict) for one in found] == [(txn, Verdict.IDENTICAL) for txn in (1, 2, 3)]
    assert Typed(root).recorded() == {**COLUMNS, "age": "INT", "size": "INT"}


def test_regression_accepting_an_open_transaction_works_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.cli.operations.open_deployment", lambda *_: Typed(root))
    for txn in ("1", "2"):
        result = CliRunner().invoke(app, ["accept", "p", txn, "--reason", "looked at", "--json"])
        assert result.exit_code == 0, (result.output, result.exception)
        assert json.loads(result.output)["checkpoint"] == int(txn)
    assert Typed(root).recorded() == {**COLUMNS, "age": "INT"}
