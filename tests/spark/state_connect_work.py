"""What a state does over Spark Connect, in a process of its own: a process has one kind of session.

`python -m tests.spark.state_connect_work URL FOLDER` prints one JSON object with what was found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.support.state import SHARD, StateRig, gone
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import Conflict
from tidemark.pipeline import publish as step
from tidemark.ports.planes import Tail
from tidemark.spark.state import SparkStatePlane


def publishes(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """A first publish, upserts, upserts with deletes, new keys, nothing new; then a rebuild."""
    rig = StateRig(spark, folder, change_data_feed=True)
    states, feeds, fresh = [], [], []
    for changes in (
        [("a", "1"), ("b", "1"), (None, "1")],
        [("a", "2"), ("c", "1"), (None, "2")],
        [("a", "3"), gone(None), gone("absent"), ("b", "1")],
        [("d", "1")],
        [("d", "1"), gone("absent")],
    ):
        rig.append(*changes)
        fresh.append(rig.fresh())
        published = rig.publish()
        states.append(rig.state())
        feeds.append(rig.changes(published.version))
    step.verify_state(rig.control, rig.plane, SHARD)
    spark.sql(f"DELETE FROM delta.`{rig.spec.state}`")
    rig.append(("e", "1"))
    rig.rebuild()
    rebuilt = rig.state()
    rig.append(gone("e"))
    rig.publish()
    return {
        "states": states, "feeds": feeds, "fresh": fresh, "rebuilt": rebuilt,
        "last": rig.state(), "txn": rig.plane.state_status(SHARD, rig.last).txn,
    }  # fmt: skip


def late(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """A publisher that looked before another one committed, and commits after it (scenario M13)."""
    rig = StateRig(spark, folder)
    rig.append(("a", "1"), ("b", "1"))
    base = rig.publish()
    rig.append(("a", "2"))
    first = Tail(Txn(2), Txn(3), rig.control.log(SHARD).head().version, link=2)
    rig.append(("a", "1"), gone("b"), ("c", "1"))
    longer = Tail(Txn(2), Txn(4), rig.control.log(SHARD).head().version, link=3)
    commit = SparkStatePlane._commit

    def overtaken(self: SparkStatePlane, *args: Any, **change: Any) -> Any:
        SparkStatePlane._commit = commit  # type: ignore[method-assign]
        self.publish(SHARD, first, base=base, token=WriterToken("other"))
        return self._commit(*args, **change)

    SparkStatePlane._commit = overtaken  # type: ignore[method-assign]
    refused = rig.plane.publish(SHARD, longer, base=base, token=WriterToken("late")) == Conflict()
    between = rig.state()
    rig.publish()
    step.verify_state(rig.control, rig.plane, SHARD)
    return {"refused": refused, "between": between, "after": rig.state()}


def sequences(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Late records against a state, a tombstone and each other (scenario U11)."""
    from tests.spark.test_state import LATE

    rig = StateRig(spark, folder, ddl="k STRING, v STRING, s BIGINT", sequence_by="s")
    for number, changes in enumerate(LATE, 1):
        rig.append(*changes)
        if number % 3 == 0:
            rig.publish()
    fresh = rig.fresh()
    rig.publish()
    return {"fresh": fresh, "state": rig.state()}


def main() -> None:
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    root = Path(sys.argv[2])
    found = {work.__name__: work(spark, root / work.__name__) for work in (publishes, late, sequences)}
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
