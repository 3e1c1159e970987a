"""Killed at every durable step, under a load that never stops: the tables end as the database, and no change
is let go early.

Processes are real and die by SIGKILL; database, slot, captured files and control tables are real. The rows
are read without an engine, so that a hundred processes are cheap (`tests/support/light.py`).
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from pyspark.sql import SparkSession

from tests.postgres.worker import CONFIG, TRACE, kind_of, pipeline_at
from tests.support.postgres_pipeline import PAIRS, PAIRS_SCHEMA, Rig, table_of, workers
from tests.support.steps import AFTER, BEFORE
from tests.support.waiting import wait_until
from tidemark.core.ids import Txn
from tidemark.pipeline.context import binding_at
from tidemark.sources.postgres.change_files import WAL

pytestmark = [pytest.mark.server, pytest.mark.slow]
TABLES = ("left", "right")
SHAPES = dict.fromkeys(TABLES, (PAIRS_SCHEMA, ["id"]))
NOWHERE = "nowhere"
SECONDS_BETWEEN = 0.05
TRANSACTIONS_MAX = 100_000
TRUNCATED_AT = (15, 40)
RUNS_LAST = 5
BIG_EVERY = 30
FRAGMENT = "capture a later fragment"


def prepare(works: Rig) -> None:
    """Both tables, one with rows, and a table that nobody takes; truncates are applied."""
    works.schemas = {f'"{name}"': shape for name, shape in SHAPES.items()}
    works.ready(
        *[PAIRS.format(f'"{name}"') for name in TABLES],
        "CREATE TABLE foreigners (body text)", 'INSERT INTO "left" VALUES (1, \'first\'), (2, \'second\')',
    )  # fmt: skip
    works.schemas = SHAPES
    config = works.config(source={**works.config().source.model_dump(), "on_truncate": "apply"})
    (works.root / CONFIG).write_text(config.canonical_json())


class Load:
    """A client that never stops: small transactions over both tables, one row in each by the same key, so
    that a torn one would show; now and then a truncate, or one that takes several files; and rows of a table
    that nobody takes."""

    def __init__(self, works: Rig, *, transactions_max: int = TRANSACTIONS_MAX) -> None:
        self._works, self._transactions_max = works, transactions_max
        self._random = random.Random(7)
        self._enough = Event()
        self._pool = ThreadPoolExecutor(1)
        self.committed: list[tuple[int, int]] = []
        """For each transaction, log positions just before and after its commit."""

    def __enter__(self) -> Load:
        self._running = self._pool.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._enough.set()
        self._running.result()

    def wait(self, transactions: int) -> None:
        """Let so many more be committed."""
        wanted = len(self.committed) + transactions
        wait_until(lambda: len(self.committed) >= wanted or self._running.done(), what="more transactions")

    def _run(self) -> None:
        with self._works.postgres.connect(self._works.database) as db:
            for number in range(self._transactions_max):
                if self._enough.wait(SECONDS_BETWEEN):
                    return
                before = self._works.log_end()
                with db.transaction():
                    for statement in self._statements(number):
                        db.execute(statement)
                db.execute("INSERT INTO foreigners VALUES ('x')")
                self.committed.append((before, self._works.log_end()))

    def _statements(self, number: int) -> Iterator[str]:
        key, other = self._random.randrange(20), self._random.randrange(1000)
        if number in TRUNCATED_AT:
            yield 'TRUNCATE "right"'
        if number % BIG_EVERY == 1:
            yield (
                f"INSERT INTO \"left\" SELECT 5000 + n, repeat('{number} ', 60) FROM generate_series(1, 20) n"
                " ON CONFLICT (id) DO UPDATE SET value = excluded.value"
            )
        yield (
            f"INSERT INTO \"left\" VALUES ({key}, 'v{other}')"
            " ON CONFLICT (id) DO UPDATE SET value = excluded.value"
        )
        yield f'DELETE FROM "right" WHERE id = {(key + 7) % 20}'
        yield (
            f"INSERT INTO \"right\" VALUES ({key}, 'w{other}')"
            " ON CONFLICT (id) DO UPDATE SET value = excluded.value"
        )
        yield (
            f'UPDATE "left" SET id = {1000 + other} WHERE id = {(key + 3) % 20}'
            f' AND NOT EXISTS (SELECT FROM "left" WHERE id = {1000 + other})'
        )


def check_acknowledged(works: Rig, load: Load) -> None:
    """No transaction of the load lies below the slot unless the checkpoint has it."""
    confirmed = works.slot()[0]
    pipeline = pipeline_at(works.root)
    done = pipeline.control.checkpoints.head().upper - 1
    durable = binding_at(pipeline, Txn(done)).upper[WAL] if done else 0
    committed = list(load.committed)
    early = [(before, after) for before, after in committed if after <= confirmed and before >= durable]
    assert not early, f"acknowledged {confirmed}, durable {durable}"


def kill_inside_a_big_transaction(works: Rig, load: Load, start: Callable[[str, str], int]) -> None:
    """Scenario P2: some of its files are there, and its commit is not captured."""
    for when in (BEFORE, AFTER):
        status = 0
        for _ in range(RUNS_LAST):
            load.wait(BIG_EVERY + 1)
            status = start(when, FRAGMENT)
            check_acknowledged(works, load)
            if status:
                break
        assert status == -signal.SIGKILL


def test_p2_p3_killed_at_every_durable_step_under_a_load_the_tables_end_as_the_database(
    rig: Callable[..., Rig],
) -> None:
    """While tables are read, changes taken, truncates applied and one table is read anew."""
    works = rig(settings={"transaction": {"max_records": 60}}, **SHAPES)
    prepare(works)
    killed: dict[str, int] = {}
    with Load(works) as load, workers(works.root) as start:
        # The first runs read the tables; each of them is killed too.
        load.wait(5)
        for when in (BEFORE, AFTER):
            assert start(when, "capture a file") == -signal.SIGKILL
            check_acknowledged(works, load)
        assert start(BEFORE, NOWHERE) == 0
        load.wait(3)
        assert start(BEFORE, NOWHERE) == 0
        kinds = dict.fromkeys(map(kind_of, (works.root / TRACE).read_text().splitlines()))
        for number, kind in enumerate(kinds):
            if number == len(kinds) // 2:
                works.source().ask_again("public.left")
            for when in (BEFORE, AFTER):
                load.wait(1)
                status = start(when, kind)
                assert status in (0, -signal.SIGKILL)
                killed[kind] = killed.get(kind, 0) + (status != 0)
                check_acknowledged(works, load)
        kill_inside_a_big_transaction(works, load, start)
        load.stop()
        assert len(load.committed) > max(TRUNCATED_AT)
        # A truncate, and a table that is read anew, wait for a run that finds nothing open.
        for _ in range(RUNS_LAST):
            # From where the server keeps its log follows the records of its open transactions.
            works.sql("SELECT pg_log_standby_snapshot()")
            assert start(BEFORE, NOWHERE) == 0
    check_acknowledged(works, load)
    for name in TABLES:
        assert table_of(works, name) == works.sql(f'SELECT id, value FROM "{name}" ORDER BY id'), name
    every_time = {
        "capture a file", "bind", "stage", "seal", "commit left/log",
        "commit right/log", "commit _control/checkpoints", "note the acknowledgement", "advance the slot",
    }  # fmt: skip
    assert {kind for kind, times in killed.items() if times == 2} >= every_time, killed
    # Nothing is kept for us any more: the slot stands behind the last change, and the log before it is gone.
    confirmed, restart = works.slot()
    assert confirmed > load.committed[-1][1]
    assert restart > load.committed[-1][0]


@pytest.mark.spark
def test_p3_killed_while_spark_reads_and_writes_its_own_read_ends_as_the_database(
    rig: Callable[..., Rig], spark: SparkSession
) -> None:
    works = rig(spark, **SHAPES)
    prepare(works)
    with Load(works, transactions_max=6) as load, workers(works.root, spark) as start:
        for when, kind in (
            (AFTER, "parts left"),
            (BEFORE, "seal"),
            (AFTER, "commit left/log"),
        ):
            load.wait(2)
            assert start(when, kind) == -signal.SIGKILL
            check_acknowledged(works, load)
        load.stop()
        for _ in range(RUNS_LAST):
            if works.slot()[0] > load.committed[-1][1]:
                break
            assert start(BEFORE, NOWHERE) == 0
    check_acknowledged(works, load)
    assert works.slot()[0] > load.committed[-1][1]
    for name in TABLES:
        assert works.rows(name) == works.sql(f'SELECT id, value FROM "{name}" ORDER BY id'), name
