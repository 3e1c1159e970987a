"""Who wins between two records of a key, or a record and a state's row, is one rule in three languages."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tidemark.core.fold import Change
from tidemark.core.frontier import Position
from tidemark.core.ids import TXN_NONE, Txn
from tidemark.delta import overlay
from tidemark.spark import tail

pytestmark = pytest.mark.spark
SEQUENCES = (None, -(2**63), -1, 0, 1, 2**63 - 1)
TXNS = (1, 2, 3)


def loses(sequence: int | None, txn: int, than: int | None, at: int) -> bool:
    """By the core's fold."""
    one, other = (
        Change(("k",), "v", Txn(number), Position("p", 0), known)
        for number, known in ((txn, sequence), (at, than))
    )
    return one.order < other.order


def test_the_core_spark_and_arrays_agree_on_who_wins(spark: SparkSession) -> None:
    cases = list(product(SEQUENCES, TXNS, SEQUENCES, TXNS))
    frame = spark.createDataFrame(cases, "sequence BIGINT, txn BIGINT, than BIGINT, at BIGINT")
    found = frame.select(
        "*",
        tail.is_older("sequence", "txn", than="than", at="at").alias("buried"),
        tail.is_older("sequence", "txn", than="than").alias("newer"),
    ).collect()
    assert len(found) == len(cases)
    for row in found:
        case = (row.sequence, row.txn, row.than, row["at"])
        assert row.buried == loses(*case), case
        assert row.newer == loses(row.sequence, row.txn, row.than, TXN_NONE), case
    # The index is for sequences that are not NULL.
    known = [case for case in cases if case[0] is not None and case[2] is not None]
    sequence, txn, than, at = (np.array(column, np.int64) for column in zip(*known, strict=True))
    assert overlay.is_older(sequence, txn, than=than, at=at).tolist() == [loses(*case) for case in known]
    assert overlay.is_older(sequence, txn, than=than).tolist() == [
        loses(*case[:3], TXN_NONE) for case in known
    ]
