"""A shard's log: the sealed parts become visible to every Delta reader, and come back as entries."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema

from tests.contract.helpers import LOG_SCHEMA
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import UPPER, Committed, Conflict, Put
from tidemark.core.log import LogEntry, UpperMismatch, decide_append
from tidemark.core.seal import Part
from tidemark.core.shape import Shape
from tidemark.delta.log import DeltaLog, parts_folder
from tidemark.delta.schema import properties_of

W = WriterToken("w-1.a_b")


def stage(log: Path, txn: int, rows: int, *, parts: int = 1, token: WriterToken = W) -> LogEntry:
    made = []
    folder = parts_folder(Txn(txn), token)
    (log / folder).mkdir(parents=True)
    for index in range(parts):
        path = f"{folder}/part-{index:05}.parquet"
        columns = {"id": range(rows), "value": ["v"] * rows, "_txn": [txn] * rows, "_op": ["U"] * rows}
        pq.write_table(pa.table({name: list(values) for name, values in columns.items()}), log / path)
        stats = {"numRecords": rows, "minValues": {"_txn": txn}, "maxValues": {"_txn": txn}}
        made.append(Part(path, rows, (log / path).stat().st_size, json.dumps(stats)))
    return LogEntry(Txn(txn), token, tuple(made))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "orders" / "log"


@pytest.fixture
def log(folder: Path) -> DeltaLog:
    return DeltaLog(str(folder), schema=LOG_SCHEMA)


def append(log: DeltaLog, entry: LogEntry) -> None:
    outcome = log.commit(log.head(), Put({UPPER: entry.txn + 1}, (entry,), None))
    assert isinstance(outcome, Committed)


def test_invariant_15_staged_parts_are_invisible_until_their_append(log: DeltaLog, folder: Path) -> None:
    """Invariant 15: a reader sees a transaction when its sealed parts are appended, and not before."""
    append(log, stage(folder, 1, 5))
    stage(folder, 2, 7)

    def count() -> int:
        query = QueryBuilder().register("log", DeltaTable(str(folder)))
        return int(query.execute("SELECT count(id) AS n FROM log").read_all()["n"][0].as_py())

    assert count() == 5
    append(log, stage(folder, 2, 11, token=WriterToken("other")))
    assert count() == 16


def test_an_entry_comes_back_after_many_appends_and_through_checkpoints(
    log: DeltaLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.delta.head.CHECKPOINT_BYTES_MIN", 0)
    entries = [stage(folder, txn, 2, parts=2) for txn in range(1, 26)]
    for entry in entries:
        append(log, entry)
    assert list((folder / "_delta_log").glob("*.checkpoint.parquet"))
    reader = DeltaLog(str(folder))
    assert reader.head().upper == 26
    assert list(reader.read(0, 99)) == entries
    assert list(reader.read(7, 8)) == [entries[6]]
    assert len(reader.find(W)) == 25


def test_invariant_8_found_parts_are_the_sealed_ones_in_any_order(log: DeltaLog, folder: Path) -> None:
    """Invariant 8: the same parts are the same; other ones under the number are an error."""
    entry = stage(folder, 1, 2, parts=3)
    append(log, LogEntry(entry.txn, entry.token, entry.parts[::-1]))
    head = log.head()
    [found] = log.read(1, 2)
    outcome = decide_append(head=head, expected=Txn(1), found=found, entry=entry)
    assert outcome == UpperMismatch(Txn(1), Txn(2))
    other = LogEntry(entry.txn, entry.token, entry.parts[:2])
    with pytest.raises(InvariantViolation, match="its seal has parts"):
        decide_append(head=head, expected=Txn(1), found=found, entry=other)


def test_statistics_that_are_not_true_are_refused(log: DeltaLog, folder: Path) -> None:
    entry = stage(folder, 1, 2)
    wrong = Part(entry.parts[0].path, 3, entry.parts[0].bytes, entry.parts[0].stats)
    with pytest.raises(InvariantViolation, match="has 3 rows, but its statistics say 2"):
        append(log, LogEntry(entry.txn, entry.token, (wrong,)))
    assert log.head().upper == 1


@pytest.mark.parametrize("path", ["part.parquet", "_txn-00000000000000000002/w/p", "../x", "/etc/x"])
def test_a_part_outside_its_transactions_folder_is_refused(log: DeltaLog, path: str) -> None:
    with pytest.raises(InvalidUsage, match="is not one of transaction 1"):
        append(log, LogEntry(Txn(1), W, (Part(path, 0, 0),)))


@pytest.mark.parametrize("token", ["", "a/b", "a b", "ä", "a=b", "%41"])
def test_a_token_that_is_no_folder_name_is_refused(token: str) -> None:
    with pytest.raises(InvalidUsage, match="can't be in a path"):
        parts_folder(Txn(1), WriterToken(token))


def test_two_writers_parts_under_one_number_are_an_error(log: DeltaLog, folder: Path) -> None:
    entries = [stage(folder, 1, 2), stage(folder, 1, 2, token=WriterToken("other"))]
    log.commit(log.head(), Put({UPPER: 2}, entries, None))
    log.head()
    with pytest.raises(InvariantViolation, match="transaction 1 has parts of"):
        log.read(0, 9)


def test_a_log_without_a_schema_can_be_opened_but_not_made(folder: Path) -> None:
    log = DeltaLog(str(folder))
    assert log.head().upper == 1
    with pytest.raises(InvalidUsage, match="no schema to create it with"):
        log.commit(log.head(), Put({UPPER: 2}, (), None))


def widened(*, value: str = "string") -> Schema:
    fields = json.loads(LOG_SCHEMA.to_json())["fields"]
    changed = [field | {"type": value} if field["name"] == "value" else field for field in fields]
    more = {"name": "more", "type": "long", "nullable": True, "metadata": {}}
    return Schema.from_json(json.dumps({"type": "struct", "fields": [more, *changed]}))


def test_e4_a_log_gets_the_columns_that_are_declared_later_and_other_changes_are_refused(
    log: DeltaLog, folder: Path
) -> None:
    append(log, stage(folder, 1, 2))
    wider, other = (DeltaLog(str(folder), schema=widened()) for _ in range(2))
    heads = [(one, one.head()) for one in (wider, other)]
    entry = stage(folder, 2, 2)
    # The table has moved on by its new column: who appends looks again, and so does whoever came second.
    for one, head in heads:
        assert isinstance(one.commit(head, Put({UPPER: 3}, (entry,), None)), Conflict)
    append(other, entry)
    assert wider.head().upper == 3
    columns = [field.name for field in DeltaTable(str(folder)).schema().fields]
    assert columns == ["id", "value", "_txn", "_op", "more"]
    with pytest.raises(
        InvalidUsage, match="'value' is recorded as STRING, and the pipeline file says BIGINT"
    ):
        DeltaLog(str(folder), schema=widened(value="long")).head()
    with pytest.raises(
        InvalidUsage, match="'more' is recorded as BIGINT, and the pipeline file does not declare it"
    ):
        DeltaLog(str(folder), schema=LOG_SCHEMA).head()


def test_a_log_says_by_what_its_rows_are_folded_and_keeps_to_it(folder: Path) -> None:
    def opened(keys: list[str], sequence_by: str | None) -> DeltaLog:
        shape = Shape({}, tuple(keys), sequence_by or "")
        return DeltaLog(str(folder), schema=LOG_SCHEMA, properties=properties_of(shape))

    append(opened(["id"], None), stage(folder, 1, 2))
    assert DeltaTable(str(folder)).metadata().configuration["tidemark.keys"] == '["id"]'
    assert opened(["id"], None).head().upper == 2
    with pytest.raises(
        InvalidUsage, match=r"keys is recorded as \[id\], and the pipeline file says \[id, value\]"
    ):
        opened(["id", "value"], None).head()
    with pytest.raises(
        InvalidUsage, match="sequence_by is recorded as none, and the pipeline file says value"
    ):
        opened(["id"], "value").head()
