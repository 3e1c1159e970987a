"""What `tidemark status` prints of a long backlog."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tidemark.app.deployment import Deployment
from tidemark.app.status import status_of
from tidemark.cli.status import show_status
from tidemark.config import load_pipeline

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
