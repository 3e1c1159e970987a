"""Maintenance of a state whose process is killed in the middle: nothing lost, all finished."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.maintenance.shop import FED, PUBLISHED, SHARD, Shop, expected
from tests.maintenance.state_process import keep_in_shape
from tests.support import ROOT
from tests.support.copies import at_home
from tidemark.app.views import View
from tidemark.core.publish import Published
from tidemark.pipeline.publish import verify_state

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SECONDS_MAX = 600


def data_files(state: Path) -> set[str]:
    """Folders may vanish meanwhile, which a walk passes over, and a glob does not."""
    found = ((Path(folder).name, name) for folder, _, names in os.walk(state) for name in names)
    return {name for folder, name in found if folder != "_delta_log" and name.endswith(".parquet")}


def is_merging(state: Path, before: set[str]) -> bool:
    """A merged file is being written, or is there and not committed yet."""
    return bool(data_files(state) - before)


def is_vacuuming(state: Path, before: set[str]) -> bool:
    """The first old file is gone."""
    return bool(before - data_files(state))


def test_p3_a_state_whose_maintenance_is_killed_is_whole_and_the_next_one_finishes(
    fed_shop: Path, spark: SparkSession, tmp_path: Path
) -> None:
    """Invariants 12 and 15, with SIGKILL to the process while files are merged, then while old ones are
    deleted. Every single step is in `tests/delta/test_compaction_of_states.py`."""
    root = tmp_path / "shop"
    shutil.copytree(fed_shop, root)
    at_home(root)
    shop = Shop(spark, root)
    for moment in (is_merging, is_vacuuming):
        kill_at(moment, shop, tmp_path / "messages")
        assert shop.rows(View.STATE) == expected(PUBLISHED)
        assert shop.rows(View.FRESH) == expected(FED)

    keep_in_shape(root)
    verify_state(shop.deployment.control, shop.deployment.state(), SHARD)
    assert shop.rows(View.STATE) == expected(PUBLISHED)
    state = shop.folder / "state"
    active = {Path(uri).name for uri in DeltaTable(str(state)).file_uris()}
    assert data_files(state) == active, "nothing is left of what was replaced or begun"
    assert len(active) == 1
    assert isinstance(shop.publish(), Published)
    assert shop.rows(View.STATE) == expected(FED)


def kill_at(moment: Callable[[Path, set[str]], bool], shop: Shop, messages: Path) -> None:
    """Start the maintenance, and kill it when it is there."""
    state = shop.folder / "state"
    before = data_files(state)
    with messages.open("w") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.maintenance.state_process", str(shop.root)],
            cwd=ROOT, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while not moment(state, before):
            # One that has ended may have been there since we looked.
            ended = process.poll() is not None and not moment(state, before)
            assert not ended, messages.read_text()[-2000:]
            assert time.monotonic() < deadline, "the moment never came"
            time.sleep(0.001)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
