"""Many rows written at once are the records that each row stands for: against a plain way, value by value."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.postgres import types

from tests.postgres.rowmessages import (
    UNCHANGED,
    Delete,
    Insert,
    Row,
    RowMessage,
    Update,
    encoded_row,
    parsed_lines,
    plain_records,
)
from tests.postgres.test_pgoutput import encoded
from tests.support.light import unpacked
from tidemark.config import PipelineConfig
from tidemark.core.binding import Step
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Frontier
from tidemark.sources.files.bound_files import PARTITION, Manifest
from tidemark.sources.postgres import change_files
from tidemark.sources.postgres.capture import Capture, Start
from tidemark.sources.postgres.change_files import WAL, ChangeFiles
from tidemark.sources.postgres.pgoutput import Begin, Commit, Relation, RelationColumn
from tidemark.sources.postgres.records import Table, place_of
from tidemark.sources.postgres.snapshot import copied
from tidemark.sources.postgres.tables import taken_shards
from tidemark.sources.postgres.values import declared_for

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
hard = st.sampled_from(['"', "\\", "\\N", "a\tb\n", "", "ä€😀", "\x1f\x7f", "null", '{"a": "b\\"c"}'])
times = ["2024-01-31 12:00:00", "1969-12-31 23:59:59.999999", "10000-01-01 00:00:00"]
VALUES: dict[str, st.SearchStrategy[str]] = {
    "int8": st.integers(-(2**63), 2**63 - 1).map(str),
    "text": st.one_of(texts, hard),
    "bool": st.sampled_from("tf"),
    "float8": st.sampled_from(["1", "-0", "0.1", "1e+20", "2.5e-308", "NaN", "Infinity", "-Infinity"]),
    "numeric": st.sampled_from(["1.50", "NaN", "-12345678901234567890.123", "0"]),
    "date": st.sampled_from(["2024-02-29", "infinity", "0044-03-15 BC"]),
    "timestamp": st.sampled_from([*times, "infinity", "-infinity", "0044-03-15 00:00:00 BC"]),
    "timestamptz": st.sampled_from(
        [*(f"{time}+00" for time in times), "infinity", "0044-03-15 00:00:00+00 BC"]
    ),
    "bytea": st.binary(max_size=9).map(lambda raw: f"\\x{raw.hex()}"),
    "_text": st.sampled_from(["{}", "{a,NULL}", '{"q\\"\\\\",NULL,"NULL"}', "{{1,2},{3,4}}"]),
    "_float8": st.sampled_from(["{1,NaN,NULL}", "[0:1]={0.5,-Infinity}"]),
    "uuid": st.uuids().map(str),
    "jsonb": st.sampled_from(['{"a": 1}', "[]", '"x"']),
}
BIG = ("text", "bytea", "_text", "jsonb")


def oid_of(kind: str) -> int:
    return types[kind[1:]].array_oid if kind.startswith("_") else types[kind].oid


def relation_of(oid: int, table: str, identity: str, kinds: Sequence[str], keys: Sequence[str]) -> Relation:
    columns = [RelationColumn(kind, oid_of(kind), -1, identity == "f" or kind in keys) for kind in kinds]
    return Relation(oid, "public", table, identity, tuple(columns))


# The keys are declared in another order than the columns have.
WIDE = relation_of(11, "wide", "f", [*VALUES], [])
SMALL = relation_of(22, "small", "d", ["text", "int8"], ["int8"])
LONG = relation_of(33, "long", "d", ["int8", "text"], ["text"])
KEYS = {WIDE.oid: ["text", "int8"], SMALL.oid: ["int8"], LONG.oid: ["text"]}
RELATIONS = {relation.oid: relation for relation in (WIDE, SMALL, LONG)}


def rows_of(relation: Relation) -> st.SearchStrategy[Row]:
    key = KEYS[relation.oid]
    each = [
        VALUES[column.name] if column.name in key else st.one_of(st.none(), VALUES[column.name])
        for column in relation.columns
    ]
    return st.tuples(*each)


@st.composite
def full_updates(draw: st.DrawFn) -> Update:
    """Values may be unchanged and not sent: big ones, of a row that was sent whole before."""
    old, new = draw(rows_of(WIDE)), list(draw(rows_of(WIDE)))
    for at, column in enumerate(WIDE.columns):
        if column.name in BIG and old[at] is not None and draw(st.booleans()):
            new[at] = UNCHANGED
        elif draw(st.booleans()):
            new[at] = old[at]
    return Update(WIDE.oid, old, True, tuple(new))


row_messages: st.SearchStrategy[RowMessage] = st.one_of(
    rows_of(WIDE).map(lambda row: Insert(WIDE.oid, row)),
    full_updates(),
    rows_of(WIDE).map(lambda row: Delete(WIDE.oid, row, True)),
    rows_of(SMALL).map(lambda row: Insert(SMALL.oid, row)),
    rows_of(SMALL).map(lambda row: Update(SMALL.oid, None, False, row)),
    st.builds(lambda key, row: Update(SMALL.oid, (None, key), False, row), VALUES["int8"], rows_of(SMALL)),
    VALUES["int8"].map(lambda key: Delete(SMALL.oid, (None, key), False)),
    # A key that is stored out of line and does not change comes with the old row.
    st.builds(
        lambda key, n: Update(LONG.oid, (None, key), False, (n, UNCHANGED)),
        *map(VALUES.get, ("text", "int8")),
    ),
)
transactions = st.lists(st.lists(row_messages, max_size=6), max_size=5)


def config_at(root: Path) -> PipelineConfig:
    shards = [
        {
            "name": name,
            "schema": ", ".join(f"`{c.name}` {declared_for(c.type_oid, -1)}" for c in relation.columns),
            "keys": KEYS[relation.oid],
            "route": {"table": relation.name},
        }
        for name, relation in (("wide", WIDE), ("small", SMALL), ("long", LONG))
    ]
    source = {"type": "postgres", "postgres_conn_id": "x", "slot": "s", "publication": "p"}
    settings = {
        "name": "p", "envelope": "debezium", "source": source, "warehouse": "wh", "shards": shards,
        "transaction": {"max_records": 9},
    }  # fmt: skip
    return PipelineConfig.model_validate(settings).at(root)


def messages_of(found: Sequence[Sequence[RowMessage]]) -> list[bytes]:
    """What a slot sends of these transactions."""
    messages = [encoded(relation) for relation in RELATIONS.values()]
    for xid, rows in enumerate(found):
        lsn = 100 * (xid + 1)
        messages += [encoded(Begin(lsn, 0, xid)), *map(encoded_row, rows), encoded(Commit(lsn, lsn + 9, 0))]
    return messages


def captured(root: Path, batches: Sequence[Sequence[bytes]]) -> Sequence[Step]:
    nobody: Any = None
    lower = Frontier.of({PARTITION: 0, WAL: 1})
    capture = Capture(config_at(root), ChangeFiles(str(root)), Start(lower, {}, {}, False), nobody)
    capture.take(batches)
    return capture.steps


def records_of(root: Path, steps: Sequence[Step]) -> list[Any]:
    files = [file.name for step in steps for file in Manifest.from_json(step.manifest).files]
    return [record for name in files for record in parsed_lines(unpacked(root / name))]


def names_of(steps: Sequence[Step]) -> list[list[str]]:
    return [[file.name for file in Manifest.from_json(step.manifest).files] for step in steps]


@settings(max_examples=150, deadline=None)
@given(transactions, st.data())
def test_what_is_captured_is_what_each_row_says_however_the_messages_come(
    found: list[list[RowMessage]], data: st.DataObject
) -> None:
    expected = [
        record
        for xid, rows in enumerate(found)
        for row in rows
        for record in plain_records(
            row, RELATIONS[row.relation], KEYS[row.relation], lsn=100 * (xid + 1), xid=xid
        )
    ]
    messages = messages_of(found)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(messages)), max_size=4)))
    batches = [messages[a:b] for a, b in zip([0, *cuts], [*cuts, len(messages)], strict=True) if a < b]
    with tempfile.TemporaryDirectory() as folder, patch.object(change_files, "FRAGMENT_BYTES", 1_500):
        root = Path(folder)
        steps = captured(root, batches)
        assert records_of(root, steps) == expected
        # The same again, in another rhythm: the same files, so that a crash leaves nothing that is not found.
        assert names_of(captured(root, [messages])) == names_of(steps)


def copy_text(row: Row) -> bytes:
    """A row as COPY writes it."""
    escapes = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
    each = ["\\N" if value is None else str(value).translate(str.maketrans(escapes)) for value in row]
    return ("\t".join(each) + "\n").encode()


@given(st.lists(rows_of(WIDE), min_size=1, max_size=6))
def test_a_row_that_is_copied_is_the_record_of_its_insertion(rows: list[Row]) -> None:
    table = Table.of(WIDE, taken_shards(config_at(Path("/nowhere")))[WIDE.name])
    lines = copied(table, b"".join(map(copy_text, rows)), place_of(WIDE, lsn=7, xid=0))
    plain = [plain_records(Insert(WIDE.oid, row), WIDE, KEYS[WIDE.oid], lsn=7, xid=0)[0] for row in rows]
    assert (len(lines), parsed_lines(lines.data)) == (len(rows), plain)


def test_a_value_keeps_its_spelling() -> None:
    row = ("1", "x", "t", "1", "1.50", "2024-02-29", *[None] * 7)
    table = Table.of(WIDE, taken_shards(config_at(Path("/nowhere")))[WIDE.name])
    line = bytes(copied(table, copy_text(row), place_of(WIDE, lsn=7, xid=0)).data)
    start = (
        b'{"op":"c","after":{"int8":1,"text":"x","bool":true,"float8":1,"numeric":"1.50","date":"2024-02-29"'
    )
    assert line.startswith(start)
    assert line.endswith(b'"jsonb":null},"source":{"schema":"public","table":"wide","lsn":7,"txId":0}}\n')
    assert json.loads(line)["after"]["uuid"] is None


@pytest.mark.parametrize(
    ("kind", "said", "written"),
    [
        ("float8", "-0", b"-0.0"),
        ("float8", "0", b"0"),
        ("float8", "-1", b"-1"),
        ("timestamp", "0044-03-15 12:00:00 BC", b'"0044-03-15T12:00:00 BC"'),
        ("timestamptz", "0044-03-15 12:00:00.5+00 BC", b'"0044-03-15T12:00:00.5Z BC"'),
        ("timestamptz", "10000-01-01 00:00:00+00", b'"10000-01-01T00:00:00Z"'),
        ("timestamptz", "infinity", b'"infinity"'),
    ],
)
def test_regression_a_zero_keeps_its_sign_and_a_time_before_christ_its_zone(
    kind: str, said: str, written: bytes
) -> None:
    row = ["1", "x", *[None] * (len(VALUES) - 2)]
    row[[*VALUES].index(kind)] = said
    table = Table.of(WIDE, taken_shards(config_at(Path("/nowhere")))[WIDE.name])
    line = bytes(copied(table, copy_text(tuple(row)), place_of(WIDE, lsn=7, xid=0)).data)
    assert b'"%b":%b' % (kind.encode(), written) in line


FINE = Insert(SMALL.oid, ("a", "1"))
WIDE_NULLS = [None] * (len(VALUES) - 2)
BAD = {
    "cut": (encoded_row(FINE)[:-1], "can't be read"),
    "binary": (encoded_row(Insert(SMALL.oid, ("a", b"\0"))), "binary form"),
    "not sent": (encoded_row(Update(SMALL.oid, None, False, (UNCHANGED, "1"))), "did not send"),
    "not sent by a partition": (
        encoded_row(Update(WIDE.oid, ("1", "a", *WIDE_NULLS), True, ("1", "a", *WIDE_NULLS[:-1], UNCHANGED))),
        "did not send the unchanged value of the big column 'jsonb'",
    ),
    "deleted without a key": (
        encoded_row(Delete(WIDE.oid, ("1", None, *WIDE_NULLS), True)),
        "without its key column 'text'",
    ),
    "moved without a key": (
        encoded_row(Update(WIDE.oid, (None, "a", *WIDE_NULLS), True, ("1", "a", *WIDE_NULLS))),
        "without its key column 'int8'",
    ),
    "not UTF-8": (encoded_row(FINE).replace(b"a", b"\xff"), "not UTF-8"),
    "unknown": (b"S\0", "is not known"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_message_that_cant_be_taken_ends_the_capture_at_the_commit_before(
    what: str, tmp_path: Path
) -> None:
    raw, reason = BAD[what]
    messages = messages_of([[FINE], [FINE, FINE, FINE]])
    messages[-3] = raw
    steps = captured(tmp_path, [messages])
    assert [record["source"]["lsn"] for record in records_of(tmp_path, steps)] == [100]
    assert steps[-1].upper[WAL] == 109
    with pytest.raises(InvalidUsage, match=reason):
        captured(tmp_path, [messages[:3] + messages[6:]])
