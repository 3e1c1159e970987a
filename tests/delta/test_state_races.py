"""Several processes append to one log and publish one state at once, without a lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.delta.publish_racing import changes
from tests.support.keyed_log import SHARD, KeyedLog
from tests.support.s3 import AtomicStore, atomic_store
from tidemark.core.ids import WriterToken
from tidemark.delta.head import read_history
from tidemark.delta.probe import probe_put_if_absent
from tidemark.delta.state import StateTable
from tidemark.pipeline.publish import publish

NAMES = ("a", "b", "c", "d")


def raced(root: str, rounds: int, options: Mapping[str, str]) -> KeyedLog:
    """The log after a race, with what each process has appended to it, by the numbers that it got."""
    started = {
        name: subprocess.Popen(
            [sys.executable, "-m", "tests.delta.publish_racing", root, name, str(rounds)],
            env=os.environ | {"OPTIONS": json.dumps(dict(options))},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in NAMES
    }  # fmt: skip
    said = {name: process.communicate() for name, process in started.items()}
    assert [process.returncode for process in started.values()] == [0] * len(NAMES), said
    log = KeyedLog(root, options=options)
    numbers = {name: [int(line) for line in out.split()] for name, (out, _) in said.items()}
    assert sorted(txn for txns in numbers.values() for txn in txns) == list(
        range(1, len(NAMES) * rounds + 1)
    ), "each number once"
    log.appended = sorted(
        ((change, txn) for name, txns in numbers.items() for at, txn in enumerate(txns)
         for change in changes(name, at)),
        key=lambda one: one[1],
    )  # fmt: skip
    publish(log.control, log.plane, SHARD, token=WriterToken("last"))
    return log


@pytest.mark.slow
def test_four_processes_lose_no_update_and_leave_no_second_row_and_no_file(tmp_path: Path) -> None:
    log = raced(str(tmp_path), 50, {})
    log.check()
    table = StateTable(log.spec.state)
    found = read_history(table.store)
    named = {one.location for one in (*found.head.files.values(), *found.removed)}
    there = {path for path in table.store.listed() if path.endswith(".parquet") and "_delta_log" not in path}
    assert there == named


@pytest.mark.s3
def test_on_an_object_store_four_processes_lose_no_update_and_leave_no_second_row(
    atomic_s3: AtomicStore, tmp_path: Path
) -> None:
    log = raced(f"s3://{atomic_s3.bucket}/{tmp_path.name}", 50, atomic_s3.options)
    log.check()
    assert len(log.appended) == 2 * 4 * 50


@pytest.mark.s3
def test_a_server_that_ignores_conditions_is_refused_by_the_probe(tmp_path: Path) -> None:
    with atomic_store(tmp_path, ignores_conditions=True) as store:
        result = probe_put_if_absent(f"s3://{store.bucket}/tables", store.options, writers=2, rounds=2)
    assert not result.holds
