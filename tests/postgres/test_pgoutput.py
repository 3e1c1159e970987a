"""The pgoutput parser: against bytes put together by hand, and against what a server really sends."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.postgres.rowmessages import (
    UNCHANGED,
    Delete,
    Insert,
    RowMessage,
    Update,
    encoded_row,
    understood,
)
from tests.support.postgres import Postgres
from tidemark.core.errors import InvalidUsage
from tidemark.sources.postgres.pgoutput import (
    Begin,
    Broken,
    Commit,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    RelationColumn,
    Truncate,
    TypeName,
    lsn_text,
    parse,
    parsed_lsn,
)

oids = st.integers(0, 2**32 - 1)
lsns = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
values = st.one_of(
    st.none(), st.just(UNCHANGED), st.text(st.characters(exclude_categories=["Cs"])), st.binary(max_size=40)
)
WIDTH = 3
rows = st.tuples(*[values] * WIDTH)
row_messages: st.SearchStrategy[RowMessage] = st.one_of(
    st.builds(Insert, oids, rows),
    st.builds(Update, oids, st.none(), st.just(False), rows),
    st.builds(Update, oids, rows, st.booleans(), rows),
    st.builds(Delete, oids, rows, st.booleans()),
)
columns = st.builds(RelationColumn, names, oids, st.integers(-(2**31), 2**31 - 1), st.booleans())
messages = st.one_of(
    st.builds(Begin, lsns, times, oids),
    st.builds(Commit, lsns, lsns, times),
    st.builds(
        Relation, oids, names, names, st.sampled_from("dnfi"), st.lists(columns, max_size=5).map(tuple)
    ),
    st.builds(TypeName, oids, names, names),
    st.builds(Truncate, st.lists(oids, max_size=4).map(tuple), st.booleans(), st.booleans()),
    st.builds(Origin, lsns, names),
    st.builds(LogicalMessage, st.booleans(), lsns, names, st.binary(max_size=40)),
)


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def encoded(message: Message) -> bytes:
    """The documented format, written down a second time."""
    match message:
        case Begin(lsn, at, xid):
            return b"B" + struct.pack("!QqI", lsn, at, xid)
        case Commit(lsn, end, at):
            return b"C\0" + struct.pack("!QQq", lsn, end, at)
        case Relation(oid, schema, table, identity, listed):
            head = b"R" + struct.pack("!I", oid) + text(schema) + text(table) + identity.encode()
            body = [
                bytes([column.in_key]) + text(column.name)
                + struct.pack("!Ii", column.type_oid, column.type_modifier)
                for column in listed
            ]  # fmt: skip
            return head + struct.pack("!h", len(listed)) + b"".join(body)
        case TypeName(oid, schema, name):
            return b"Y" + struct.pack("!I", oid) + text(schema) + text(name)
        case Truncate(relations, cascade, restart):
            ids = b"".join(struct.pack("!I", oid) for oid in relations)
            return b"T" + struct.pack("!iB", len(relations), cascade + 2 * restart) + ids
        case Origin(lsn, name):
            return b"O" + struct.pack("!Q", lsn) + text(name)
        case LogicalMessage(transactional, lsn, prefix, content):
            head = b"M" + struct.pack("!BQ", transactional, lsn)
            return head + text(prefix) + struct.pack("!i", len(content)) + content


@given(messages)
def test_every_message_comes_back_as_it_was_written(message: Message) -> None:
    assert parse(encoded(message)) == message


@given(messages, st.data())
def test_a_message_that_is_cut_or_too_long_is_refused_and_never_read_halfway(
    message: Message, data: st.DataObject
) -> None:
    raw = encoded(message)
    with pytest.raises(InvalidUsage, match="can't be read"):
        parse(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(InvalidUsage, match="left over"):
        parse(raw + b"\0")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(raw: bytes) -> None:
    with suppress(InvalidUsage):
        assert parse(raw) == parse(encoded(parse(raw)))


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(InvalidUsage, match="kind 'S' is not known"):
        parse(b"S\0\0\0\0\1")


@given(st.lists(row_messages, max_size=8))
def test_every_row_comes_back_as_it_was_written(some: list[RowMessage]) -> None:
    assert understood(list(map(encoded_row, some)), WIDTH) == some


@given(st.lists(row_messages, min_size=1, max_size=5), st.data())
def test_a_row_that_is_cut_or_too_long_is_found_and_never_read_halfway(
    some: list[RowMessage], data: st.DataObject
) -> None:
    batch = list(map(encoded_row, some))
    at = data.draw(st.integers(0, len(batch) - 1))
    whole = batch[at]
    for raw in (whole[: data.draw(st.integers(1, len(whole) - 1))], whole + b"\0"):
        batch[at] = raw
        with pytest.raises(Broken) as broken:
            understood(batch, WIDTH)
        assert broken.value.at == at
        assert "can't be read" in str(broken.value.error)


@given(st.lists(st.binary(min_size=1, max_size=40).map(lambda raw: b"U" + raw), min_size=1, max_size=4))
def test_any_bytes_are_rows_or_refused(batch: list[bytes]) -> None:
    with suppress(Broken):
        assert list(map(encoded_row, understood(batch, WIDTH))) == batch


def test_a_row_has_as_many_values_as_its_table_has_columns() -> None:
    batch = [encoded_row(Insert(7, ("a", None, ""))), encoded_row(Insert(7, ("a", None)))]
    with pytest.raises(Broken) as broken:
        understood(batch, WIDTH)
    assert broken.value.at == 1


def test_an_unchanged_value_is_not_null_and_not_an_empty_text() -> None:
    raw = b"U" + struct.pack("!I", 7) + b"N" + struct.pack("!h", 3) + b"unt" + struct.pack("!i", 0)
    assert understood([raw], WIDTH) == [Update(7, None, False, (UNCHANGED, None, ""))]


@given(lsns)
def test_log_positions_keep_their_spelling_and_their_order(lsn: int) -> None:
    assert parsed_lsn(lsn_text(lsn)) == lsn


def test_log_positions_are_spelled_as_the_server_does() -> None:
    assert (lsn_text(0x16_B374D848), parsed_lsn("0/16B3748")) == ("16/B374D848", 0x16B3748)
    with pytest.raises(InvalidUsage, match="not a log position"):
        parsed_lsn("16B3748")


def peeked(
    postgres: Postgres, database: str, *statements: str, columns: int
) -> tuple[Sequence[Message], Sequence[RowMessage]]:
    """What a new slot sees of some statements: rows, and what is between them."""
    with postgres.connect(database) as db:
        db.execute("SELECT pg_create_logical_replication_slot('parser', 'pgoutput')")
        for statement in statements:
            db.execute(statement)
        found = db.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes('parser', NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
        ).fetchall()
        db.execute("SELECT pg_drop_replication_slot('parser')")
    messages = [bytes(row[0]) for row in found]
    others = [parse(raw) for raw in messages if raw[:1] not in (b"I", b"U", b"D")]
    return others, understood(messages, columns)


@pytest.mark.server
def test_what_a_real_server_sends_is_read(postgres: Postgres, database: str) -> None:
    with postgres.connect(database) as db:
        db.execute("CREATE TYPE mood AS ENUM ('calm', 'wild')")
        db.execute("CREATE TABLE pets (id int PRIMARY KEY, name text, mood mood, price numeric(10,2))")
        db.execute("ALTER TABLE pets ALTER COLUMN name SET STORAGE EXTERNAL")
        db.execute("CREATE PUBLICATION p FOR TABLE pets")
    big = "x" * 10_000
    found, rows = peeked(
        postgres,
        database,
        f"INSERT INTO pets VALUES (1, '{big}', 'calm', 1.5)",
        "UPDATE pets SET mood = NULL",
        "UPDATE pets SET id = 2",
        "ALTER TABLE pets REPLICA IDENTITY FULL; UPDATE pets SET price = 2",
        "DELETE FROM pets",
        "SELECT pg_logical_emit_message(true, 'note', 'hello')",
        "TRUNCATE pets RESTART IDENTITY",
        columns=4,
    )
    relations = [one for one in found if isinstance(one, Relation)]
    oid = relations[0].oid
    assert (relations[0].name, relations[0].identity, relations[-1].identity) == ("public.pets", "d", "f")
    assert [(c.name, c.in_key) for c in relations[0].columns] == [
        ("id", True), ("name", False), ("mood", False), ("price", False),
    ]  # fmt: skip
    assert (relations[0].columns[3].type_modifier - 4) >> 16 == 10
    assert [one.name for one in found if isinstance(one, TypeName)][:1] == ["mood"]
    assert rows == [
        Insert(oid, ("1", big, "calm", "1.50")),
        Update(oid, None, False, ("1", UNCHANGED, None, "1.50")),
        Update(oid, ("1", None, None, None), False, ("2", UNCHANGED, None, "1.50")),
        Update(oid, ("2", big, None, "1.50"), True, ("2", UNCHANGED, None, "2.00")),
        Delete(oid, ("2", big, None, "2.00"), True),
    ]
    assert [one for one in found if isinstance(one, Truncate)] == [Truncate((oid,), False, True)]
    notes = [one for one in found if isinstance(one, LogicalMessage)]
    assert [(note.prefix, note.content) for note in notes] == [("note", b"hello")]
    commits = [one for one in found if isinstance(one, Commit)]
    begins = [one for one in found if isinstance(one, Begin)]
    assert [one.lsn for one in begins] == [one.lsn for one in commits]
    assert all(one.lsn < one.end_lsn for one in commits)
