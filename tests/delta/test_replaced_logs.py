"""A log that a promotion replaces: handles of both generations, and what other programs see."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.contract.test_shapes import SHAPE, replacing
from tidemark.core.generation import Superseded
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import UPPER, Committed, Put
from tidemark.core.log import LogEntry
from tidemark.core.seal import Part, replaced_mark
from tidemark.core.shape import Misfit, Shape
from tidemark.delta.control import DeltaControl
from tidemark.delta.schema import log_schema, properties_of

T = ShardId("t")
OTHER = Shape({"id": "STRING", "more": "DATE"}, ("more",), "")


def opened(root: Path, shape: Shape | None = None, generation: int = 0) -> DeltaControl:
    if shape is None:
        return DeltaControl(str(root), "p")
    schemas, properties = {T: log_schema(shape)}, {T: properties_of(shape)}
    return DeltaControl(str(root), "p", schemas, properties=properties, generation=generation)


def with_a_row(root: Path) -> DeltaControl:
    """A process of the old generation, which has appended transaction 1."""
    control = opened(root, SHAPE)
    log = control.log(T)
    entry = LogEntry(Txn(1), WriterToken("a"), (Part(f"_txn-{1:020}/a/part-0.parquet", 1, 10),))
    assert isinstance(log.commit(log.head(), Put({UPPER: 2}, (entry,), None)), Committed)
    return control


def decided(control: DeltaControl, txn: int) -> None:
    """The history says that a transaction has replaced the shard."""
    seals = control.seals
    outcome = seals.commit(seals.head(), Put({UPPER: txn + 1, replaced_mark(T): txn}, (), None))
    assert isinstance(outcome, Committed)


def columns(root: Path, version: int | None = None) -> list[str]:
    table = DeltaTable(f"{root}/p/t/log", version=version)
    return [field.name for field in table.schema().fields if not field.name.startswith("_")]


def test_a_process_of_the_new_generation_opens_a_log_that_is_about_to_be_replaced(tmp_path: Path) -> None:
    """The promotion is sealed, and its process has died before the log has it."""
    with_a_row(tmp_path)
    with pytest.raises(Misfit, match="keys is recorded as"):
        opened(tmp_path, OTHER, generation=1).log(T).head()
    decided(opened(tmp_path), 2)
    new = opened(tmp_path, OTHER, generation=1).log(T)
    before = new.head()
    assert before.upper == 2
    assert isinstance(new.commit(before, replacing(2, OTHER)), Committed)
    assert columns(tmp_path) == ["id", "more"], "nothing of before is left, and nothing was added to it first"
    assert columns(tmp_path, before.version) == ["id", "value"], "an older version is as it was"
    assert len(DeltaTable(f"{tmp_path}/p/t/log", version=before.version).file_uris()) == 1
    assert new.head().upper == 3
    with pytest.raises(Misfit, match="keys is recorded as"):
        opened(tmp_path, SHAPE, generation=1).log(T).head()


def test_a_process_of_the_old_generation_brings_it_in_and_opens_the_pipeline_again(tmp_path: Path) -> None:
    old = with_a_row(tmp_path).log(T)
    slept = opened(tmp_path, SHAPE).log(T)
    slept.head()
    decided(opened(tmp_path), 2)
    assert isinstance(old.commit(old.head(), replacing(2, OTHER)), Committed)
    for handle in (old, slept, opened(tmp_path, SHAPE).log(T)):
        for _ in range(2):
            with pytest.raises(Superseded, match="generation 1 is in charge"):
                handle.head()
    assert columns(tmp_path) == ["id", "more"]
    assert opened(tmp_path, OTHER, generation=1).log(T).head().upper == 3
    assert opened(tmp_path).log(T).head().upper == 3, "a report opens any log"


def test_a_log_that_is_gone_is_made_with_the_shape_that_replaces_it(tmp_path: Path) -> None:
    decided(opened(tmp_path), 2)
    log = opened(tmp_path, OTHER, generation=1).log(T)
    assert not isinstance(log.commit(log.head(), replacing(2, OTHER)), Committed)
    assert isinstance(log.commit(log.head(), replacing(2, OTHER)), Committed)
    assert columns(tmp_path) == ["id", "more"]
