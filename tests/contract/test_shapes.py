"""What every control plane promises about the shapes of its logs. Invariant 17."""

from __future__ import annotations

from collections.abc import Callable

from tests.contract.helpers import SHARDS
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import LINK, UPPER, Committed, Conflict, Put
from tidemark.core.log import REPLACED, LogEntry, begins_at
from tidemark.core.seal import Part
from tidemark.core.shape import Shape
from tidemark.ports.control import Control

NEW = ShardId("new")
SHAPE = Shape({"id": "BIGINT", "value": "STRING"}, ("id",), "")


def test_a_shape_is_put_on_record_once_and_only_gets_columns(open_control: Callable[[], Control]) -> None:
    assert open_control().log(NEW).shape() is None
    ours, rivals = open_control().log(NEW), open_control().log(NEW)
    ours.declare(SHAPE)
    rivals.declare(Shape({"id": "STRING", "other": "DATE"}, ("id",), ""))
    rivals.declare(Shape(SHAPE.columns, ("value",), ""))
    assert [log.shape() for log in (ours, rivals, open_control().log(NEW))] == [SHAPE] * 3
    wider = Shape({"more": "DECIMAL(8,2)", **SHAPE.columns}, ("id",), "")
    rivals.declare(wider)
    ours.declare(SHAPE)
    assert ours.shape() == wider, "a column stays, whoever doesn't know it"


def test_a_key_that_may_be_null_stays_so(open_control: Callable[[], Control]) -> None:
    strict, loose = (Shape(SHAPE.columns, ("id",), "", frozenset(names)) for names in (["id"], []))
    log = open_control().log(NEW)
    log.declare(strict)
    assert open_control().log(NEW).shape() == strict
    log.declare(loose)
    open_control().log(NEW).declare(strict)
    assert [one.shape() for one in (log, open_control().log(NEW))] == [loose] * 2


def test_a_log_that_has_a_shape_is_empty_and_takes_its_first_entry(
    open_control: Callable[[], Control],
) -> None:
    log = open_control().log(NEW)
    log.declare(SHAPE)
    head = open_control().log(NEW).head()
    assert head.upper == 1
    assert isinstance(log.commit(log.head(), Put({UPPER: 2}, (), None)), Committed)
    assert open_control().log(NEW).head().upper == 2


def test_the_shards_of_a_pipeline_are_listed_whatever_a_file_says(
    open_control: Callable[[], Control],
) -> None:
    assert list(open_control().shards()) == []
    control = open_control()
    for shard in (SHARDS[0], NEW):
        control.log(shard).declare(SHAPE)
    control.bindings.commit(control.bindings.head(), Put({}, (), None))
    assert set(open_control().shards()) == {SHARDS[0], NEW}


def replacing(txn: int, shape: Shape) -> Put[LogEntry, None]:
    """The put of an entry that replaces a log."""
    part = Part(f"_txn-{txn:020}/w/part-0.parquet", 2, 10)
    entry = LogEntry(Txn(txn), WriterToken("w"), (part,), 5, Txn(txn - 1), shape, 1)
    marks = {UPPER: txn + 1, LINK: 5, REPLACED: txn}
    return Put(marks, (entry,), None)


def test_an_entry_that_replaces_a_log_is_all_that_it_has_under_its_own_shape(
    open_control: Callable[[], Control],
) -> None:
    other = Shape({"id": "STRING", "more": "DATE"}, ("more",), "id", frozenset(["more"]))
    log = open_control().log(NEW)
    log.declare(SHAPE)
    before = Part(f"_txn-{1:020}/a/part-0.parquet", 1, 10)
    first = LogEntry(Txn(1), WriterToken("a"), (before,))
    assert isinstance(log.commit(log.head(), Put({UPPER: 2}, (first,), None)), Committed)
    reader, stale = open_control().log(NEW), open_control().log(NEW)
    old, slept = reader.head(), stale.head()
    assert isinstance(log.commit(log.head(), replacing(3, other)), Committed)
    assert [one.txn for one in reader.read(1, 4)] == [1], "a version that was read stays as it is"
    assert isinstance(stale.commit(slept, replacing(3, other)), Conflict)
    for handle in (log, open_control().log(NEW), reader):
        head = handle.head()
        assert (head.upper, head.link, begins_at(head)) == (4, 5, 3)
        assert begins_at(old) == 0
        assert [one.txn for one in handle.read(1, 4)] == [3]
        assert [(one.part.path, one.txn_first) for one in handle.files()] == [
            (f"_txn-{3:020}/w/part-0.parquet", 3)
        ]
        assert handle.shape() == other
    reader.declare(SHAPE)
    stale.declare(SHAPE)
    assert open_control().log(NEW).shape() == other, "the shape of before comes back for nobody"
    entry = LogEntry(Txn(4), WriterToken("b"), (Part(f"_txn-{4:020}/b/part-0.parquet", 1, 10),))
    assert isinstance(log.commit(log.head(), Put({UPPER: 5}, (entry,), None)), Committed)
    assert log.head().upper == 5
    assert [one.txn for one in log.read(1, 5)] == [3, 4]
