"""What `tidemark status` prints of a long backlog, and of many shards."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bench.past import filled
from tidemark.app.deployment import Deployment
from tidemark.app.status import SHARDS_BY_CHANCE, SHARDS_LISTED_MAX, status_of
from tidemark.cli.status import show_status
from tidemark.config import load_pipeline
from tidemark.core.ids import QUARANTINE, ShardId
from tidemark.core.status import Status
from tidemark.delta.control import DeltaControl
from tidemark.delta.log import DeltaLog

PIPELINE = """\
name: p
source: {type: files, path: in, format: json, settle_seconds: 0}
shards: [{name: t, schema: id BIGINT NOT NULL, keys: [id]}]
"""


def test_open_transactions_are_told_as_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "p.yaml").write_text(PIPELINE)
    deployment = Deployment(load_pipeline(tmp_path / "p.yaml"), lambda: cast("Any", None))
    found = status_of(deployment, now_seconds=0)
    show_status(replace(found, open=(1, *range(3, 5_003))), now_seconds=0)
    assert "open: 1, 3 to 5002; the next run finishes them first\n" in capsys.readouterr().out


def test_of_many_shards_those_with_work_are_looked_at_and_all_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    total, touched = SHARDS_LISTED_MAX + 14, {f"t{at:05}" for at in range(5)}
    file, root = filled(tmp_path / "p", txns=20, shards=total)
    opened: list[str] = []
    log = DeltaControl.log

    def counted(control: DeltaControl, shard: ShardId) -> DeltaLog:
        opened.append(shard)
        return log(control, shard)

    monkeypatch.setattr(DeltaControl, "log", counted)

    def status(now: float, *, every_shard: bool = False) -> Status:
        deployment = Deployment(load_pipeline(file), lambda: cast("Any", None))
        opened.clear()
        return status_of(deployment, now_seconds=now, asks_source=False, every_shard=every_shard)

    found = status(1)
    names = {one.shard for one in found.shards}
    assert touched <= names
    assert len(names) <= len(touched) + SHARDS_BY_CHANCE
    assert set(opened) <= names | {QUARANTINE}
    assert found.unlisted == total - len(names)
    show_status(found, now_seconds=1)
    assert f"{found.unlisted} other shards have no work; --shards looks at all" in capsys.readouterr().out
    whole = status(1, every_shard=True)
    assert (len(whole.shards), whole.unlisted, whole.blocked) == (total, 0, ())

    # A log that the last transactions touch is checked each time, an idle one by chance or on request.
    shutil.rmtree(f"{root}/t00060/log")
    assert any("t00060" in one.why for one in status(1, every_shard=True).blocked)
    assert any("t00060" in one.why for now in range(60) for one in status(now).blocked)
    shutil.rmtree(f"{root}/t00001/log")
    assert any("t00001" in one.why for one in status(1).blocked)
