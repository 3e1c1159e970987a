"""The journal, its format and its chain. Checks scenario P6 and Invariant 8."""

from __future__ import annotations

import pytest

from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import (
    FORMAT,
    UPPER,
    Event,
    Head,
    JournalEntry,
    Put,
    check_chain,
    check_format,
    decide_note,
    link,
)

HEAD = Head(2, {UPPER: 3})
LINK_OF_X = 6549375376067865553


def note(*, noted: bool) -> Put[JournalEntry, None] | None:
    return decide_note(
        head=HEAD,
        txns=(Txn(8),),
        event=Event.LOST,
        token=WriterToken("w"),
        detail={"winner": "v"},
        noted=noted,
    )


def chain(*bodies: str, previous: int = 0) -> list[tuple[int, int, str]]:
    records = []
    for number, body in enumerate(bodies, start=1):
        previous = link(previous, body)
        records.append((number, previous, body))
    return records


def test_an_event_goes_under_the_next_number_and_is_found_by_its_transaction() -> None:
    entry = JournalEntry(3, Txn(8), Event.LOST, WriterToken("w"), {"winner": "v"})
    assert note(noted=False) == Put({UPPER: 4}, (entry,), None)
    assert entry.key == "8"


def test_an_event_that_is_there_already_is_not_added() -> None:
    assert note(noted=True) is None


def test_p6_a_record_of_another_format_is_refused_with_what_to_do() -> None:
    check_format(FORMAT, table="seals")
    with pytest.raises(
        InvalidUsage, match=rf"records of format {FORMAT - 1}.*: read the warehouse with the older version"
    ):
        check_format(FORMAT - 1, table="seals")
    with pytest.raises(InvalidUsage, match=rf"of format {FORMAT + 1}.*: use the newer version"):
        check_format(FORMAT + 1, table="seals")


def test_a_whole_chain_leads_to_its_last_link() -> None:
    records = chain("a", "b", "c")
    assert check_chain(records, previous=0, table="journal") == records[-1][1]
    assert check_chain([], previous=5, table="journal") == 5
    assert check_chain(records[1:], previous=records[0][1], table="journal") == records[-1][1]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_record_that_dropped_out_breaks_the_chain(lost: int) -> None:
    records = chain("a", "b", "c")
    del records[lost]
    with pytest.raises(InvariantViolation, match=f"journal: record {lost + 2} does not follow"):
        check_chain(records, previous=0, table="journal")


def test_a_changed_record_breaks_the_chain_at_its_number() -> None:
    records = chain("a", "b", "c")
    records[1] = (2, records[1][1], "B")
    with pytest.raises(InvariantViolation, match="record 2 does not follow"):
        check_chain(records, previous=0, table="journal")


def test_a_link_fits_a_signed_64_bit_number_and_does_not_change_between_versions() -> None:
    assert all(0 <= link(previous, "x") < 1 << 63 for previous in (0, 1, (1 << 63) - 1))
    assert link(0, "x") == LINK_OF_X
