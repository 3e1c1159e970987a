"""What a state's log entry says, rule by rule, and what is refused before anything is written."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from tests.delta.helpers import inline
from tests.support.state_table import new_table, schema_json
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.delta.deletion_vectors import Descriptor, unpack
from tidemark.delta.head import TableHead
from tidemark.delta.state import Change, Entry, NewFile, decide_entry, loosened

STATS = (
    '{"numRecords": 10, "minValues": {"d": 1.10, "n": 12345678901234567890.123450}, "nullCount": {"d": 0}}'
)
OLD = BitMap([1, 2])


def file_of(path: str, *, hidden: BitMap | None = None, **more: Any) -> dict[str, Any]:
    add = {"path": path, "partitionValues": {}, "size": 100, "modificationTime": 5, "dataChange": True,
           "stats": STATS, **more}  # fmt: skip
    return add if hidden is None else {**add, "deletionVector": inline(hidden).action}


def head_of(*adds: dict[str, Any], vectors: bool = True, feed: bool = False) -> TableHead:
    made = new_table(vectors=vectors, feed=feed)
    actions = [
        {"protocol": made["protocol"]},
        {"metaData": made["metadata"]},
        *({"add": one} for one in adds),
    ]
    return TableHead().after(actions, version=6)


def new_file(rows: int = 3, path: str = "new.parquet") -> NewFile:
    return NewFile(path, 50, rows, json.dumps({"numRecords": rows}))


def decide(head: TableHead, change: Change, **previous: BitMap) -> Entry:
    return decide_entry(
        head, change, table="t", attempt="me", now_ms=9, random=UUID(int=5), previous=previous
    )


def kinds(entry: Entry) -> list[str]:
    return [next(iter(action)) for action in entry.actions]


def one(entry: Entry, kind: str) -> Any:
    (found,) = [action[kind] for action in entry.actions if kind in action]
    return found


HEAD = head_of(file_of("a"), file_of("b", hidden=OLD))


def test_a_publish_removes_the_exact_vector_and_adds_the_union_removes_before_adds() -> None:
    entry = decide(
        HEAD, Change("WRITE", 18 - 3 + 3, hidden={"b": BitMap([0, 9]), "a": BitMap([4])}, added=[new_file()],
                     txns={"app": 4}), b=OLD,
    )  # fmt: skip
    assert kinds(entry) == ["commitInfo", "txn", "remove", "remove", "add", "add", "add"]
    removes = [action["remove"] for action in entry.actions if "remove" in action]
    assert [(one["path"], one.get("deletionVector")) for one in removes] == [
        ("a", None), ("b", inline(OLD).action),
    ]  # fmt: skip
    adds = [action["add"] for action in entry.actions if "add" in action]
    hidden = [set(unpack(entry.vector_bytes, Descriptor.of(add))) for add in adds[:2]]
    assert hidden == [{4}, {0, 1, 2, 9}]
    assert {Descriptor.of(add).path for add in adds[:2]} == {entry.vector_path}
    assert [one["dataChange"] for one in (*removes, *adds)] == [True] * 5
    assert one(entry, "txn") == {"appId": "app", "version": 4, "lastUpdated": 9}


def test_a_file_that_is_added_again_keeps_its_spelling_tags_and_statistics_to_the_digit() -> None:
    head = head_of(file_of("a%20b/c%25.parquet", tags={"x": "1"}))
    entry = decide(head, Change("WRITE", 9, hidden={"a%20b/c%25.parquet": BitMap([4])}))
    add = one(entry, "add")
    assert add["path"] == one(entry, "remove")["path"] == "a%20b/c%25.parquet"
    assert (add["tags"], add["modificationTime"], add["size"]) == ({"x": "1"}, 5, 100)
    assert add["stats"] == STATS[:-1] + ',"tightBounds":false}'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"numRecords":1}', '{"numRecords":1,"tightBounds":false}'),
        ("{}", '{"tightBounds":false}'),
        ('{ "tightBounds" : true , "numRecords":1}', '{ "tightBounds" : false , "numRecords":1}'),
        ('{"numRecords":1,"tightBounds":false}', '{"numRecords":1,"tightBounds":false}'),
        (
            '{"maxValues":{"tightBounds":true,"x":1.10},"tightBounds":true}',
            '{"maxValues":{"tightBounds":true,"x":1.10},"tightBounds":false}',
        ),
    ],
)
def test_loosened_statistics_change_one_word(before: str, after: str) -> None:
    assert loosened(before) == after


@given(
    st.dictionaries(st.text(max_size=3), st.integers() | st.text() | st.booleans() | st.none(), max_size=4)
)
def test_loosened_statistics_say_everything_else_as_before(stats: dict[str, Any]) -> None:
    found = json.loads(loosened(json.dumps(stats, indent=1)))
    assert found == {**stats, "tightBounds": False}


def test_a_file_without_a_row_left_is_only_removed() -> None:
    entry = decide(HEAD, Change("WRITE", 10, hidden={"b": BitMap([0, *range(3, 10)])}), b=OLD)
    assert kinds(entry) == ["commitInfo", "remove"]
    assert one(entry, "remove")["deletionVector"] == inline(OLD).action
    assert (entry.vector_path, entry.vector_bytes) == ("", b"")


def test_without_hits_there_is_no_vector_file_and_without_upserts_no_file() -> None:
    only_new = decide(HEAD, Change("WRITE", 21, added=[new_file()]))
    assert (kinds(only_new), only_new.vector_path) == (["commitInfo", "add"], "")
    nothing = decide(HEAD, Change("WRITE", 18, txns={"app": 3}))
    assert kinds(nothing) == ["commitInfo", "txn"]
    with pytest.raises(InvariantViolation, match="0 rows"):
        new_file(0)
    with pytest.raises(InvariantViolation, match="statistics say"):
        NewFile("x", 1, 2, '{"numRecords": 3}')


def test_a_commit_is_no_blind_append_and_says_whose_it_is() -> None:
    info = one(
        decide(HEAD, Change("WRITE", 21, added=[new_file()], facts={"userMetadata": "x"})), "commitInfo"
    )
    assert (info["isBlindAppend"], info["tidemarkCommit"], info["userMetadata"]) == (False, "me", "x")


def test_a_new_table_is_one_entry_with_protocol_and_metadata() -> None:
    made = new_table()
    entry = decide(TableHead(), Change("WRITE", 3, added=[new_file()], **made))
    assert entry.version == 0
    assert kinds(entry) == ["commitInfo", "protocol", "metaData", "add"]
    assert one(entry, "protocol")["readerFeatures"] == ["deletionVectors"]
    with pytest.raises(InvariantViolation, match="no protocol"):
        decide(TableHead(), Change("WRITE", 3, added=[new_file()]))


def test_a_change_of_no_row_keeps_the_count_and_says_so() -> None:
    entry = decide(
        HEAD, Change("OPTIMIZE", 18, removed=["a", "b"], added=[new_file(18)], of_rows=False), b=OLD
    )
    files = [action[kind] for action in entry.actions for kind in ("add", "remove") if kind in action]
    assert [file["dataChange"] for file in files] == [False] * 3
    with pytest.raises(InvariantViolation, match="17 rows"):
        decide(HEAD, Change("OPTIMIZE", 17, removed=["a", "b"], added=[new_file(17)], of_rows=False))


def test_without_vectors_touched_files_are_written_anew() -> None:
    head = head_of(file_of("a"), file_of("b", hidden=OLD), vectors=False)
    change = Change("WRITE", 17, removed=["b"], added=[new_file(7, "copy")], carried=7)
    entry = decide(head, change)
    assert kinds(entry) == ["commitInfo", "remove", "add"]
    assert one(entry, "remove")["deletionVector"] == inline(OLD).action
    assert (one(entry, "add")["path"], "deletionVector" in one(entry, "add")) == ("copy", False)
    with pytest.raises(InvalidUsage, match="has no deletion vectors"):
        decide(head, Change("WRITE", 17, hidden={"b": BitMap([5])}), b=OLD)
    with pytest.raises(InvariantViolation, match=re.escape("16 rows (10 - 0 + 6) instead of 17")):
        decide(head, replace(change, added=[new_file(6, "copy")]))


def test_a_change_data_feed_lists_all_changes_inserts_too_or_nothing() -> None:
    head = head_of(file_of("a"), feed=True)
    change = Change(
        "WRITE", 12, hidden={"a": BitMap([4])}, added=[new_file()], feed=[new_file(4, "_change_data/c")]
    )
    entry = decide(head, change)
    assert kinds(entry)[-1] == "cdc"
    assert one(entry, "cdc")["dataChange"] is False
    for listed in ([new_file(1, "_change_data/c")], [new_file(3, "_change_data/c")]):
        with pytest.raises(InvariantViolation, match="instead of 4"):
            decide(head, replace(change, feed=listed))
    # Readers take rows that come, and rows that a vector hides, from files and vectors.
    assert "cdc" not in kinds(decide(head, Change("WRITE", 13, added=[new_file()])))
    assert "cdc" not in kinds(decide(head, replace(change, feed=[])))
    with pytest.raises(InvariantViolation, match="lists 4 changes instead of 0"):
        decide(HEAD, replace(change, rows_after=20))


def test_rows_that_are_carried_to_another_file_are_no_changes_and_the_feed_must_say_so() -> None:
    """Without a list, readers would take every row of the two files for one that goes, or comes."""
    head = head_of(file_of("a"), vectors=False, feed=True)
    change = Change(
        "WRITE", 11, removed=["a"], added=[new_file(9, "copy"), new_file(2)], carried=9,
        feed=[new_file(3, "_change_data/c")],
    )  # fmt: skip
    assert kinds(decide(head, change)) == ["commitInfo", "remove", "add", "add", "cdc"]
    for listed in ([], [new_file(21, "_change_data/c")]):
        with pytest.raises(InvariantViolation, match="instead of 3"):
            decide(head, replace(change, feed=listed))


def test_files_that_go_as_a_whole_need_no_statistics() -> None:
    """A rebuild mends a table whose rows can't be counted."""
    head = head_of({**file_of("a"), "stats": None}, file_of("b"))
    assert kinds(decide(head, Change("WRITE", 3, removed=["a", "b"], added=[new_file()])))[1:] == [
        "remove", "remove", "add",
    ]  # fmt: skip
    with pytest.raises(InvalidUsage, match="no statistics"):
        decide(head, Change("WRITE", 3, removed=["b"], added=[new_file()]))


@pytest.mark.parametrize(
    ("hidden", "previous", "match"),
    [
        ({"gone": BitMap([1])}, {}, "does not have the file"),
        ({"a": BitMap([10])}, {}, "row 10 of a is to be removed, but it has 10"),
        ({"a": BitMap()}, {}, "row none of a"),
        ({"b": BitMap([1, 5])}, {"b": OLD}, "1 rows of b are to be removed, but are hidden already"),
        ({"b": BitMap([5])}, {}, "a vector of 2 rows, but the commit was prepared without it"),
        ({"b": BitMap([5])}, {"b": BitMap([1])}, "a vector of 2 rows"),
    ],
)
def test_a_place_that_is_wrong_is_refused(
    hidden: dict[str, BitMap], previous: dict[str, BitMap], match: str
) -> None:
    count = sum(map(len, hidden.values()))
    with pytest.raises(InvariantViolation, match=match):
        decide(HEAD, Change("WRITE", 18 - count, hidden=hidden), **previous)


def test_counts_that_do_not_add_up_over_the_files_are_refused() -> None:
    """A forgotten row: the digest that was carried forward counts one row less than the files have."""
    with pytest.raises(InvariantViolation, match=re.escape("21 rows (18 - 0 + 3) instead of 20")):
        decide(HEAD, Change("WRITE", 20, added=[new_file()]))


@pytest.mark.parametrize(
    "name",
    ["inCommitTimestamp", "v2Checkpoint", "catalogManaged", "typeWidening", "identityColumns",
     "generatedColumns", "checkConstraints", "columnMapping", "rowTracking", "clustering",
     "variantType", "somethingNew"],
)  # fmt: skip
def test_a_feature_that_is_not_known_is_refused_by_name_at_every_commit(name: str) -> None:
    protocol = {**HEAD.protocol, "writerFeatures": ["deletionVectors", name]}
    with pytest.raises(InvalidUsage, match=rf"does not support: {name}"):
        decide(replace(HEAD, protocol=protocol), Change("WRITE", 18))


@pytest.mark.parametrize(
    ("properties", "match"),
    [
        ({"delta.appendOnly": "true"}, "appendOnly"),
        ({"delta.enableInCommitTimestamps": "true"}, "inCommitTimestamp"),
        ({"delta.enableRowTracking": "true"}, "rowTracking"),
        ({"delta.enableTypeWidening": "true"}, "typeWidening"),
        ({"delta.enableIcebergCompatV1": "true"}, "icebergCompatV1"),
        ({"delta.enableIcebergCompatV2": "true"}, "icebergCompatV2"),
        ({"delta.coordinatedCommits.commitCoordinator": "x"}, "catalogManaged"),
        ({"delta.coordinatedCommits.commitCoordinator-preview": "x"}, "catalogManaged"),
        ({"delta.constraints.positive": "k > 0"}, "checkConstraints"),
        ({"delta.columnMapping.mode": "name"}, "columnMapping"),
        ({"delta.checkpointPolicy": "v2"}, "v2Checkpoint"),
        ({"delta.setTransactionRetentionDuration": "interval 1 day"}, "application transactions that expire"),
    ],
)
def test_a_property_that_turns_a_feature_on_is_refused_by_its_name(
    properties: dict[str, str], match: str
) -> None:
    metadata = {**HEAD.metadata, "configuration": {**HEAD.configuration, **properties}}
    with pytest.raises(InvalidUsage, match=match):
        decide(replace(HEAD, metadata=metadata), Change("WRITE", 18))


@pytest.mark.parametrize(
    ("key", "match"),
    [("delta.generationExpression", "generatedColumns"), ("delta.identity.start", "identityColumns"),
     ("delta.identity.step", "identityColumns"),
     ("delta.invariants", "invariants"), ("delta.columnMapping.id", "columnMapping")],
)  # fmt: skip
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_column_that_turns_a_feature_on_is_refused_by_its_name(
    key: str, match: str, is_nested: bool
) -> None:
    field: dict[str, Any] = {"name": "x", "type": "long", "nullable": True, "metadata": {key: "1"}}
    if is_nested:
        struct = {"type": "struct", "fields": [field]}
        array = {"type": "array", "elementType": struct, "containsNull": True}
        field = {"name": "s", "type": array, "nullable": True, "metadata": {}}
    schema = json.dumps({"type": "struct", "fields": [field]})
    with pytest.raises(InvalidUsage, match=match):
        decide(replace(HEAD, metadata={**HEAD.metadata, "schemaString": schema}), Change("WRITE", 18))


def test_partitions_and_unknown_protocol_versions_are_refused_by_name() -> None:
    partitioned = {**HEAD.metadata, "partitionColumns": ["k"]}
    with pytest.raises(InvalidUsage, match="partition columns"):
        decide(replace(HEAD, metadata=partitioned), Change("WRITE", 18))
    newer = {**HEAD.protocol, "minReaderVersion": 4, "minWriterVersion": 8}
    with pytest.raises(InvalidUsage, match="protocol 4/8"):
        decide(replace(HEAD, protocol=newer), Change("WRITE", 18))


def test_inactive_features_of_an_older_protocol_are_let_through() -> None:
    older = {"minReaderVersion": 1, "minWriterVersion": 4}
    listed = {
        **HEAD.protocol,
        "writerFeatures": ["deletionVectors", "appendOnly", "invariants", "changeDataFeed"],
    }
    for protocol in (older, listed):
        assert decide(replace(HEAD, protocol=protocol), Change("WRITE", 18)).version == 7


def test_a_protocol_asks_for_no_feature_that_is_not_used() -> None:
    import pyarrow as pa

    plain = new_table(vectors=False)["protocol"]
    assert plain == {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": []}
    naive = new_table(pa.schema([("s", pa.struct([("t", pa.timestamp("us"))]))]), feed=True)["protocol"]
    assert naive["readerFeatures"] == ["deletionVectors", "timestampNtz"]
    assert naive["writerFeatures"] == ["deletionVectors", "timestampNtz", "changeDataFeed"]
    assert "timestamp_ntz" in schema_json(pa.schema([("t", pa.timestamp("us"))]))
