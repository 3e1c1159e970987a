"""Records become JSON and come back the same, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.helpers import binding
from tests.delta.helpers import open_journal, put_next
from tidemark.core.binding import Claim, Owner
from tidemark.core.checkpoint import Checkpoint, TableMark
from tidemark.core.checksum import Digest
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import FORMAT, Event, JournalEntry
from tidemark.core.seal import Decision, Part, Seal, ShardParts
from tidemark.delta import ledger as ledger_module
from tidemark.delta.records import Codec, Row, checkpoints_codec, history_codec, journal_codec

BIG = Digest.of([2**64 - 1, 2**63, 5])
SEAL = Seal(
    Txn(3),
    WriterToken("w"),
    2,
    Decision.ACCEPTED,
    BIG,
    {ShardId("orders"): ShardParts((Part("_txn-3/w", 3, 10, '{"numRecords":3}'),), BIG, held="späte Daten")},
    engine="e",
    reason="known",
    watermark=-4,
)
RECORDS: list[tuple[Codec[Any], Any]] = [
    (history_codec(), binding(7, {"p": 1}, {"p": 2, "q": 9})),
    (history_codec(), Claim(7, Owner("r", "2026-01-01", "part"))),
    (history_codec(), SEAL),
    (checkpoints_codec(), Checkpoint(Txn(4), {ShardId("orders"): TableMark(Txn(5), Txn(4))})),
    (journal_codec(), JournalEntry(1, Txn(2), Event.LOST, WriterToken("w"), {"winner": "v"})),
]


def row_of(codec: Codec[Any], record: Any) -> Row:
    return Row(
        record.number, codec.kind_of(record), record.key, None, None, None, FORMAT, 0, codec.encode(record)
    )


@pytest.mark.parametrize(("codec", "record"), RECORDS, ids=lambda value: type(value).__name__)
def test_a_record_comes_back_the_same(codec: Codec[Any], record: Any) -> None:
    assert codec.decode(row_of(codec, record), table="t") == record


def test_a_parts_statistics_come_back_too() -> None:
    found = history_codec().decode(row_of(history_codec(), SEAL), table="t")
    assert found.shards[ShardId("orders")].parts[0].stats == '{"numRecords":3}'


def test_p6_an_older_checkpoint_without_a_transaction_number_starts_at_0() -> None:
    row = Row(0, "checkpoint", "", None, None, None, FORMAT, 0, '{"tables": {}}')
    assert checkpoints_codec().decode(row, table="t") == Checkpoint()


def test_p6_a_record_of_an_older_format_is_refused() -> None:
    codec, record = RECORDS[-1]
    with pytest.raises(InvalidUsage, match=r"t has records of format 0.*older version"):
        codec.decode(replace(row_of(codec, record), format=0), table="t")


def test_p6_a_journal_of_an_older_format_is_refused_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "FORMAT", FORMAT - 1)
    put_next(open_journal(tmp_path / "journal"))
    monkeypatch.undo()
    reader = open_journal(tmp_path / "journal")
    reader.head()
    with pytest.raises(InvalidUsage, match=f"has records of format {FORMAT - 1}, and this"):
        reader.read(0, 99)


@pytest.mark.parametrize(
    "change",
    [{"number": 8}, {"key": "9"}, {"kind": "unheard"}, {"body": "{}"}, {"body": "not JSON"}],
    ids=lambda change: next(iter(change)),
)
def test_a_row_that_is_not_its_record_is_refused(change: dict[str, Any]) -> None:
    codec, record = RECORDS[-1]
    with pytest.raises(InvariantViolation, match=r"^t: "):
        codec.decode(replace(row_of(codec, record), **change), table="t")


def test_a_value_that_the_core_refuses_is_refused_on_reading_too() -> None:
    codec, record = RECORDS[0]
    body = json.loads(codec.encode(record))
    body["upper"]["offsets"] = [["p", -1]]
    with pytest.raises(InvariantViolation, match="record 7 is not a valid binding"):
        codec.decode(replace(row_of(codec, record), body=json.dumps(body)), table="t")


def test_a_record_of_another_table_is_not_taken() -> None:
    with pytest.raises(InvalidUsage, match="Seal is not a record of this table"):
        journal_codec().encode(SEAL)  # type: ignore[arg-type]
