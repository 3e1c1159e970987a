"""How far a real slot is let go: to what is durable for every shard, whole commits, and no further."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.postgres.worker import pipeline_at
from tests.support.postgres_pipeline import (
    PAIRS,
    PAIRS_SCHEMA,
    Kept,
    Rig,
    attempt,
    file_of,
    table_of,
    told,
    workers,
)
from tests.support.steps import BEFORE
from tidemark.app import maintenance
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import ShardId
from tidemark.core.seal import Opinion, Staged
from tidemark.pipeline.checkpoint import GRACE_SECONDS
from tidemark.pipeline.decide import release
from tidemark.pipeline.run import run
from tidemark.sources.files.bound_files import Manifest
from tidemark.sources.postgres import change_files
from tidemark.sources.postgres.change_files import WAL
from tidemark.sources.postgres.pgoutput import Commit, parse

pytestmark = pytest.mark.server
MakeRig = Callable[..., Rig]


@pytest.fixture
def kept(rig: MakeRig) -> Kept:
    return Kept(rig(pairs=(PAIRS_SCHEMA, ["id"])))


def with_notes(kept: Kept) -> Rig:
    """Take in a second table, `notes`, and be done with its first reading."""
    works = kept.works
    works.sql(PAIRS.format("notes"), "ALTER TABLE notes REPLICA IDENTITY FULL")
    works.sql("ALTER PUBLICATION p ADD TABLE notes")
    works.schemas["notes"] = (PAIRS_SCHEMA, ["id"])
    kept.write(works.config())
    kept.run()
    return works


def test_f8_f9_a_table_that_is_taken_out_holds_no_log_however_busy_it_is(kept: Kept) -> None:
    works = with_notes(kept)
    del works.schemas["notes"]
    kept.promote(works.config(generation=1))
    works.sql(*[f"INSERT INTO notes VALUES ({n}, 'n')" for n in range(5)])
    busy = works.log_end()
    kept.run()
    assert works.slot()[0] >= busy
    # It is said once: traffic of a table that is out binds nothing more, and holds nothing back.
    bound = len(kept.bound())
    works.sql("INSERT INTO notes VALUES (9, 'n')")
    busy = works.log_end()
    kept.run()
    assert (len(kept.bound()), works.slot()[0] >= busy) == (bound, True)
    works.sql("INSERT INTO pairs VALUES (4, 'd')")
    kept.run()
    kept.check()


def status(works: Rig, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("TIDEMARK_ROOT", str(works.root))
    code, output = told("status", str(file_of(works)), "--json")
    assert code == 0, output
    found: dict[str, Any] = json.loads(output)
    return found


def test_f12_the_shard_that_holds_back_is_named_and_is_an_alarm_when_it_does_so_for_long(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariants 10 and 14, by the command: killed between the logs of two shards."""
    works = with_notes(kept)
    works.transaction("INSERT INTO pairs VALUES (4, 'd')", "INSERT INTO notes VALUES (1, 'n')")
    committed = works.log_end()
    with workers(works.root) as start:
        assert start(BEFORE, "commit pairs/log") == -signal.SIGKILL
    last = len(kept.bound())
    found = status(works, monkeypatch)
    assert found["source"]["held_back_by"] == [f"shard pairs, which lacks transaction {last}"]
    assert (found["stalled"], works.slot()[0] < committed) == ([], True)
    deployment = works.begun()
    now_ms = time.time_ns() // 1_000_000
    for later_seconds, alarms in ((GRACE_SECONDS - 60, 0), (GRACE_SECONDS + 60, 1)):
        terms = maintenance.terms_of(deployment, now_ms=now_ms + int(later_seconds * 1000))
        told_of = [one for one in maintenance.plan(deployment, terms).warnings if "has not moved" in one]
        assert len(told_of) == alarms
    assert told_of[0].startswith("shard pairs has not moved for ")
    kept.run()
    found = status(works, monkeypatch)
    assert (found["source"]["held_back_by"], works.slot()[0] >= committed) == ([], True)
    kept.check()


def commit_end(works: Rig) -> int:
    """Where the last commit that the slot has ends, by the server's own messages."""
    query = (
        f"SELECT data FROM pg_logical_slot_peek_binary_changes('{works.database}', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'p')"
    )
    heard = [parse(bytes(data)) for (data,) in works.sql(query) if bytes(data[:1]) == b"C"]
    return [one for one in heard if isinstance(one, Commit)][-1].end_lsn


def test_f11_rows_before_their_commit_are_neither_bound_nor_let_go_and_the_commit_is_one_report(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 70 KB row, many times what a file may have, a row of another table, a run while the commit is still
    to come. The server counts a position as confirmed for commits below it, so what must not be let go is
    the commit; and the log from the first row on, which it keeps as `restart_lsn`."""
    monkeypatch.setattr(change_files, "FRAGMENT_BYTES", 10_000)
    works = with_notes(kept)
    bound = len(kept.bound())
    first = works.log_end()
    body = "".join(chr(97 + n % 26) for n in range(70_000))
    with psycopg.connect(works.postgres.conninfo(works.database)) as db:
        db.execute("INSERT INTO pairs VALUES (70, %s)", (body,))
        kept.run()
        db.execute("INSERT INTO notes VALUES (50, 'n')")
        kept.run()
        assert len(kept.bound()) == bound
        assert works.slot()[1] <= first
        inside = works.log_end()
        assert works.slot()[0] <= inside
    end = commit_end(works)
    assert works.slot()[0] <= inside < end
    kept.run()
    [one] = kept.bound()[bound:]
    assert one.upper[WAL] == end
    assert len(Manifest.from_json(one.manifest).files) == 2
    assert works.changes(one) == [("pairs", "c", (70, body)), ("notes", "c", (50, "n"))]
    assert works.slot()[0] >= end
    kept.check()


class Holds:
    """A gate that holds `notes` whenever it is touched."""

    def opinion(self, staged: Staged) -> Opinion:
        notes = ShardId("notes")
        return Opinion(held={notes: "doubtful"} if notes in staged.shards else {})


def test_p12_a_shard_that_its_gate_has_paused_holds_no_log_and_what_needs_it_whole_is_refused(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = with_notes(kept)
    works.transaction("INSERT INTO pairs VALUES (4, 'd')", "INSERT INTO notes VALUES (1, 'n')")
    end = commit_end(works)
    run(replace(pipeline_at(works.root), gate=Holds()), attempt())
    kept.check()
    assert works.slot()[0] >= end
    assert status(works, monkeypatch)["source"]["held_back_by"] == []
    # A table is read anew over what its shard has, so it can't be while some of that waits.
    works.source().ask_again("public.notes")
    with pytest.raises(InvalidUsage, match="can't be read again while shard notes is paused"):
        kept.run()
    release(pipeline_at(works.root), attempt(), ShardId("notes"), reason="looked at")
    kept.run()
    assert [change[1] for change in works.changes(kept.bound()[-1])] == ["d", "c"]
    assert table_of(works, "notes") == [(1, "n")]


def test_d7_a_truncate_is_not_applied_to_a_shard_that_is_paused(kept: Kept) -> None:
    works = with_notes(kept)
    kept.write(works.config(source={**works.config().source.model_dump(), "on_truncate": "apply"}))
    works.sql("INSERT INTO notes VALUES (1, 'n')")
    run(replace(pipeline_at(works.root), gate=Holds()), attempt())
    works.sql("TRUNCATE notes")
    with pytest.raises(InvalidUsage, match=r"truncate of public\.notes can't be applied while shard notes"):
        kept.run()
    release(pipeline_at(works.root), attempt(), ShardId("notes"), reason="looked at")
    kept.run()
    assert table_of(works, "notes") == []
