"""A pipeline whose control plane, log and files are real, and whose rows are written with pyarrow.

So maintenance can be killed, raced and repeated many times without a JVM; what is about Spark is tested with
Spark. Each file of the source is one transaction; what the log must have is worked out from the files.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.crash.race import config_at, write_round
from tests.support.light import SHARD, LightPlane
from tests.support.tables import rows_of
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.maintenance import Terms
from tidemark.core.binding import Configuration, Owner
from tidemark.core.checksum import Digest
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.publish import StateCommit
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.publish import put_record
from tidemark.pipeline.run import run

ROW = ("id", "value", "_txn", "_offset", "_ordinal")
Row = tuple[Any, ...]


class LightDeployment(Deployment):
    """A deployment that never starts Spark."""

    def __init__(self, root: Path) -> None:
        super().__init__(config_at(root), self._no_session)
        self.light = LightPlane(Path(self.root), Path(self.config.source_location))
        self.pipeline = Pipeline(
            control=self.control,
            source=self.pipeline.source,
            plane=self.light,
            configuration=Configuration.of(self.config.canonical_json()),
        )

    def plane(self) -> Any:
        return self.light

    @staticmethod
    def _no_session() -> Any:
        raise AssertionError("this needs no Spark")


def feed(root: Path, *, first: int, files: int) -> None:
    """Files land and are taken in, each by a run of its own."""
    deployment = LightDeployment(root)
    for number in range(first, first + files):
        write_round(root, number)
        run(deployment.pipeline, Attempt(Owner(f"run-{number}"), new_token()))


def published(deployment: LightDeployment, txn: int, *, version: int | None = None) -> None:
    """Say that the state has everything up to a transaction, in a version of its table."""
    made = txn if version is None else version
    deployment.control.seals.head()
    [seal] = deployment.control.seals.read(txn, txn + 1)
    commit = StateCommit(Txn(txn), WriterToken(f"publisher-{made}"), Digest(), link=seal.link)
    put_record(deployment.control, SHARD, version=made, commit=commit)


def terms(*, window: int = 1, kept_ms: int = 0, now_ms: int = 10**15) -> Terms:
    """Maintenance at a time when everything is long ago, unless `kept_ms` says otherwise."""
    return Terms(now_ms, Txn(window), Txn(window), kept_ms)


def log_folder(root: Path) -> Path:
    return root / "wh" / "race" / SHARD / "log"


def log_rows(root: Path, *, since: int = 1) -> Counter[Row]:
    """What a reader of the log sees from a transaction on, read with delta-rs's own query engine."""
    return Counter(row for row in rows_of(log_folder(root), ROW) if row[2] >= since)


def wanted_rows(root: Path, *, since: int = 1) -> Counter[Row]:
    """What it must see: per file the last line of each key, by hand."""
    wanted: Counter[Row] = Counter()
    for number, path in enumerate(sorted((root / "in").glob("*.json"))):
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        folded = {record["id"]: (record["value"], n) for n, record in enumerate(records)}
        if number + 1 >= since:
            wanted.update((key, value, number + 1, number, n) for key, (value, n) in folded.items())
    return wanted


def files_on_disk(root: Path) -> dict[str, int]:
    """The log's data files with their sizes."""
    log = log_folder(root)
    return {str(p.relative_to(log)): p.stat().st_size for p in log.glob("_txn*/*/*") if p.is_file()}
