"""Tables that are read whole: side by side, at one position, once; read anew; and truncated."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.postgres.kinds import FULL_ROW, TYPES, TYPES_SCHEMA
from tests.postgres.worker import CONFIG, pipeline_at
from tests.support.postgres_pipeline import (
    PAIRS,
    PAIRS_SCHEMA,
    Kept,
    Rig,
    attempt,
    file_of,
    table_of,
)
from tests.support.waiting import SECONDS_MAX
from tidemark.app import maintenance
from tidemark.app.deployment import Deployment
from tidemark.app.maintenance import Terms
from tidemark.app.tasks import no_session
from tidemark.cli.app import app
from tidemark.cli.shared import source_messages
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.publish import StateCommit
from tidemark.core.replay import Verdict
from tidemark.pipeline.context import binding_at
from tidemark.pipeline.publish import put_record
from tidemark.pipeline.run import replay, run
from tidemark.sources.files.bound_files import Manifest
from tidemark.sources.postgres import snapshot
from tidemark.sources.postgres.snapshot import Progress, ranges_of

pytestmark = pytest.mark.server
MakeRig = Callable[..., Rig]


def test_the_server_writes_every_value_as_a_captured_change_of_it_is_written(rig: MakeRig) -> None:
    """By JSON, which is what the data plane reads. The second row is read as a change, by our own code."""
    schema = (
        TYPES_SCHEMA + ", days STRING, moments ARRAY<STRING>, blanks ARRAY<STRING>, odd STRING, number OID"
    )
    works = rig(kinds=(schema.replace("OID", "BIGINT"), ["id"]))
    names = [part.split()[0] for part in schema.replace("\n", " ").strip().split(", ")]
    more = TYPES.rstrip().removesuffix(")") + (
        ", days date[], moments timestamp[], blanks char(3)[], odd point, number oid)"
    )
    rows = {
        "full": f"{FULL_ROW}, '{{0044-03-15 BC,infinity}}', '{{{{2024-01-01 10:00}},{{-infinity}}}}', "
        "'{a,NULL}', '(1,2)', 4294967295",
        "special": "false, 1, 1, 1, 'NaN', '-Infinity', 0.1, 'NaN', E'\\x01\\x1f\\\\N\\r', 'ß', '',"
        " 'infinity', '-infinity', '0044-03-15 10:00 BC', '[]', '\"\\\\\"', '', '[2:3]={1,2}', '{}', NULL,"
        " '{0044-03-15 10:00+00 BC}', '{}', '{}', '0', '00:00', '::1', 'calm', '{}', '{}', '{}', NULL, 0",
    }
    values = [*rows.values(), ", ".join(["NULL"] * (len(names) - 1))]

    def inserts(first: int) -> list[str]:
        ids = [f"{first + n}0000000-0000-0000-0000-000000000000" for n in range(len(values))]
        listed = ", ".join(names)
        return [
            f"INSERT INTO kinds ({listed}) VALUES ('{key}', {row})"
            for key, row in zip(ids, values, strict=True)
        ]

    def bound() -> list[dict[str, Any]]:
        records = [record["after"] for one in works.bind() for record in works.records(one)]
        return [{**record, "id": ""} for record in records]

    works.ready("CREATE TYPE mood AS ENUM ('calm', 'wild')", more, *inserts(1))
    by_reading = bound()
    works.sql(*inserts(4))
    assert len(by_reading) == 3
    assert by_reading == bound()


def test_a_table_with_arrays_of_bytes_is_copied_value_by_value(rig: MakeRig) -> None:
    works = rig(raws=("id INT NOT NULL, raws ARRAY<BINARY>", ["id"]))
    works.ready(
        "CREATE TABLE raws (id int PRIMARY KEY, raws bytea[])", "INSERT INTO raws VALUES (1, '{\\\\x00ff}')"
    )
    assert works.changes(*works.bind()) == [("raws", "c", (1, ["AP8="]))]


def test_big_tables_are_read_in_ranges_side_by_side_all_at_one_position_each_row_once(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come and move between pages all the while: a range that saw another snapshot would show."""
    monkeypatch.setattr(snapshot, "PAGES_PER_RANGE", 2)
    works = rig(**dict.fromkeys(("left", "right"), (PAIRS_SCHEMA, ["id"])))
    works.schemas = {f'"{name}"': shape for name, shape in works.schemas.items()}
    works.ready(
        *[PAIRS.format(f'"{name}"') for name in ("left", "right")],
        *[f"INSERT INTO \"{name}\" SELECT n, repeat('x', 300) FROM generate_series(1, 900) n"
          for name in ("left", "right")],
    )  # fmt: skip
    works.schemas = dict.fromkeys(("left", "right"), (PAIRS_SCHEMA, ["id"]))
    enough = Event()

    def write() -> None:
        with works.postgres.connect(works.database) as db:
            n = 0
            while not enough.is_set():
                n += 1
                with db.transaction():
                    for name in ("left", "right"):
                        db.execute(f'UPDATE "{name}" SET value = %s WHERE id = %s', (f"v{n}", n % 400 + 1))
                        db.execute(f'INSERT INTO "{name}" VALUES (%s, %s)', (1000 + n, "new"))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        bound = works.bind()
        enough.set()
        writing.result()
    bound += works.bind()
    files = Manifest.from_json(bound[0].manifest)
    assert len(files.files) >= 10
    assert len({read.lsn for read in files.snapshots.values()}) == 1
    for name in ("left", "right"):
        inserted: dict[int, str] = {}
        for table, op, (key, value) in works.changes(*bound):
            assert op == "c"
            # The rows of a reading are the first of their keys: none comes twice.
            assert table != name or key not in inserted or value.startswith("v")
            if table == name:
                inserted[key] = value
        assert sorted(inserted.items()) == works.sql(f'SELECT id, value FROM "{name}" ORDER BY id')


@pytest.mark.parametrize("rewriting", ["ALTER TABLE pairs ALTER id TYPE numeric", "TRUNCATE pairs"])
def test_regression_a_table_that_is_to_be_rewritten_while_it_waits_to_be_read_is_read_first(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch, rewriting: str
) -> None:
    monkeypatch.setattr(snapshot, "PAGES_PER_RANGE", 1)
    works = rig(pairs=(PAIRS_SCHEMA, ["id"]))
    works.ready(PAIRS.format("pairs"), "INSERT INTO pairs SELECT n, 'x' FROM generate_series(1, 900) n")
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'pairs'::regclass"
    exported = snapshot._exported

    with ThreadPoolExecutor(1) as pool:
        rewritten: list[Future[Any]] = []

        def late(*arguments: Any) -> tuple[int, str]:
            found = exported(*arguments)
            rewritten.append(pool.submit(works.sql, rewriting))
            while not rewritten[0].done() and works.sql(waiting) == [(0,)]:
                pass
            return found

        monkeypatch.setattr(snapshot, "_exported", late)
        # The truncate may be done in time to be bound behind the rows.
        [bound, *_] = works.bind()
        assert [row for _, _, row in works.changes(bound)] == [(n, "x") for n in range(1, 901)]
        rewritten[0].result(timeout=SECONDS_MAX)


def test_a_table_that_is_changed_when_it_is_about_to_be_read_is_looked_at_again(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = rig(pairs=(PAIRS_SCHEMA, ["id"]))
    works.ready(PAIRS.format("pairs"), "INSERT INTO pairs VALUES (1, 'a')")
    lock = snapshot.Sessions.lock

    def late(*arguments: Any) -> None:
        works.sql("ALTER TABLE pairs ALTER value TYPE varchar(9)")
        lock(*arguments)

    with monkeypatch.context() as once:
        once.setattr(snapshot.Sessions, "lock", late)
        with pytest.raises(Determinate, match=r"table public\.pairs changed while its reading began"):
            works.bind()
    assert works.changes(*works.bind()) == [("pairs", "c", (1, "a"))]


def test_a_table_that_is_truncated_when_it_is_about_to_be_read_is_read(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its new file is the one on record: the next run does not take it for a rewritten table."""
    works = rig(pairs=(PAIRS_SCHEMA, ["id"]))
    works.ready(PAIRS.format("pairs"), "INSERT INTO pairs VALUES (1, 'a')")
    lock = snapshot.Sessions.lock

    def late(*arguments: Any) -> None:
        works.sql("TRUNCATE pairs; INSERT INTO pairs VALUES (2, 'b')")
        lock(*arguments)

    with monkeypatch.context() as once:
        once.setattr(snapshot.Sessions, "lock", late)
        assert works.changes(*works.bind()) == [("pairs", "c", (2, "b"))]
    works.sql("INSERT INTO pairs VALUES (3, 'c')")
    assert works.changes(*works.bind()) == [("pairs", "c", (3, "c"))]


def test_small_tables_are_bound_together_and_a_transaction_keeps_to_its_limits(rig: MakeRig) -> None:
    tables = ("one", "two", "three")
    works = rig(**dict.fromkeys(tables, (PAIRS_SCHEMA, ["id"])))
    works.ready(
        *[PAIRS.format(name) for name in tables],
        *[f"INSERT INTO {name} SELECT n FROM generate_series(1, 3) n" for name in ("two", "three")],
        "INSERT INTO one SELECT n FROM generate_series(1, 6) n",
    )

    def offered(**limits: int) -> list[int]:
        steps = works.source(transaction=limits).offer(None)
        return [len(Manifest.from_json(step.manifest).files) for step in steps]

    assert (offered(), offered(max_files=2), offered(max_bytes=1)) == ([3], [2, 1], [1, 1, 1])
    bound = works.bind(transaction={"max_records": 8})
    assert [len(works.records(one)) for one in bound] == [6, 6]


def test_ranges_have_every_page_and_progress_tells_what_is_left() -> None:
    ranges = ranges_of(20_000)
    assert [(one.first, one.end) for one in ranges] == [(0, 8192), (8192, 16384), (16384, None)]
    assert sum(one.count for one in ranges) == 20_000
    assert [(one.first, one.end) for one in ranges_of(0)] == [(0, None)]
    progress = Progress(tables=3, pages=1_000, started=100.0)
    assert progress.done(250, now=104.0) == ""
    assert progress.done(250, now=110.0) == "first rows of 3 tables: 50% read, about 10 s left"
    assert progress.done(100, now=114.0) == ""


def test_a_terminal_shows_how_far_a_source_is(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []
    with source_messages(shown.append):
        logging.getLogger(snapshot.__name__).info("first rows of %d tables", 3)
        logging.getLogger(snapshot.__name__).warning("the slot is in use")
    logging.getLogger(snapshot.__name__).info("nobody looks any more")
    assert shown == ["first rows of 3 tables"]
    assert capsys.readouterr().err == "the slot is in use\n"


# With rows in the logs, by the plane that needs no engine


@pytest.fixture
def kept(rig: MakeRig) -> Kept:
    return Kept(rig(pairs=(PAIRS_SCHEMA, ["id"])))


def test_a_table_is_read_anew_alone_and_replaces_what_its_shard_has_in_one_transaction(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = kept.works
    command = ["source", "reread", str(file_of(works)), "public.pairs"]
    # Rows that the pipeline never hears of: the publication leaves the table out for a while.
    works.sql("ALTER PUBLICATION p DROP TABLE pairs", "CREATE TABLE other (id int)")
    works.sql("DELETE FROM pairs WHERE id = 2", "UPDATE pairs SET value = 'x' WHERE id = 1")
    works.sql("INSERT INTO pairs VALUES (9, 'new')", "ALTER PUBLICATION p ADD TABLE pairs")
    with pytest.raises(InvalidUsage, match="removed from the publication and added again"):
        kept.run()
    assert table_of(works, "pairs") == [(1, "a"), (2, "b"), (3, "c")]
    before = len(kept.bound())
    monkeypatch.setenv("TIDEMARK_ROOT", str(works.root))
    result = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    works.sql("INSERT INTO pairs VALUES (10, 'later')")
    kept.run()
    kept.check()
    [again, *_] = kept.bound()[before:]
    assert [change[1] for change in works.changes(again)] == ["d", "d", "d", "c", "c", "c", "c"]
    # The request is met; the next run reads nothing again.
    works.sql("INSERT INTO pairs VALUES (11, 'last')")
    kept.run()
    kept.check()
    assert works.changes(kept.bound()[-1]) == [("pairs", "c", (11, "last"))]
    with pytest.raises(InvalidUsage, match=r"does not take table public\.none"):
        works.source().ask_again("public.none")


def test_a_value_that_was_not_sent_stops_the_capture_until_its_table_is_read_anew(kept: Kept) -> None:
    works = kept.works
    works.sql(
        "ALTER TABLE pairs ALTER value SET STORAGE EXTERNAL",
        f"UPDATE pairs SET value = '{'z' * 9_000}' WHERE id = 1",
    )
    kept.run()
    works.sql("ALTER TABLE pairs REPLICA IDENTITY DEFAULT", "UPDATE pairs SET id = 4 WHERE id = 1")
    works.sql("ALTER TABLE pairs REPLICA IDENTITY FULL", "INSERT INTO pairs VALUES (5, 'e')")
    with pytest.raises(InvalidUsage, match="did not send the unchanged value") as refused:
        kept.run()
    assert "`tidemark source reread`" in refused.value.hint
    works.source().ask_again("public.pairs")
    kept.run()
    kept.check()


MADE_ANEW = {
    "dropped": ["DROP TABLE pairs", PAIRS.format("pairs")],
    "swapped": [
        PAIRS.format("newer"),
        "ALTER TABLE pairs RENAME TO older",
        "ALTER TABLE newer RENAME TO pairs",
    ],
}


@pytest.mark.parametrize("how", MADE_ANEW)
def test_regression_a_table_that_another_one_took_the_place_of_is_refused_until_it_is_read_anew(
    kept: Kept, how: str
) -> None:
    works = kept.works
    works.sql(*MADE_ANEW[how], "ALTER TABLE pairs REPLICA IDENTITY FULL")
    works.sql("ALTER PUBLICATION p ADD TABLE pairs", "INSERT INTO pairs VALUES (2, 'other'), (9, 'new')")
    for _ in range(2):
        with pytest.raises(
            InvalidUsage, match=r"table public\.pairs is not the one that was read"
        ) as refused:
            kept.run()
    assert "`tidemark source reread PIPELINE public.pairs`" in refused.value.hint
    works.source().ask_again("public.pairs")
    kept.run()
    kept.check()
    works.sql("UPDATE pairs SET value = 'changed' WHERE id = 9")
    kept.run()
    kept.check()


def test_regression_rows_that_were_written_while_their_table_was_called_otherwise_are_not_passed_over(
    kept: Kept,
) -> None:
    works = kept.works
    works.sql("ALTER TABLE pairs RENAME TO away", "DELETE FROM away WHERE id = 1")
    works.sql("ALTER TABLE away RENAME TO pairs", "INSERT INTO pairs VALUES (9, 'new')")
    before = works.slot()[0]
    works.source().acknowledge(kept.bound()[-1].upper)
    with pytest.raises(InvalidUsage, match=r"table public\.pairs is not the one that was read"):
        kept.run()
    assert works.slot()[0] <= before
    works.source().ask_again("public.pairs")
    kept.run()
    kept.check()


def test_a_reading_that_a_crash_left_over_is_not_taken_for_one_of_a_table_that_was_made_anew(
    rig: MakeRig,
) -> None:
    works = rig(pairs=(PAIRS_SCHEMA, ["id"]))
    works.ready(PAIRS.format("pairs"), "INSERT INTO pairs VALUES (1, 'a')")
    works.source().offer(None)
    works.sql("DROP TABLE pairs", PAIRS.format("pairs"), "ALTER TABLE pairs REPLICA IDENTITY FULL")
    works.sql("ALTER PUBLICATION p ADD TABLE pairs", "INSERT INTO pairs VALUES (2, 'b')")
    assert works.changes(*works.bind()) == [("pairs", "c", (2, "b"))]


def test_which_table_was_read_is_put_on_record_where_it_was_not(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = kept.works
    as_it_is = Manifest.from_json

    def older(text: str) -> Manifest:
        found = json.loads(text)
        found.pop("oids", None)
        return as_it_is(json.dumps(found))

    works.sql("INSERT INTO pairs VALUES (9, 'new')")
    with monkeypatch.context() as once:
        once.setattr(Manifest, "from_json", older)
        kept.run()
    kept.check()
    [(oid,)] = works.sql("SELECT 'pairs'::regclass::oid::int")
    assert as_it_is(kept.bound()[-1].manifest).snapshots["public.pairs"].oid == oid


def test_a_table_that_was_out_of_the_pipeline_comes_back_without_the_rows_that_went_meanwhile(
    kept: Kept, rig: MakeRig
) -> None:
    works = kept.works
    works.sql("CREATE TABLE notes (id bigint PRIMARY KEY, value text)", "ALTER PUBLICATION p ADD TABLE notes")
    works.sql("ALTER TABLE notes REPLICA IDENTITY FULL")
    other = rig(notes=(PAIRS_SCHEMA, ["id"]))
    kept.promote(other.config(generation=1))
    kept.run()
    works.sql("DELETE FROM pairs WHERE id = 2", "INSERT INTO pairs VALUES (4, 'd')")
    kept.run()
    works.schemas["notes"] = (PAIRS_SCHEMA, ["id"])
    kept.promote(works.config(generation=2))
    kept.run()
    assert table_of(works, "pairs") == [(1, "a"), (3, "c"), (4, "d")]


def test_d7_a_truncate_is_applied_by_policy_in_its_place_and_its_replay_is_identical(kept: Kept) -> None:
    works = kept.works
    source = {**works.config().source.model_dump(), "on_truncate": "apply"}
    kept.write(works.config(source=source))
    works.sql("INSERT INTO pairs VALUES (4, 'd')")
    works.transaction("TRUNCATE pairs", "INSERT INTO pairs VALUES (2, 'again'), (5, 'e')")
    works.sql(
        "UPDATE pairs SET value = 'f' WHERE id = 5", "TRUNCATE pairs", "INSERT INTO pairs VALUES (6, 'g')"
    )
    kept.run()
    # What is before the truncate is done first; whoever comes next takes it.
    assert table_of(works, "pairs") == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    kept.run()
    assert table_of(works, "pairs") == [(2, "again"), (5, "f")]
    kept.run()
    kept.check()
    assert works.slot()[0] > kept.bound()[-2].upper["wal"]
    last = Txn(len(kept.bound()))
    found = replay(pipeline_at(works.root), attempt(), txn_from=Txn(1), txn_to=last)
    assert {finding.verdict for finding in found} == {Verdict.IDENTICAL}


def test_d7_a_truncate_that_follows_rows_which_are_bound_with_it_waits_for_them(rig: MakeRig) -> None:
    works = rig(pairs=(PAIRS_SCHEMA, ["id"]))
    works.settings["source"] = {**works.config().source.model_dump(), "on_truncate": "apply"}
    works.ready(PAIRS.format("pairs"), "INSERT INTO pairs VALUES (1, 'a'), (2, 'b')")
    works.source().offer(None)  # The rows are read, and the process dies before it binds them.
    works.sql("TRUNCATE pairs", "INSERT INTO pairs VALUES (3, 'c')")
    (works.root / CONFIG).write_text(works.config().canonical_json())
    run(pipeline_at(works.root), attempt())
    assert table_of(works, "pairs") == [(1, "a"), (2, "b")]
    run(pipeline_at(works.root), attempt())
    assert table_of(works, "pairs") == [(3, "c")]


def test_d7_a_truncate_after_rows_of_its_own_transaction_is_refused(kept: Kept) -> None:
    works = kept.works
    kept.write(works.config(source={**works.config().source.model_dump(), "on_truncate": "apply"}))
    works.transaction("INSERT INTO pairs VALUES (7, 'g')", "TRUNCATE pairs")
    assert [change[1] for one in works.bind(source={**works.config().source.model_dump(),
            "on_truncate": "apply"}) for change in works.changes(one)] == ["c", "t"]  # fmt: skip


# What nobody needs any more


def captured_files(works: Rig) -> set[str]:
    return {path.name for path in (works.root / "wh" / "p" / "_captured").iterdir()}


def test_captured_files_below_the_retention_go_once_they_are_acknowledged_and_the_dry_run_says_so(
    kept: Kept,
) -> None:
    works = kept.works
    for n in (10, 11, 12):
        works.sql(f"INSERT INTO pairs VALUES ({n}, 'n')")
        kept.run()
    bound = kept.bound()
    names = [{file.name for file in Manifest.from_json(one.manifest).files} for one in bound]
    stray = works.source().files
    stray.put(f"{1:016x}-{2:016x}-0000", [b"{}\n"], 0)
    deployment = Deployment(works.config(retention={"log_days": 3}), no_session)
    deployment.control.seals.head()
    [seal] = deployment.control.seals.read(len(bound), len(bound) + 1)
    put_record(
        deployment.control, ShardId("pairs"), version=1,
        commit=StateCommit(Txn(len(bound)), WriterToken("t"), Digest(), link=seal.link),
    )  # fmt: skip
    terms = Terms(10**15, Txn(len(bound)), Txn(len(bound)), 0)
    [planned] = [one for one in maintenance.plan(deployment, terms).chores if "captured" in one.what]
    before = captured_files(works)
    assert names[0] <= before
    done = maintenance.maintain(deployment, WriterToken("keeper"), terms)
    [chore] = [one for one in done.chores if "captured" in one.what]
    assert (chore.files, chore.bytes) == (planned.files, planned.bytes)
    gone = before - captured_files(works)
    assert len(gone) == chore.files
    assert names[0] | names[1] <= gone
    assert not names[-1] & gone
    # What is kept is still proven; what is gone is said to be.
    first, last = binding_at(deployment.pipeline, Txn(1)), bound[-1]
    gone_one, kept_one = deployment.pipeline.source.replayable([first, last])
    assert "was removed" in gone_one.gone
    [file] = Manifest.from_json(last.manifest).files
    assert (kept_one.gone, kept_one.until_seconds) == ("", file.mtime_ns / 1e9 + 3 * 86_400)
    # And the pipeline goes on, with the log that the retention leaves.
    works.sql("INSERT INTO pairs VALUES (13, 'n')")
    kept.run()
    assert table_of(works, "pairs") == [(12, "n"), (13, "n")]


def test_captured_files_that_are_not_acknowledged_stay_and_the_dry_run_names_the_slot(kept: Kept) -> None:
    works = kept.works
    works.sql("INSERT INTO pairs VALUES (10, 'n')")
    kept.run()
    source = works.source()
    (Path(source.files.folder) / "acknowledged").write_text("0/1")
    found = source.unneeded(Txn(len(kept.bound()) + 1))
    assert (found.files, found.waiting > 0) == (0, True)
    assert "acknowledged up to 0/1" in found.held_by
    assert source.let_go(Txn(len(kept.bound()) + 1)).files == 0
