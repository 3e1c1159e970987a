"""Capturing, binding and acknowledging a real slot; the rows themselves need no engine here."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from threading import Barrier, Event

import pytest

from tests.support.postgres_pipeline import CONN_ID, ITEMS, ITEMS_SCHEMA, Rig, attempt
from tidemark.core.binding import Binding
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Frontier
from tidemark.pipeline.reclock import mint
from tidemark.sources.files.bound_files import PARTITION
from tidemark.sources.postgres import change_files, snapshot
from tidemark.sources.postgres import slot as slots
from tidemark.sources.postgres.change_files import WAL
from tidemark.sources.postgres.slot import connect

pytestmark = pytest.mark.server
MakeRig = Callable[..., Rig]
WAIT_SECONDS_MAX = 300
NOTES = "CREATE TABLE notes (id int PRIMARY KEY, body text)"
NOTES_SCHEMA = "id INT NOT NULL, body STRING"
FOREIGN = "CREATE TABLE foreigners (id int PRIMARY KEY, body text)"


@pytest.fixture
def items(rig: MakeRig) -> Rig:
    """A pipeline on one table that was empty at first; that it was read is bound."""
    works = rig(items=(ITEMS_SCHEMA, ["id"]))
    works.ready(ITEMS, FOREIGN)
    assert [works.records(one) for one in works.bind()] == [[]]
    return works


def sizes(works: Rig, bindings: list[Binding]) -> list[int]:
    return [len(works.records(binding)) for binding in bindings]


def acknowledge(works: Rig, binding: Binding) -> None:
    works.source().acknowledge(binding.upper)


# What is bound


def test_changes_are_bound_in_commit_order_and_once(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1, 'a', 1)", "UPDATE items SET name = 'b'", "DELETE FROM items")
    bound = items.bind()
    assert items.changes(*bound) == [
        ("items", "c", (1, "a", "1.00")), ("items", "c", (1, "b", "1.00")), ("items", "d", (1,)),
    ]  # fmt: skip
    assert items.bind() == []
    items.sql("INSERT INTO items VALUES (2, 'c', NULL)")
    assert items.changes(*items.bind()) == [("items", "c", (2, "c", None))]


def test_d6_two_interleaved_transactions_are_captured_one_after_the_other_by_their_commits(
    items: Rig,
) -> None:
    items.sql("INSERT INTO items (id, name) VALUES (1, '10'), (2, '20')")
    items.bind()
    with items.postgres.connect(items.database) as one, items.postgres.connect(items.database) as two:
        one.execute("BEGIN")
        two.execute("BEGIN")
        one.execute("UPDATE items SET name = '20', price = 11 WHERE id = 1")
        two.execute("UPDATE items SET name = '30', price = 12 WHERE id = 2")
        one.execute("INSERT INTO items (id, name) VALUES (4, '40')")
        two.execute("INSERT INTO items (id, name) VALUES (5, '50')")
        two.execute("COMMIT")
        one.execute("COMMIT")
    assert items.changes(*items.bind()) == [
        ("items", "c", (2, "30", "12.00")), ("items", "c", (5, "50", None)),
        ("items", "c", (1, "20", "11.00")), ("items", "c", (4, "40", None)),
    ]  # fmt: skip


def test_a_transaction_that_is_open_or_rolled_back_is_not_captured(items: Rig) -> None:
    with items.postgres.connect(items.database) as db:
        db.execute("BEGIN")
        db.execute("INSERT INTO items VALUES (1)")
        assert items.bind() == []
        db.execute("ROLLBACK")
    items.sql("INSERT INTO items VALUES (2)")
    assert items.changes(*items.bind()) == [("items", "c", (2, None, None))]


def test_steps_end_at_commits_and_keep_to_max_records_unless_one_transaction_is_larger(items: Rig) -> None:
    items.sql("CREATE SEQUENCE n")
    for size in (2, 2, 2, 9, 1):
        items.sql(f"INSERT INTO items SELECT nextval('n') FROM generate_series(1, {size})")
    bound = items.bind(transaction={"max_records": 4})
    assert sizes(items, bound) == [4, 2, 9, 1]
    assert [one.upper[WAL] for one in bound] == sorted({one.upper[WAL] for one in bound})


def test_a_big_transaction_goes_to_files_of_bounded_size_and_is_one_step(
    items: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_files, "FRAGMENT_BYTES", 20_000)
    items.sql("INSERT INTO items VALUES (0, 'before', 0)")
    items.sql("INSERT INTO items SELECT n, repeat('x', 100), n FROM generate_series(1, 1000) n")
    items.sql("INSERT INTO items VALUES (1001, 'after', 0)")
    bound = items.bind(transaction={"max_records": 10})
    assert sizes(items, bound) == [1, 1000, 1]
    files = json.loads(bound[1].manifest)["files"]
    assert len(files) > 5
    assert [file["seq"] for file in files] == list(range(files[0]["seq"], files[0]["seq"] + len(files)))
    assert [one["after"]["id"] for one in items.records(bound[1])] == list(range(1, 1001))


@pytest.mark.slow
def test_what_a_big_transaction_takes_of_memory_does_not_grow_with_it(
    items: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_files, "FRAGMENT_BYTES", 200_000)
    peaks = []
    for rows in (20_000, 200_000):
        items.sql(f"INSERT INTO items SELECT n, 'name ' || n FROM generate_series({rows}, {2 * rows - 1}) n")
        tracemalloc.start()
        [bound] = items.bind()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(items.records(bound)) == rows
    small, large = peaks
    assert large < 2 * small


def peeked(works: Rig) -> list[Sequence[bytes]]:
    with connect(CONN_ID) as db:
        return list(slots.peek(db, works.database, "p", changes_max=10**6))


def test_regression_no_batch_is_larger_than_it_may_be_however_rows_grow(items: Rig) -> None:
    sizes_of_rows = [10] * 4_600 + [50_000] * 400 + [10] * 600 + [1_000_000] * 12 + [10] * 9
    with items.postgres.connect(items.database) as db, db.transaction(), db.cursor() as cursor:
        query = "INSERT INTO items VALUES (%s, repeat('x', %s))"
        cursor.executemany(query, list(enumerate(sizes_of_rows)))
    batches = peeked(items)
    messages = [message for batch in batches for message in batch]
    assert sum(message[:1] == b"I" for message in messages) == len(sizes_of_rows)
    largest = max(map(len, messages))
    assert max(sum(map(len, batch)) for batch in batches) < slots.BATCH_BYTES + largest
    assert max(map(len, batches)) <= 4_000
    assert len(batches) < 20


def test_a_peek_that_is_given_up_halfway_leaves_a_session_that_can_go_on(items: Rig) -> None:
    items.sql("INSERT INTO items SELECT n, repeat('x', 1000) FROM generate_series(1, 40000) n")
    with connect(CONN_ID) as db:
        for _ in range(2):
            with db.transaction():
                slots.lock(db, items.database)
                with closing(slots.peek(db, items.database, "p", changes_max=10**6)) as batches:
                    assert len(next(batches)) > 1_000
            assert db.execute("SELECT 1").fetchone() == (1,)
            db.commit()
    # Neither do refusals and acknowledgements that hear the first of many messages only.
    items.sql("ALTER TABLE items ADD note text", "UPDATE items SET note = 'n'")
    [bound] = items.bind()
    acknowledge(items, bound)
    assert items.slot()[0] == bound.upper[WAL]
    with pytest.raises(InvalidUsage, match="'note' is not declared"):
        items.bind()


def test_one_source_transaction_over_two_tables_is_one_step(rig: MakeRig) -> None:
    works = rig(
        settings={"transaction": {"max_records": 1}},
        items=(ITEMS_SCHEMA, ["id"]),
        notes=(NOTES_SCHEMA, ["id"]),
    )
    works.ready(ITEMS, NOTES)
    works.bind()
    works.transaction("INSERT INTO items VALUES (1)", "INSERT INTO notes VALUES (1, 'of 1')")
    [bound] = works.bind()
    assert works.changes(bound) == [("items", "c", (1, None, None)), ("notes", "c", (1, "of 1"))]


def test_captures_that_overlap_after_a_crash_find_their_files_and_bind_each_change_once(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1)")
    last = items.bind()[-1]
    items.sql("INSERT INTO items VALUES (2)")
    crashed = items.source().offer(last)
    folder = Path(items.config().source_location)
    before = sorted(file.name for file in folder.iterdir())
    assert list(items.source().offer(last)) == list(crashed)
    assert sorted(file.name for file in folder.iterdir()) == before
    items.sql("INSERT INTO items VALUES (3)")
    assert items.changes(*items.bind()) == [("items", "c", (2, None, None)), ("items", "c", (3, None, None))]
    assert items.bind() == []


def test_a_run_that_comes_second_adopts_what_the_first_bound(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1)")
    one, two = items.begun(), items.begun()
    first, second = mint(one.pipeline, attempt()), mint(two.pipeline, attempt())
    assert (len(first.txns), second.txns) == (1, ())


def test_m5_runs_that_capture_at_once_while_the_database_goes_on_bind_each_change_once_and_in_order(
    items: Rig,
) -> None:
    def write() -> None:
        with items.postgres.connect(items.database) as db:
            for n in range(60):
                db.execute("INSERT INTO items VALUES (%s)", (n,))

    def take() -> list[Binding]:
        return [one for _ in range(3) for one in items.bind()]

    with ThreadPoolExecutor(4) as pool:
        writing = pool.submit(write)
        taking = [pool.submit(take) for _ in range(3)]
        writing.result()
        bound = [one for each in taking for one in each.result()]
    bound = sorted([*bound, *items.bind()], key=lambda one: one.txn)
    assert [row[0] for _, _, row in items.changes(*bound)] == list(range(60))


def test_s6_a_captured_file_that_is_lost_or_changed_is_named(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1)")
    [bound] = items.bind()
    source = items.source()
    assert source.inspect(bound) == ""
    [name] = [file["name"] for file in json.loads(bound.manifest)["files"]]
    path = source.files.folder / name
    path.write_bytes(path.read_bytes() + b"x")
    assert name in source.inspect(bound)
    path.unlink()
    assert "was removed" in source.inspect(bound)


# First readings


def test_a_first_reading_has_the_rows_and_changes_before_it_are_dropped(rig: MakeRig) -> None:
    works = rig(settings={"transaction": {"max_records": 2}}, items=(ITEMS_SCHEMA, ["id"]))
    works.ready(ITEMS)
    works.sql(*[f"INSERT INTO items VALUES ({n}, 'n{n}', {n})" for n in (1, 2, 3)])
    bound = works.bind()
    assert works.changes(*bound) == [("items", "c", (n, f"n{n}", f"{n}.00")) for n in (1, 2, 3)]
    # Two steps of rows, and an empty one that lets the slot forget what the rows have already.
    assert sizes(works, bound) == [2, 1, 0]
    works.sql("DELETE FROM items WHERE id = 2")
    assert works.changes(*works.bind()) == [("items", "d", (2,))]


def test_rows_that_come_while_tables_are_first_read_are_taken_exactly_once(rig: MakeRig) -> None:
    """Each row is inserted once and never again, so one that came twice, or never, would show."""
    tables = ("one", "two", "three")
    works = rig(**dict.fromkeys(tables, (NOTES_SCHEMA, ["id"])))
    works.ready(*[f"CREATE TABLE {name} (id int PRIMARY KEY, body text)" for name in tables])
    begun, enough = Barrier(4), Event()

    def write(writer: int) -> None:
        with works.postgres.connect(works.database) as db:
            for n in count(writer, 3):
                if n == 60 + writer:
                    begun.wait(WAIT_SECONDS_MAX)
                if enough.is_set():
                    return
                with db.transaction(force_rollback=n % 7 == 0):
                    for name in tables:
                        db.execute(f"INSERT INTO {name} VALUES (%s)", (n,))

    with ThreadPoolExecutor(3) as pool:
        writing = [pool.submit(write, writer) for writer in range(3)]
        begun.wait(WAIT_SECONDS_MAX)
        bound = works.bind()
        works.sql(*[f"INSERT INTO {name} VALUES (-1)" for name in tables])
        bound += works.bind()
        enough.set()
        for each in writing:
            each.result()
    bound += works.bind()
    captured = works.changes(*bound)
    for name in tables:
        there = [row[0] for row in works.sql(f"SELECT id FROM {name} ORDER BY id")]
        assert sorted(row[0] for table, _, row in captured if table == name) == there


def test_a_first_reading_is_not_done_again_for_tables_that_were_read_before_the_crash(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = rig(items=(ITEMS_SCHEMA, ["id"]), notes=(NOTES_SCHEMA, ["id"]))
    works.ready(ITEMS, NOTES, "INSERT INTO items VALUES (1)", "INSERT INTO notes VALUES (1)")
    taken: list[str] = []
    original = snapshot.read_range

    def crashing(published, *more):  # type: ignore[no-untyped-def]
        if published.name == "public.notes" and "public.notes" not in taken:
            taken.append("public.notes")
            raise KeyboardInterrupt
        taken.append(published.name)
        return original(published, *more)

    monkeypatch.setattr(snapshot, "read_range", crashing)
    with pytest.raises(KeyboardInterrupt):
        works.bind()
    works.sql("INSERT INTO items VALUES (2)")
    bound = works.bind()
    assert sorted(taken) == ["public.items", "public.notes", "public.notes"]
    assert sorted(works.changes(*bound)) == [
        ("items", "c", (1, None, None)), ("items", "c", (2, None, None)), ("notes", "c", (1, None)),
    ]  # fmt: skip


def test_a_table_that_is_added_later_is_read_alone_and_one_that_is_given_up_takes_a_generation(
    rig: MakeRig, items: Rig
) -> None:
    items.sql("INSERT INTO items VALUES (1)", NOTES, "INSERT INTO notes VALUES (7, 'old')")
    items.sql("ALTER TABLE notes REPLICA IDENTITY FULL", "ALTER PUBLICATION p ADD TABLE notes")
    items.bind()
    both = rig(items=(ITEMS_SCHEMA, ["id"]), notes=(NOTES_SCHEMA, ["id"]))
    both.sql("INSERT INTO notes VALUES (8, 'new')", "INSERT INTO items VALUES (2)")
    bound = both.bind()
    assert both.changes(*bound) == [
        ("notes", "c", (7, "old")), ("notes", "c", (8, "new")), ("items", "c", (2, None, None)),
    ]  # fmt: skip
    both.sql("INSERT INTO notes VALUES (9, 'newer')")
    with pytest.raises(InvalidUsage, match=r"public\.notes is captured by generation 0"):
        items.bind()
    # The process with the old settings doesn't let go of what the new ones take, either.
    acknowledge(items, bound[-1])
    assert both.changes(*both.bind()) == [("notes", "c", (9, "newer"))]
    assert items.changes(*items.bind(generation=1)) == []


def test_a_process_with_older_settings_does_not_let_go_of_a_table_that_was_read_and_is_not_bound_yet(
    rig: MakeRig, items: Rig
) -> None:
    items.sql("INSERT INTO items VALUES (1)", NOTES, "INSERT INTO notes VALUES (7, 'old')")
    items.sql("ALTER TABLE notes REPLICA IDENTITY FULL", "ALTER PUBLICATION p ADD TABLE notes")
    last = items.bind()[-1]
    both = rig(items=(ITEMS_SCHEMA, ["id"]), notes=(NOTES_SCHEMA, ["id"]))
    both.source().offer(last)
    read = both.log_end()
    both.sql("INSERT INTO notes VALUES (8, 'new')")
    acknowledge(items, last)
    assert items.slot()[0] <= read
    assert both.changes(*both.bind()) == [("notes", "c", (7, "old")), ("notes", "c", (8, "new"))]


# What an update sends


def test_u14_a_big_value_that_is_unchanged_and_not_sent_is_kept_in_and_across_transactions(
    rig: MakeRig,
) -> None:
    works = rig(notes=("id INT NOT NULL, body STRING, n INT", ["id"]))
    works.ready(
        "CREATE TABLE notes (id int PRIMARY KEY, body text, n int)",
        "ALTER TABLE notes ALTER COLUMN body SET STORAGE EXTERNAL",
        "INSERT INTO notes VALUES (1, 'small', 0)",
    )
    works.bind()
    big = "y" * 9_000
    works.transaction(f"UPDATE notes SET body = '{big}'", "UPDATE notes SET n = 1")
    works.sql("UPDATE notes SET n = 2")
    works.sql("UPDATE notes SET id = 5, n = 3")
    assert works.changes(*works.bind()) == [
        ("notes", "c", (1, big, 0)), ("notes", "c", (1, big, 1)), ("notes", "c", (1, big, 2)),
        ("notes", "d", (1,)), ("notes", "c", (5, big, 3)),
    ]  # fmt: skip


def test_u14_a_table_that_would_not_send_big_values_is_refused_with_the_sql_to_mend_it(rig: MakeRig) -> None:
    works = rig(items=(ITEMS_SCHEMA, ["id"]))
    works.ready(ITEMS)
    works.sql("ALTER TABLE items REPLICA IDENTITY DEFAULT")
    with pytest.raises(InvalidUsage, match=r"items: an update does not send name") as refused:
        works.bind()
    works.sql(refused.value.hint)
    works.bind()


def test_a_table_without_big_columns_needs_no_more_than_its_primary_key(rig: MakeRig) -> None:
    works = rig(counts=("a INT, b INT, n DECIMAL(10,2)", ["a", "b"]))
    works.ready("CREATE TABLE counts (a int, b int, n numeric(10,2), PRIMARY KEY (a, b))")
    works.sql("ALTER TABLE counts REPLICA IDENTITY DEFAULT", "INSERT INTO counts VALUES (1, 1, 0)")
    works.bind()
    works.sql("UPDATE counts SET n = 5", "UPDATE counts SET b = 2", "DELETE FROM counts")
    assert works.changes(*works.bind()) == [
        ("counts", "c", (1, 1, "5.00")), ("counts", "d", (1, 1)), ("counts", "c", (1, 2, "5.00")),
        ("counts", "d", (1, 2)),
    ]  # fmt: skip


def test_a_key_update_is_a_deletion_and_an_insertion(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1, 'a', 1)")
    items.bind()
    items.sql("UPDATE items SET id = 2")
    assert items.changes(*items.bind()) == [("items", "d", (1,)), ("items", "c", (2, "a", "1.00"))]


def test_d7_a_truncate_is_a_step_of_its_own_so_that_it_can_be_skipped_alone(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1)", "TRUNCATE items", "INSERT INTO items VALUES (2)")
    bound = items.bind()
    assert [items.changes(one) for one in bound] == [
        [("items", "c", (1, None, None))], [("items", "t", ())], [("items", "c", (2, None, None))],
    ]  # fmt: skip


# Schema changes


def test_e4_a_column_that_was_added_stops_the_capture_after_everything_before_it_is_bound(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1)", "ALTER TABLE items ADD note text")
    items.sql("INSERT INTO items VALUES (2, 'b', 2, 'n')")
    assert items.changes(*items.bind()) == [("items", "c", (1, None, None))]
    with pytest.raises(InvalidUsage, match="'note' is not declared") as refused:
        items.bind()
    assert "declare note STRING" in refused.value.hint
    items.schemas["items"] = (ITEMS_SCHEMA + ", note STRING", ["id"])
    assert items.changes(*items.bind()) == [("items", "c", (2, "b", "2.00", "n"))]


def test_a_column_that_was_dropped_is_refused_by_name_or_null_where_that_is_declared(items: Rig) -> None:
    items.sql("ALTER TABLE items DROP price", "INSERT INTO items VALUES (1, 'a')")
    with pytest.raises(InvalidUsage, match="declared column 'price' is not sent"):
        items.bind()
    [shard] = [shard.model_dump(by_alias=True) for shard in items.config().shards]
    shard = {"name": "items", "schema": ITEMS_SCHEMA, "keys": ["id"], "route": shard["route"]}
    bound = items.bind(shards=[{**shard, "on_schema_change": "missing_as_null"}])
    assert items.changes(*bound) == [("items", "c", (1, "a"))]


# Acknowledging


def test_f1_f13_traffic_of_other_tables_moves_the_slot_and_never_past_what_is_not_durable(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1)")
    [bound] = items.bind()
    before = items.slot()[0]
    items.sql("INSERT INTO foreigners SELECT n, 'x' FROM generate_series(1, 100) n")
    # Nothing is durable yet: a frontier below it moves nothing past the change that is bound.
    items.source().acknowledge(Frontier.of({PARTITION: 0, WAL: bound.lower[WAL]}))
    assert before <= items.slot()[0] < bound.upper[WAL]
    acknowledge(items, bound)
    assert items.slot()[0] > bound.upper[WAL]
    items.sql("INSERT INTO foreigners SELECT n, 'x' FROM generate_series(101, 200) n")
    idle = items.log_end()
    acknowledge(items, bound)
    assert items.slot()[0] >= idle
    # What comes next is still all there.
    items.sql("INSERT INTO items VALUES (2)")
    acknowledge(items, bound)
    assert items.changes(*items.bind()) == [("items", "c", (2, None, None))]


def test_published_tables_that_the_pipeline_does_not_take_hold_nothing_back(items: Rig) -> None:
    items.sql("ALTER PUBLICATION p ADD TABLE foreigners", "INSERT INTO items VALUES (1)")
    [bound] = items.bind()
    items.sql(*[f"INSERT INTO foreigners VALUES ({n})" for n in range(5)])
    idle = items.log_end()
    items.sql("INSERT INTO items VALUES (2)")
    acknowledge(items, bound)
    assert bound.upper[WAL] < items.slot()[0] <= idle
    assert items.changes(*items.bind()) == [("items", "c", (2, None, None))]


def test_an_acknowledgement_never_goes_back_and_a_repeat_is_nothing(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1)")
    [first] = items.bind()
    items.sql("INSERT INTO items VALUES (2)")
    [second] = items.bind()
    acknowledge(items, second)
    reached = items.slot()[0]
    acknowledge(items, first)
    assert items.slot()[0] >= reached >= second.upper[WAL]


# A slot that can't go on


def test_a_slot_that_was_made_anew_has_lost_changes_and_says_so(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1)")
    items.bind()
    items.sql(f"SELECT pg_drop_replication_slot('{items.database}')", "INSERT INTO items VALUES (2)")
    with pytest.raises(InvalidUsage, match="does not exist") as missing:
        items.bind()
    assert "pg_create_logical_replication_slot" in missing.value.hint
    items.sql(f"SELECT pg_create_logical_replication_slot('{items.database}', 'pgoutput')")
    with pytest.raises(InvalidUsage, match="created again, or advanced by another process"):
        items.bind()


def test_a_slot_that_the_server_has_invalidated_says_so_with_its_remedy(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1)")
    try:
        items.sql("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        items.sql(*["INSERT INTO foreigners VALUES (1) ON CONFLICT DO NOTHING", "SELECT pg_switch_wal()"] * 4)
        items.sql("CHECKPOINT")
        with pytest.raises(InvalidUsage, match="was invalidated by the server") as lost:
            items.bind()
    finally:
        items.sql("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    assert "max_slot_wal_keep_size" in lost.value.hint
    assert "was invalidated" in items.source().status().trouble
