"""What is wrong with a database is told once, clearly, with what to do; and a password is told nowhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import psycopg
import pytest
import yaml

from tests.support.postgres import PASSWORD, Postgres
from tests.support.postgres_pipeline import CONN_ID, ITEMS, ITEMS_SCHEMA, Rig, file_of, told
from tidemark.config import load_pipeline
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.sources.postgres import slot as slots
from tidemark.sources.postgres.change_files import WAL
from tidemark.sources.postgres.pgoutput import lsn_text
from tidemark.sources.postgres.slot import SETTINGS, connect, parameters_of

pytestmark = pytest.mark.server
MakeRig = Callable[..., Rig]
VARIABLE = f"AIRFLOW_CONN_{CONN_ID.upper()}"


@pytest.fixture
def items(rig: MakeRig) -> Rig:
    works = rig(items=(ITEMS_SCHEMA, ["id"]))
    works.ready(ITEMS)
    return works


def test_wrong_credentials_are_one_clear_message_without_the_password(
    items: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, items.postgres.uri(items.database).replace(PASSWORD, "wrong-horse"))
    with pytest.raises(InvalidUsage, match="password authentication failed for user") as refused:
        items.bind()
    assert "wrong-horse" not in str(refused.value)


def test_a_database_or_a_connection_that_is_not_there_is_named(
    items: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, items.postgres.uri("nowhere"))
    with pytest.raises(InvalidUsage, match='database "nowhere" does not exist'):
        items.bind()
    monkeypatch.setenv(VARIABLE, "postgres://owner:hidden-word@[broken")
    with pytest.raises(InvalidUsage, match="can't be read") as unreadable:
        items.bind()
    assert "hidden-word" not in str(unreadable.value)
    monkeypatch.setenv(VARIABLE, f"postgres://owner:{PASSWORD}@127.0.0.1:1/x")
    with pytest.raises(Determinate, match=" failed: ") as down:
        items.bind()
    assert PASSWORD not in str(down.value)


def test_a_connection_may_be_a_uri_or_airflows_json(postgres: Postgres) -> None:
    fields = {"conn_type": "postgres", "host": "h", "port": 5, "schema": "d", "login": "u", "password": "p%"}
    as_json = json.dumps({**fields, "extra": json.dumps({"sslmode": "require", "cursor": "dict"})})
    wanted = {"host": "h", "port": "5", "dbname": "d", "user": "u", "password": "p%", "sslmode": "require"}
    extra = quote(json.dumps({"sslmode": "require", "cursor": "dict"}))
    uri = "postgres://u:p%25@h:5/d"
    for text in (as_json, f"{uri}?sslmode=require", f"{uri}?__extra__={extra}"):
        assert parameters_of("x", {"AIRFLOW_CONN_X": text}) == wanted


def test_limits_that_a_server_has_for_its_sessions_do_not_end_ours(items: Rig) -> None:
    limits = ("statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
    items.sql(*[f"ALTER DATABASE {items.database} SET {name} = '7min'" for name in limits])
    for replication in (False, True):
        with connect(CONN_ID, replication=replication) as db:
            assert [db.execute(f"SHOW {name}").fetchone() for name in limits] == [("0",)] * 3


def test_a_slot_that_others_hold_for_too_long_is_acknowledged_by_the_next_run(
    items: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    items.bind()
    items.sql("INSERT INTO items VALUES (1)")
    [bound] = items.bind()
    before = items.slot()[0]
    with monkeypatch.context() as short, items.postgres.connect(items.database) as db:
        short.setitem(SETTINGS, "lock_timeout", "100ms")
        db.execute("BEGIN")
        slots.lock(db, items.database)
        items.source().acknowledge(bound.upper)
        db.execute("ROLLBACK")
    assert ("the slot is in use" in caplog.text, items.slot()[0]) == (True, before)
    items.source().acknowledge(bound.upper)
    assert items.slot()[0] >= bound.upper[WAL]


def test_a_slot_that_can_not_go_on_is_a_state_that_status_shows(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1)")
    bound = items.bind()
    path = str(file_of(items))
    assert json.loads(told("status", path, "--json")[1])["source"]["trouble"] == ""
    with ends_at(bound[-1].upper[WAL] - 1):
        trouble = json.loads(told("status", path, "--json")[1])["source"]["trouble"]
    assert "the database's log ends at" in trouble
    items.sql(f"SELECT pg_drop_replication_slot('{items.database}')", "INSERT INTO items VALUES (2)")
    items.sql(f"SELECT pg_create_logical_replication_slot('{items.database}', 'pgoutput')")
    source = json.loads(told("status", path, "--json")[1])["source"]
    assert "it was created again, or advanced by another process" in source["trouble"]
    assert source["acknowledged"] == lsn_text(items.slot()[0])


@contextmanager
def ends_at(lsn: int) -> Iterator[None]:
    """A database whose log ends earlier: an older copy of it."""
    found = slots.find_slot

    def older(db: psycopg.Connection, slot: str) -> slots.SlotState | None:
        state = found(db, slot)
        return state and replace(state, log_end=lsn)

    with patch.object(slots, "find_slot", older):
        yield


def test_a_missing_publication_is_named_with_the_sql(items: Rig) -> None:
    items.sql("DROP PUBLICATION p")
    with pytest.raises(InvalidUsage, match="publication 'p' does not exist") as refused:
        items.bind()
    assert "CREATE PUBLICATION p" in refused.value.hint


def test_a_dropped_table_is_named_before_and_after_it_was_read(items: Rig) -> None:
    items.bind()
    items.sql("DROP TABLE items")
    with pytest.raises(
        InvalidUsage, match=r"table public\.items is not in publication 'p', or does not exist"
    ):
        items.bind()


def test_a_first_reading_that_waits_for_an_old_transaction_says_so(
    items: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as short, items.postgres.connect(items.database) as db:
        short.setitem(SETTINGS, "lock_timeout", "200ms")
        db.execute("BEGIN")
        db.execute("INSERT INTO items VALUES (1)")
        with pytest.raises(Determinate, match=r"first reading of table public\.items waits") as waits:
            items.bind()
        db.execute("ROLLBACK")
    assert "pg_stat_activity" in waits.value.hint
    assert len(items.bind()) == 1


def test_regression_a_table_that_others_have_locked_is_told_as_that_and_not_as_the_slot_in_use(
    items: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as short, items.postgres.connect(items.database) as db:
        short.setitem(SETTINGS, "lock_timeout", "200ms")
        db.execute("BEGIN")
        db.execute("LOCK TABLE items IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Determinate, match="a table is locked by others") as waits:
            items.bind()
        query = waits.value.hint.partition(": ")[2].partition(";")[0]
        assert [(table, said) for table, _, said in items.sql(query)] == [
            ("items", "LOCK TABLE items IN ACCESS EXCLUSIVE MODE")
        ]
        db.execute("ROLLBACK")
    assert len(items.bind()) == 1


def test_regression_a_table_whose_policies_hide_rows_is_refused_and_not_read_as_empty(
    items: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    items.sql("INSERT INTO items VALUES (1)", "ALTER TABLE items ENABLE ROW LEVEL SECURITY")
    items.sql("DROP ROLE IF EXISTS hidden", "CREATE ROLE hidden LOGIN REPLICATION PASSWORD 'plain-word'")
    items.sql("GRANT SELECT ON items TO hidden")
    uri = items.postgres.uri(items.database).replace(f"owner:{PASSWORD}", "hidden:plain-word")
    monkeypatch.setenv(VARIABLE, uri)
    with pytest.raises(InvalidUsage, match="row-level security"):
        items.bind()
    code, output = told("source", "check", str(file_of(items)))
    fix = 'ALTER ROLE "hidden" BYPASSRLS'
    assert (code, fix in output) == (2, True)
    items.sql(fix)
    assert told("source", "check", str(file_of(items)))[0] == 0
    assert items.changes(*items.bind()) == [("items", "c", (1, None, None))]


def test_d7_a_changed_key_is_refused_by_name_and_nothing_is_bound(items: Rig) -> None:
    items.bind()
    items.sql(
        "ALTER TABLE items DROP CONSTRAINT items_pkey", "UPDATE items SET name = '' WHERE name IS NULL",
        "ALTER TABLE items ADD PRIMARY KEY (id, name)", "INSERT INTO items VALUES (1, 'a'), (1, 'b')",
    )  # fmt: skip
    with pytest.raises(InvalidUsage, match=r"the key is \(id\), but the table's own key is \(id, name\)"):
        items.bind()


@pytest.mark.parametrize(
    ("column", "declared", "hint"),
    [
        ("numeric(12,4)", "DECIMAL(12,2)", "DECIMAL(12,4)"),
        ("numeric", "DECIMAL(38,10)", "STRING"),
        ("bigint", "INT", "BIGINT"),
        ("timestamptz", "TIMESTAMP_NTZ", "TIMESTAMP"),
        ("float8", "FLOAT", "DOUBLE"),
        ("numeric(5,1)[]", "ARRAY<DECIMAL(5,0)>", "ARRAY<DECIMAL(5,1)>"),
        ("jsonb", "STRUCT<a: INT>", "STRING"),
    ],
)
def test_a_type_that_would_lose_something_is_refused_before_anything_is_captured(
    rig: MakeRig, column: str, declared: str, hint: str
) -> None:
    works = rig(lossy=(f"id INT NOT NULL, v {declared}", ["id"]))
    works.ready(f"CREATE TABLE lossy (id int PRIMARY KEY, v {column})")
    with pytest.raises(InvalidUsage, match=r"'v' can't be read as .* without loss") as refused:
        works.bind()
    assert f"declare it as {hint}" in refused.value.hint


def test_a_pipeline_file_that_can_not_work_is_refused_at_definition(items: Rig) -> None:
    """Invariant 14."""
    source = items.config().source.model_dump()
    broken: dict[str, tuple[dict[str, Any], str]] = {
        "envelope": ({"envelope": "upsert"}, "captured as debezium records"),
        "place": ({"warehouse": "s3://bucket/wh"}, "local or mounted warehouse"),
        "slot": ({"source": {**source, "slot": "A-B"}}, "not a replication slot's name"),
        "secret": ({"source": {**source, "postgres_conn_id": "postgres://u:p@h/d"}}, "not a connection's id"),
    }
    for settings, fact in broken.values():
        with pytest.raises(ValueError, match="validation error") as refused:
            items.config(**settings)
        assert fact in str(refused.value)
        assert "u:p@h" not in str(refused.value)


def test_source_check_names_what_is_missing_with_the_sql_that_mends_it(rig: MakeRig) -> None:
    works = rig(items=(ITEMS_SCHEMA, ["id"]))
    path = str(file_of(works))
    code, output = told("source", "check", path)
    assert code == 2
    assert f"SELECT pg_create_logical_replication_slot('{works.database}', 'pgoutput')" in output
    assert "CREATE PUBLICATION p" in output
    works.ready(ITEMS)
    works.sql("ALTER TABLE items REPLICA IDENTITY DEFAULT")
    code, output = told("source", "check", path)
    assert (code, "ALTER TABLE public.items REPLICA IDENTITY FULL" in output) == (2, True)
    works.sql("ALTER TABLE items REPLICA IDENTITY FULL")
    code, output = told("source", "check", path, "--json")
    assert code == 0
    assert {one["what"] for one in json.loads(output)["requirements"]} >= {
        "wal_level", "role", "slot", "log retained", "publication", "tables",
    }  # fmt: skip
    assert PASSWORD not in output


def test_source_check_names_rights_that_a_plain_role_lacks(
    items: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    items.sql("DROP ROLE IF EXISTS plain", "CREATE ROLE plain LOGIN PASSWORD 'plain-word'")
    uri = items.postgres.uri(items.database).replace(f"owner:{PASSWORD}", "plain:plain-word")
    monkeypatch.setenv(VARIABLE, uri)
    code, output = told("source", "check", str(file_of(items)))
    assert code == 2
    assert 'ALTER ROLE "plain" REPLICATION' in output
    assert 'GRANT SELECT ON "public"."items" TO "plain"' in output
    with pytest.raises(InvalidUsage, match="REPLICATION attribute"):
        items.bind()


def test_source_check_finds_rights_on_names_that_need_quotes_and_on_their_schema(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = rig(items=(ITEMS_SCHEMA, ["id"]))
    works.sql('CREATE SCHEMA "Shop"', ITEMS.replace("items", '"Shop"."Items"'))
    works.sql('ALTER TABLE "Shop"."Items" REPLICA IDENTITY FULL')
    works.sql('CREATE PUBLICATION p FOR TABLE "Shop"."Items"', slots.create_sql(works.database))
    works.sql("DROP ROLE IF EXISTS quoted", "CREATE ROLE quoted LOGIN REPLICATION PASSWORD 'plain-word'")
    uri = works.postgres.uri(works.database).replace(f"owner:{PASSWORD}", "quoted:plain-word")
    monkeypatch.setenv(VARIABLE, uri)
    path = file_of(works)
    path.write_text(path.read_text().replace("public.items", "Shop.Items"))
    grants = [
        'GRANT USAGE ON SCHEMA "Shop" TO "quoted"', 'GRANT SELECT ON "Shop"."Items" TO "quoted"',
    ]  # fmt: skip
    code, output = told("source", "check", str(path))
    assert (code, [one in output for one in grants]) == (2, [True, True])
    works.sql(*grants)
    assert told("source", "check", str(path))[0] == 0


def test_source_schema_writes_shards_that_the_database_accepts(rig: MakeRig) -> None:
    works = rig(items=(ITEMS_SCHEMA, ["id"]))
    works.ready(
        "CREATE TABLE items (id int PRIMARY KEY, tags text[], at timestamptz, n numeric, p numeric(9,3))"
    )
    code, output = told("source", "schema", CONN_ID, "p")
    assert code == 0
    path = file_of(works)
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **yaml.safe_load(output)}))
    [shard] = load_pipeline(path).shards
    assert shard.columns.ddl == (
        "`id` INT NOT NULL, `tags` ARRAY<STRING>, `at` TIMESTAMP, `n` STRING, `p` DECIMAL(9,3)"
    )
    assert told("source", "check", str(path))[0] == 0


def test_status_tells_received_flushed_acknowledged_and_what_the_slot_costs(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1)")
    bound = items.bind()
    path = str(file_of(items))
    code, output = told("status", path, "--json")
    source = json.loads(output)["source"]
    assert code == 0
    assert source["received"] == items.source().shown(bound[-1].upper)
    assert source["flushed"] == "0/0"
    assert source["held_back_by"] == ["transaction 1, which is not sealed"]
    assert "bytes of log kept by the server" in source["cost"]
    items.sql(f"SELECT pg_drop_replication_slot('{items.database}')")
    code, output = told("status", path)
    assert (code, "does not exist" in output) == (0, True)


def test_the_password_is_in_nothing_that_is_kept(items: Rig) -> None:
    items.sql("INSERT INTO items VALUES (1)")
    bound = items.bind()
    items.source().acknowledge(bound[-1].upper)
    kept = [file for file in items.root.rglob("*") if file.is_file()]
    assert len(kept) > 3
    assert not [file for file in kept if PASSWORD.encode() in file.read_bytes()]
