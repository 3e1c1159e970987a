"""Killed at every durable step, under a load: the tables end as the database, and no change is let go early.

Processes are real and die by SIGKILL; database, slot, captured files and control tables are real. The rows
are read without an engine, so that a hundred processes are cheap (`tests/postgres/light.py`).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.crash.steps import AFTER, BEFORE
from tests.postgres.rig import Rig
from tests.postgres.worker import CONFIG, TRACE, kind_of, pipeline_at
from tidemark.core.ids import Txn
from tidemark.pipeline.context import binding_at
from tidemark.sources.postgres.changes import WAL

pytestmark = [pytest.mark.server, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
TABLES = ("left", "right")
SCHEMA = "id BIGINT NOT NULL, value STRING"
NOWHERE = "nowhere"


class Load:
    """Small transactions over both tables, which keep one sum of ids, so that a torn one would show."""

    def __init__(self, works: Rig) -> None:
        self._works = works
        self._random = random.Random(7)
        self.committed: list[tuple[int, int]] = []
        """For each transaction, log positions just before and after its commit."""

    def more(self, transactions: int = 1) -> None:
        for _ in range(transactions):
            key, other = self._random.randrange(20), self._random.randrange(1000)
            before = self._works.log_end()
            self._works.transaction(
                f"INSERT INTO \"left\" VALUES ({key}, 'v{other}')"
                " ON CONFLICT (id) DO UPDATE SET value = excluded.value",
                f'DELETE FROM "right" WHERE id = {(key + 7) % 20}',
                f"INSERT INTO \"right\" VALUES ({key}, 'w{other}')"
                " ON CONFLICT (id) DO UPDATE SET value = excluded.value",
                f'UPDATE "left" SET id = {1000 + other} WHERE id = {(key + 3) % 20}'
                f' AND NOT EXISTS (SELECT FROM "left" WHERE id = {1000 + other})',
            )
            self._works.sql(f"INSERT INTO foreigners VALUES ('{other}')")
            self.committed.append((before, self._works.log_end()))


@contextmanager
def workers(root: Path) -> Iterator[Callable[[str, str], int]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.postgres.worker", str(root)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT / 'include'}:{ROOT}"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None

    def start(when: str, kind: str) -> int:
        process.stdin.write(json.dumps({"when": when, "kind": kind}) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    try:
        yield start
    finally:
        process.stdin.close()
        process.wait(60)


def table_of(works: Rig, shard: str) -> list[tuple[int, str]]:
    """The rows that a shard's log comes to, worked out here."""
    uris = DeltaTable(f"{works.root}/wh/p/{shard}/log").file_uris()
    rows = [row for uri in uris for row in pq.ParquetFile(uri).read().to_pylist()]
    found: dict[int, str] = {}
    for row in sorted(rows, key=lambda row: (row["_txn"], row["_offset"], row["_ordinal"])):
        found.pop(row["id"], None)
        if row["_op"] == "U":
            found[row["id"]] = row["value"]
    return sorted(found.items())


def check_acknowledged(works: Rig, load: Load) -> None:
    """No transaction of the load lies below the slot unless the checkpoint has it."""
    pipeline = pipeline_at(works.root)
    done = pipeline.control.checkpoints.head().upper - 1
    durable = binding_at(pipeline, Txn(done)).upper[WAL] if done else 0
    confirmed = works.slot()[0]
    early = [(before, after) for before, after in load.committed if after <= confirmed and before >= durable]
    assert not early, f"acknowledged {confirmed}, durable {durable}"


def test_p3_killed_at_every_durable_step_the_tables_end_as_the_database_and_the_log_is_released(
    rig: Callable[..., Rig],
) -> None:
    works = rig(settings={"transaction": {"max_records": 5}}, **dict.fromkeys(TABLES, (SCHEMA, ["id"])))
    works.schemas = {f'"{name}"': shape for name, shape in works.schemas.items()}
    works.ready(
        *[f'CREATE TABLE "{name}" (id bigint PRIMARY KEY, value text)' for name in TABLES],
        "CREATE TABLE foreigners (body text)", 'INSERT INTO "left" VALUES (1, \'first\'), (2, \'second\')',
    )  # fmt: skip
    works.schemas = dict.fromkeys(TABLES, (SCHEMA, ["id"]))
    (works.root / CONFIG).write_text(works.config().canonical_json())
    load = Load(works)
    load.more()
    killed: dict[str, int] = {}
    with workers(works.root) as start:
        # The first runs read the tables; each of them is killed too.
        for when in (BEFORE, AFTER):
            assert start(when, "capture a file") == -signal.SIGKILL
        assert start(BEFORE, NOWHERE) == 0
        load.more(3)
        assert start(BEFORE, NOWHERE) == 0
        kinds = dict.fromkeys(map(kind_of, (works.root / TRACE).read_text().splitlines()))
        for kind in kinds:
            for when in (BEFORE, AFTER):
                load.more()
                status = start(when, kind)
                assert status in (0, -signal.SIGKILL)
                killed[kind] = killed.get(kind, 0) + (status != 0)
                check_acknowledged(works, load)
        assert start(BEFORE, NOWHERE) == 0
    check_acknowledged(works, load)
    for name in TABLES:
        assert table_of(works, name) == works.sql(f'SELECT id, value FROM "{name}" ORDER BY id'), name
    every_time = {
        "capture a file", "commit _control/bindings", "stage", "commit _control/seals", "commit left/log",
        "commit right/log", "commit _control/checkpoints", "note the acknowledgement", "advance the slot",
    }  # fmt: skip
    assert {kind for kind, times in killed.items() if times == 2} >= every_time, killed
    # Nothing is kept for us any more: the slot stands behind the last change.
    assert works.slot()[0] > load.committed[-1][0]
