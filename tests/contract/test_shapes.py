"""What every control plane promises about the shapes of its logs. Invariant 17."""

from __future__ import annotations

from collections.abc import Callable

from tests.contract.helpers import SHARDS
from tidemark.core.ids import ShardId
from tidemark.core.ledger import UPPER, Committed, Put
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
