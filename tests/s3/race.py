"""A process that races for a pipeline whose control tables, logs and state are on S3.

As in `tests/crash/race.py`, each round is a run of all processes at the same moment, on a light data plane.
Then each process publishes, by the key index and without Spark. In every second round all publish at the same
moment; in the others some publish while others still seal and append.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.crash.race import MEET_EVERY, SECONDS_MAX, Meeting, config_at, pipeline_at, write_round
from tests.support.keyed_log import digest_of, key_bytes, no_spark
from tests.support.light import SHARD, LightPlane
from tidemark.app.deployment import new_token
from tidemark.core.binding import Binding, Owner
from tidemark.core.ids import WriterToken
from tidemark.core.ledger import Conflict
from tidemark.core.publish import Published
from tidemark.core.seal import Part, Staged
from tidemark.delta.control import DeltaControl
from tidemark.delta.schema import log_schema
from tidemark.delta.state_files import DIGEST, KEY
from tidemark.delta.store import Store
from tidemark.pipeline import publish as publish_step
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.run import run
from tidemark.ports.planes import DataPlane
from tidemark.sources.files.source import FileSource
from tidemark.spark.fold import FoldRule
from tidemark.spark.parts import stats_of
from tidemark.spark.state import SparkStatePlane
from tidemark.spark.state_table import StateSpec, StateSpecs

ROWS = StructType([StructField("id", LongType(), nullable=False), StructField("value", StringType())])


@dataclass
class Told:
    """What a process has done."""

    staged: list[tuple[int, str]] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    lost_publishes: int = 0
    errors: list[str] = field(default_factory=list)


class StoredPlane(LightPlane):
    """Also puts its parts on the store, with the keys and digests of their rows, as ingest writes them."""

    def __init__(self, home: Path, folder: Path, log: str) -> None:
        super().__init__(home, folder)
        self._log = log

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        staged = super().stage(binding, token)
        shards = {
            name: replace(one, parts=tuple(map(self._stored, one.parts)))
            for name, one in staged.shards.items()
        }
        return replace(staged, shards=shards)

    def _stored(self, part: Part) -> Part:
        table = pq.ParquetFile(self._home / SHARD / "log" / part.path).read()
        rows = table.select(["id", "value"]).to_pylist()
        keys = pa.array([key_bytes(("bigint", str(row["id"]))) for row in rows], pa.binary())
        digests = pa.array([digest_of(tuple(row.values())) for row in rows], pa.int64())
        out = io.BytesIO()
        table = table.append_column(KEY, keys).append_column(DIGEST, digests)
        pq.write_table(table, out, write_page_checksum=True)
        Store(self._log, {}).put_synced(part.path, out.getvalue())
        return replace(part, bytes=len(out.getvalue()), stats=stats_of(pq.read_metadata(out)))


def spec_at(place: str) -> StateSpec:
    return StateSpec(SHARD, f"{place}/race/{SHARD}", ROWS, FoldRule(("id",), None), None)


def pipeline_on(root: Path, place: str) -> Pipeline:
    """This process's handle: files and parts below a folder, all that is decided on the store."""
    config = config_at(root)
    control = DeltaControl(place, config.name, {SHARD: log_schema(config.shapes[SHARD])})
    source = FileSource.of(config, bindings=control.bindings)
    return replace(pipeline_at(root), control=control, source=source)


def with_stored_parts(root: Path, place: str) -> Pipeline:
    """The same, with the parts on the store too."""
    config = config_at(root)
    home = Path(config.warehouse_location) / config.name
    plane = StoredPlane(home, Path(config.source_location), spec_at(place).log)
    return replace(pipeline_on(root, place), plane=cast("DataPlane", plane))


class Publisher:
    """Publishes with a handle of its own, and counts the races that it has lost."""

    def __init__(self, place: str, told: Told) -> None:
        self._plane = SparkStatePlane(no_spark, StateSpecs("race", {SHARD: spec_at(place)}))
        self._told = told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)

    def publish(self, *given: Any, **more: Any) -> Any:
        done = self._plane.publish(*given, **more)
        self._told.lost_publishes += isinstance(done, Conflict)
        return done

    def work(self, control: DeltaControl) -> None:
        token = WriterToken(new_token())
        done = publish_step.publish(control, cast("Any", self), SHARD, token=token)
        if isinstance(done, Published) and done.commit.token == token:
            self._told.published.append(token)


def race(
    root: str, place: str, options: dict[str, str], writer: int, rounds: int, barrier: Any, reports: Any
) -> None:
    """Land a file (the first writer), meet, run, publish; and tell what came of it."""
    os.environ.update(options)
    free = with_stored_parts(Path(root), place)
    plane = cast("LightPlane", free.plane)
    meeting = replace(free, plane=cast("DataPlane", Meeting(plane, barrier)))
    told = Told()
    publisher = Publisher(place, told)
    for number in range(rounds):
        if writer == 0:
            write_round(Path(root), number)
        barrier.wait(SECONDS_MAX)
        attempt = Attempt(Owner(f"round-{number}-writer-{writer}"), new_token())
        before, meets = len(plane.staged), number % MEET_EVERY == 0
        try:
            run(meeting if meets else free, attempt)
            if meets:
                barrier.wait(SECONDS_MAX)
            publisher.work(cast("DeltaControl", free.control))
        except Exception as error:
            told.errors.append(f"round {number}: {type(error).__name__}: {error}")
        told.staged += [(txn, attempt.token) for txn in plane.staged[before:]]
        barrier.wait(SECONDS_MAX)
    reports.put(told)
