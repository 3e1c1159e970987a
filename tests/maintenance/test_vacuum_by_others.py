"""Somebody's VACUUM with no retention, beside a consumer with a lease and a writer with staged parts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.crash.race import write_round
from tests.maintenance.rig import (
    LightDeployment,
    feed,
    files_on_disk,
    log_folder,
    log_rows,
    terms,
    wanted_rows,
)
from tests.maintenance.test_reader import reading, rows_in
from tests.support.attempts import ingest, validate
from tidemark.app import maintenance
from tidemark.app.deployment import new_token
from tidemark.core.binding import Owner
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.seal import Sealed, Staged
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.upsert import bring_up_logs, commit_staged

FED = 12


@pytest.mark.parametrize("full", [False, True])
def test_a_vacuum_by_others_takes_nothing_from_a_lease_or_a_writer(tmp_path: Path, full: bool) -> None:
    feed(tmp_path, first=0, files=FED)
    writer, attempt = LightDeployment(tmp_path).pipeline, Attempt(Owner("writer"), new_token())
    with reading(tmp_path) as reader:
        given = reader.next_range()
        assert given is not None
        # What the consumer has been given is replaced by a merged file, and only its lease keeps it.
        maintenance.maintain(LightDeployment(tmp_path), WriterToken("m"), terms(), watch=False)
        write_round(tmp_path, FED)
        reclock(writer, attempt)
        staged = ingest(writer, attempt, Txn(FED + 1))
        assert isinstance(staged, Staged)
        there = files_on_disk(tmp_path)
        log = DeltaTable(log_folder(tmp_path))
        log.vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)
        assert files_on_disk(tmp_path) == there
        assert isinstance(commit_staged(writer, attempt, staged, validate(writer, staged)), Sealed)
        bring_up_logs(writer)
        wanted = wanted_rows(tmp_path)
        assert rows_in(tmp_path, given) == Counter({row: n for row, n in wanted.items() if row[2] <= FED})
        assert log_rows(tmp_path) == wanted
