"""A shape comes back from a Delta table as a pipeline file has it, in every type that a file may declare."""

from __future__ import annotations

from pathlib import Path

from tidemark.config.schema import parse_schema
from tidemark.core.shape import Shape
from tidemark.delta.log import DeltaLog
from tidemark.delta.schema import SCALARS

NESTED = (
    "d DECIMAL(38,0), m MAP<INT, ARRAY<BINARY>>,"
    " a ARRAY<STRUCT<x INT NOT NULL, y: MAP<STRING, DECIMAL(3,2)>>>"
)


def test_every_type_comes_back_as_it_was_declared(tmp_path: Path) -> None:
    declared = parse_schema(", ".join([*(f"c{name} {name}" for name in SCALARS), NESTED]))
    columns = {column.name: column.type.ddl for column in declared}
    for index, (keys, sequence_by) in enumerate([((), ""), (("cINT", "d"), "cDATE")]):
        shape = Shape(columns, keys, sequence_by)
        DeltaLog(str(tmp_path / str(index))).declare(shape)
        assert DeltaLog(str(tmp_path / str(index))).shape() == shape
