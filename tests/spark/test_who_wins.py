"""Who wins between two records of a key, or a record and a state's row, is one rule in three languages."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tests.support.memory.fold import Change, Position, fold
from tidemark.core.checksum import Digest
from tidemark.core.ids import TXN_NONE, Txn
from tidemark.delta import overlay
from tidemark.delta.index import Hits
from tidemark.delta.index_runs import RECORD
from tidemark.delta.state_files import RowKeys
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


def wins(sequence: int | None, txn: int, since: int | None, than: int | None, at: int) -> bool:
    """By the core's fold of a state's row or a tombstone with a record of a tail, which a correction may have
    come before or may be."""
    row = Change(("k",), "row", Txn(at), Position("", 0), than)
    record = Change(("k",), "record", Txn(txn), Position("p", 0), sequence, Txn(since or TXN_NONE))
    return fold([row, record])["k",].value == "record"


def test_after_a_correction_of_its_key_a_record_wins_against_all_before(spark: SparkSession) -> None:
    # What is published precedes a tail, and so its corrections.
    cases = [
        (sequence, txn, since, than, at)
        for sequence, txn, since, than, at in product(
            SEQUENCES, (2, 3), (None, 2, 3), SEQUENCES, (TXN_NONE, 1)
        )
        if since is None or since <= txn
    ]
    schema = "sequence BIGINT, txn BIGINT, since BIGINT, than BIGINT, at BIGINT"
    frame = spark.createDataFrame(cases, schema)
    buried = tail.loses("sequence", "txn", since="since", than="than", at="at")
    newer = tail.loses("sequence", "txn", since="since", than="than")
    for row in frame.select("*", buried.alias("buried"), newer.alias("newer")).collect():
        case = (row.sequence, row.txn, row.since, row.than)
        assert row.buried is not wins(*case, row["at"]), (case, row["at"])
        assert row.newer is not wins(*case, TXN_NONE), case
    known = [case for case in cases if None not in (case[0], case[3]) and case[4] == TXN_NONE]
    sequence, txn, than = (np.array([case[at] for case in known], np.int64) for at in (0, 1, 3))
    number = np.arange(len(known))
    records = np.zeros(len(known), RECORD)
    records["row"], records["sequence"], records["digest"] = number, than, number
    given = RowKeys(number.astype(np.uint64), number.astype(np.uint64), number + len(known), sequence)
    found = overlay.overlay(
        given,
        txn,
        np.ones(len(known), np.bool_),
        Hits(("a file",), number, records),
        base=Digest.of(number.tolist()),
        corrected=np.array([case[2] is not None for case in known]),
    )
    expected = [wins(*case) for case in known]
    assert found.comes.tolist() == expected
    assert list(found.hidden["a file"]) == [at for at, won in enumerate(expected) if won]
