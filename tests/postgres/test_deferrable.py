"""Scenario Q1: under a deferrable key rows share one until their transaction ends; none is lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.postgres_pipeline import Rig
from tidemark.core.errors import InvalidUsage
from tidemark.sources.postgres.records import Deferred, RowEvent

MakeRig = Callable[..., Rig]
SHAPE = ("id INT NOT NULL, v INT, body STRING", ["id"])
TABLE = "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v int, body text)"
ROWS = "INSERT INTO t VALUES (1, 100), (2, 200), (3, 300)"


def folded(works: Rig, *, until: Callable[[], list[Any]]) -> list[tuple[Any, ...]]:
    """The rows that the captured records come to, one after the other."""
    found: dict[int, tuple[Any, ...]] = {}
    for binding in until():
        for one in works.records(binding):
            row = one["after"] or one["before"]
            found.pop(row["id"], None)
            if one["after"]:
                found[row["id"]] = tuple(row.values())
    return sorted(found.values())


@pytest.mark.server
def test_regression_rows_that_move_onto_each_others_keys_are_all_there(rig: MakeRig) -> None:
    works = rig(t=SHAPE)
    works.ready(TABLE, ROWS)
    works.sql("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    bound = works.bind()

    def check() -> None:
        bound.extend(works.bind())
        assert folded(works, until=lambda: bound) == works.sql("SELECT * FROM t ORDER BY id")

    works.sql("UPDATE t SET id = id % 3 + 1")
    check()
    # A key that two rows have for a while: the older one goes, the newer one goes, both are changed.
    works.transaction("INSERT INTO t VALUES (2, 7)", "UPDATE t SET v = v + 1 WHERE id = 2",
                      "DELETE FROM t WHERE id = 2 AND v <> 8")  # fmt: skip
    check()
    works.transaction("INSERT INTO t VALUES (2, 9)", "DELETE FROM t WHERE v = 9")
    check()
    works.transaction("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (1, 5)")
    check()
    works.transaction("INSERT INTO t VALUES (4, 1)", "DELETE FROM t WHERE id = 4")
    check()
    # A big value that is not sent again goes along with its row.
    works.sql(f"UPDATE t SET body = '{'z' * 9_000}' WHERE id = 1")
    works.sql("UPDATE t SET id = id % 3 + 1", "UPDATE t SET v = v + 1, id = 4 - id")
    check()
    works.sql("DELETE FROM t")
    check()


def test_whatever_a_transaction_does_its_rows_come_to_what_is_there_at_its_end() -> None:
    """Rows with keys 0 to 2 are inserted, moved and deleted at random; keys are unique at the end."""
    chance = random.Random(7)
    for _ in range(300):
        rows: dict[str, int] = {f"old{key}": key for key in range(3) if chance.random() < 0.7}
        state = {key: name for name, key in rows.items()}
        deferred, events, number = Deferred(), list[RowEvent](), 0

        def event(name: str, key: int, *, there: bool) -> None:
            events.append(RowEvent(there, b"key %d" % key, f"{name} {key}".encode()))  # noqa: B023

        for _ in range(chance.randrange(1, 8)):
            does = chance.choice("imd") if rows else "i"
            if does == "i":
                number += 1
                rows[f"new{number}"] = chance.randrange(3)
                event(f"new{number}", rows[f"new{number}"], there=True)
                continue
            name = chance.choice(sorted(rows))
            event(name, rows.pop(name), there=False)
            if does == "m":
                rows[name] = chance.randrange(3)
                event(name, rows[name], there=True)
        if len(set(rows.values())) < len(rows):
            continue  # The database would refuse the commit.
        deferred.add(1, "t", events)
        lines = deferred.settled()
        for record in (lines.part(at, at + 1).tobytes().decode() for at in range(len(lines))):
            first, _, key = record.partition(" ")
            state.pop(int(key), None)
            if first != "key":
                state[int(key)] = first
        assert state == {key: name for name, key in rows.items()}


def test_rows_that_can_not_be_told_apart_are_refused() -> None:
    deferred = Deferred()
    deferred.add(1, "public.t", [RowEvent(True, b"k", b"a"), RowEvent(True, b"k", b"b")])
    with pytest.raises(InvalidUsage, match=r"table public\.t: its key is deferrable"):
        deferred.settled()
