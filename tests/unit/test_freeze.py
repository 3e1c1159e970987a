"""What a freeze says, and when the journal calls it mended. Invariant 11."""

from __future__ import annotations

import copy

import pytest

from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Event, JournalEntry
from tidemark.core.reading import Freeze, Frozen, open_freeze

ORDERS = ShardId("orders")
MINE = {"consumer": "billing", "shard": "orders"}
FROZEN = (Event.FROZEN, {**MINE, "part": "p", "why": "gone"})
OTHERS = (Event.FROZEN, {"consumer": "audit", "shard": "orders", "part": "p", "why": "gone"})
REPAIRED = (Event.REPAIRED, {"parts": "{}"})
PASSED = (Event.PASSED_OVER, {**MINE, "reason": "known"})
OTHERS_PASSED = (Event.PASSED_OVER, {"consumer": "audit", "shard": "orders", "reason": "known"})


@pytest.mark.parametrize(
    ("events", "frozen"),
    [
        ([], False),
        ([FROZEN], True),
        ([OTHERS], False),
        ([FROZEN, REPAIRED], False),
        ([FROZEN, REPAIRED, FROZEN], True),
        ([FROZEN, PASSED], False),
        ([FROZEN, OTHERS_PASSED], True),
    ],
)
def test_a_freeze_stands_until_a_repair_or_until_this_consumer_passes_over(
    events: list[tuple[Event, dict[str, str]]], frozen: bool
) -> None:
    entries = [
        JournalEntry(number, Txn(7), event, WriterToken("w"), detail)
        for number, (event, detail) in enumerate(events, start=1)
    ]
    found = open_freeze(entries, consumer="billing", shard=ORDERS)
    assert (found is not None) is frozen


def test_r1_the_report_names_file_txn_size_holders_and_who_did_not_remove_it() -> None:
    freeze = Freeze(
        "billing", ORDERS, Txn(7), Txn(7), "there is no such file", Txn(3), "x.parquet", 42, ("a of b",)
    )
    error = copy.copy(Frozen(freeze, pipeline="shop"))  # As pickling does, between Airflow's processes.
    assert error.fact == (
        "consumer 'billing' is frozen at txn 7 of shard 'orders': part x.parquet (42 bytes) can't be read: "
        "there is no such file; the log still lists it, and maintenance deletes only files that no "
        "log lists; held by a of b"
    )
    assert "tidemark replay shop --from 7 --to 7 --mode repair" in error.hint
    assert 'tidemark consumers skip shop orders billing 7 --reason "..."' in error.hint
    assert error.freeze == freeze


def test_a_merged_files_freeze_names_every_transaction_that_is_lost_with_it() -> None:
    freeze = Freeze("billing", ORDERS, Txn(5), Txn(20), "there is no such file", Txn(1), "x.parquet", 42)
    error = Frozen(freeze, pipeline="shop")
    assert "part x.parquet (42 bytes) with all transactions up to 20 can't be read" in error.fact
    assert 'tidemark consumers skip shop orders billing 5 --to 20 --reason "..."' in error.hint


def test_what_lies_below_since_was_removed_by_maintenance() -> None:
    freeze = Freeze("billing", ORDERS, Txn(2), Txn(2), "gone", Txn(3), "x.parquet")
    assert "maintenance may delete transactions below 3; held by no lease" in str(freeze)


@pytest.mark.parametrize("path", ["", "x.parquet"])
def test_who_took_something_out_of_the_log_is_not_guessed(path: str) -> None:
    freeze = Freeze("billing", ORDERS, Txn(7), Txn(7), "not listed", Txn(3), path, is_named=False)
    assert "it is not known what deleted it" in str(freeze)
