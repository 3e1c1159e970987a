"""Scenarios E1, E3 and D1 to D5, played with any number of files on any number of cores. How a fold is
cut is played exhaustively in memory (`tests/unit/test_scenarios_upsert.py`).

`python -m tests.spark.every_cut URL ROOT` plays all of them over Spark Connect, in a process of its own, and
prints what came out. What must come out is written down by hand, after each transaction.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.spark.connect_client import shown
from tests.support.ingest import KV, QUARANTINE, Rig, Row, cut, lines_of, make_rig
from tidemark.core.binding import Binding
from tidemark.core.ids import WriterToken
from tidemark.spark.session import connect_session

FILES = (1, 5)
ID_V: Row = {"schema": "id BIGINT, v BIGINT", "keys": ["id"]}
INLINE: Row = {"schema": "k STRING, v INT", "keys": ["k"], "on_error": "inline", "error_column": "oops"}

Table = dict[str, list[Any]]


@dataclass(frozen=True)
class Case:
    """Transactions, the table after each, by key, and what is quarantined: (raw, reason, file, record)."""

    shard: Row
    transactions: Sequence[Sequence[Any]]
    tables: Sequence[Table]
    envelope: str = "upsert"
    quarantined: Sequence[list[Any]] = ()


def kv(key: Any, value: Any) -> Row:
    return {"k": key, "v": value}


def row(pair: tuple[int, int] | None) -> Row | None:
    return None if pair is None else {"id": pair[0], "v": pair[1]}


def event(op: str, before: tuple[int, int] | None, after: tuple[int, int] | None) -> Row:
    """A change of a row (id, v)."""
    return {"op": op, "before": row(before), "after": row(after), "source": {"table": "t"}}


def without_before(op: str, after: tuple[int, int]) -> Row:
    return {"op": op, "after": row(after), "source": {"table": "t"}}


def bad_int(value: str) -> str:
    return f"column 'v' is INT, found '{value}'"


# The Debezium scenarios share three transactions, each with keys of its own.
D1 = [event("u", (1, 9), (1, 10)), event("u", (1, 10), (1, 11)), event("u", (1, 4), (1, 12))]
D2 = [event("u", (2, 1), (2, 2))] * 2
D3 = [event("c", None, (3, 1)), event("d", (3, 99), None)]
# A delete has its key in `before` and nowhere else; all other changes do without.
D4 = [without_before("c", (4, 1)), "null", without_before("u", (4, 2))]
D5 = [event("c", None, (id_, id_)) for id_ in (7, 6, 5)]
SECOND = [event("u", (3, 1), (3, 7)), event("d", (4, 2), None), "null"]
KEPT: Table = {"1": [12], "2": [2], "5": [5], "6": [6], "7": [7]}

CASES = {
    "e1": Case(
        KV,
        [[kv("a", "1"), kv(None, "x"), kv("b", "1"), kv("a", None), kv("c", "1"), kv("b", None)]],
        [{"c": ["1"]}],
        quarantined=[['{"k": null, "v": "x"}', "the key (k) is NULL", 0, 1]],
    ),
    "e3": Case(
        INLINE,
        [[kv("k1", "x"), kv("k2", "y")], [kv("k1", 1), kv("k2", 2)]],
        [{"k1": [None, bad_int("x")], "k2": [None, bad_int("y")]}, {"k1": [1, None], "k2": [2, None]}],
    ),
    "d1-to-d5": Case(
        ID_V,
        [[*D1, *D2, *D3, *D4, *D5], SECOND, [without_before("c", (4, 3))]],
        [{**KEPT, "4": [2]}, {**KEPT, "3": [7]}, {**KEPT, "3": [7], "4": [3]}],
        envelope="debezium",
    ),
}


def bound(rig: Rig, records: Sequence[Any], files: int) -> Binding:
    """The next transaction, in exactly so many files; the last ones may be empty."""
    pieces = cut(lines_of(records), files)
    pieces += [[]] * (files - len(pieces))
    start = rig.bound
    return rig.bind([rig.write(f"f{start + number}.json", piece) for number, piece in enumerate(pieces)])


def played(spark: SparkSession, root: Path, case: Case, *, files: int) -> dict[str, Any]:
    """What came out, looked at after a replay in two stages of two tasks has read everything again."""
    root.mkdir(parents=True)
    rig = make_rig(spark, root, case.shard, envelope=case.envelope)
    plane, other = rig.plane(), rig.plane(**{"spark.sql.shuffle.partitions": "2"})
    table: Table = {}
    found: dict[str, Any] = {"tables": [], "quarantined": [], "digests": [], "replayed": []}
    for number, records in enumerate(case.transactions):
        binding = bound(rig, records, files)
        staged = plane.stage(binding, WriterToken(f"w{number}"))
        found["digests"].append(shown(staged.digests))
        found["replayed"].append(shown(other.replay(binding).digests))
        for row in rig.rows(staged):
            key, *values = (value for name, value in row.items() if not name.startswith("_"))
            table.pop(str(key), None)
            table |= {str(key): values} if row["_op"] == "U" else {}
        found["tables"].append(dict(table))
        found["quarantined"] += [
            [row["_raw"], row["_reason"], row["_offset"], row["_ordinal"]]
            for row in rig.rows(staged, QUARANTINE)
        ]
    return found


def main() -> None:
    url, root = sys.argv[1], Path(sys.argv[2])
    spark = connect_session(url)
    found = {name: played(spark, root / name, case, files=FILES[-1]) for name, case in CASES.items()}
    spark.stop()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
