"""A compaction carries over what was hidden meanwhile; a foreign commit is judged by what it did."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from tests.delta.test_state_entry import HEAD, OLD, file_of
from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.delta.compaction import Copied, carried
from tidemark.delta.deletion_vectors import Descriptor, unpack
from tidemark.delta.state import Change, Entry, NewFile, decide_entry
from tidemark.delta.state_status import foreign_write

files = st.lists(
    st.integers(0, 12).flatmap(
        lambda rows: st.tuples(
            st.just(rows), st.sets(st.integers(0, max(rows - 1, 0)), max_size=rows),
            st.sets(st.integers(0, max(rows - 1, 0)), max_size=rows), st.booleans(),
        )
    ),
    max_size=4,
)  # fmt: skip


@given(files)
def test_the_copy_shows_the_rows_that_the_files_would_show(
    found: list[tuple[int, set[int], set[int], bool]],
) -> None:
    """Against the plain way: copy names of rows, then look for those that are still there."""
    copied, now, copy, expected = [], {}, [], []
    for at, (rows, before, since, is_gone) in enumerate(found):
        hidden = {row for row in before if row < rows}
        later = hidden | {row for row in since if row < rows}
        copied.append(Copied(f"f{at}", rows, BitMap(hidden)))
        if not is_gone:
            now[f"f{at}"] = BitMap(later)
        copy += [(at, row) for row in range(rows) if row not in hidden]
        expected += [(at, row) for row in range(rows) if row not in later and not is_gone]
    hidden_in_copy = carried(copied, now)
    assert [name for row, name in enumerate(copy) if row not in hidden_in_copy] == expected


def test_rows_that_came_back_end_the_compaction() -> None:
    with pytest.raises(Determinate, match="became visible"):
        carried([Copied("f", 9, BitMap([1, 2]))], {"f": BitMap([1, 5])})


def commit(operation: str, *actions: dict[str, Any]) -> str:
    lines = [{"commitInfo": {"operation": operation}}, *actions]
    return foreign_write(HEAD, lines, HEAD.after(lines, version=7))


def test_a_foreign_commit_is_harmless_by_what_it_did_and_not_by_its_name() -> None:
    removed = {"remove": {**file_of("a"), "dataChange": False}}
    same = {"add": {**file_of("c"), "dataChange": False}}
    assert commit("ANYTHING AT ALL", removed, same) == ""
    assert commit("SET TBLPROPERTIES", {"metaData": dict(HEAD.metadata)}) == ""
    # A compaction by its name, which changed rows or lost some.
    assert commit("OPTIMIZE", removed, {"add": file_of("c")}) == "OPTIMIZE"
    assert commit("OPTIMIZE", removed) == "OPTIMIZE"
    fewer = {**file_of("c", hidden=OLD), "dataChange": False}
    assert commit("REORG", removed, {"add": fewer}) == "REORG"
    assert commit("", {"cdc": {"path": "x"}}) == "a commit without a name"


def test_a_new_file_comes_with_the_rows_hidden_that_have_gone_since() -> None:
    new = NewFile("n", 10, 12, '{"numRecords":12}', BitMap([0, 8]))
    change = Change("OPTIMIZE", HEAD.rows, added=[new], removed=["a"], of_rows=False)
    entry = decided(change)
    (add,) = [line["add"] for line in entry.actions if "add" in line]
    assert (add["dataChange"], add["deletionVector"]["cardinality"]) == (False, 2)
    assert json.loads(add["stats"])["tightBounds"] is False
    vector = Descriptor.of(add)
    assert vector is not None
    assert vector.path == entry.vector_path
    assert unpack(entry.vector_bytes, vector) == BitMap([0, 8])
    with pytest.raises(InvalidUsage, match="has no deletion vectors"):
        decided(replace(change, metadata={**HEAD.metadata, "configuration": {}}))
    for hidden in (range(12), [12]):
        with pytest.raises(InvariantViolation, match="hidden in n, which has 12"):
            replace(new, hidden=BitMap(hidden))


def decided(change: Change) -> Entry:
    return decide_entry(HEAD, change, table="t", attempt="a", now_ms=1, random=uuid.uuid4())
