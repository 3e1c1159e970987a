"""A client process for the tests over Spark Connect: a process has classic sessions or these, never both.

`python -m tests.spark.connect_client URL ROOT` stages, reads back and replays the transactions of `scenarios`
below ROOT, and prints what came of each as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.support.ingest import Rig, make_rig
from tidemark.core.binding import Binding
from tidemark.core.checksum import Digests
from tidemark.core.errors import TidemarkError
from tidemark.core.ids import WriterToken
from tidemark.spark.session import connect_session

TWO_SHARDS: tuple[dict[str, Any], ...] = tuple(
    {
        "name": name,
        "schema": "id INT NOT NULL, t STRING, v DOUBLE",
        "keys": ["id"],
        "route": {"column": "t", "equals": name},
    }
    for name in ("a", "b")
)


def scenarios(spark: SparkSession, root: Path) -> Iterator[tuple[str, Rig, Binding]]:
    """One transaction of every kind: folded with bad records, routed, refused, and of a file that is gone."""
    for name in ("folded", "routed", "refused", "gone"):
        (root / name).mkdir(exist_ok=True)
    rig = make_rig(spark, root / "folded")
    records = [{"k": f"k{n % 70}", "v": None if n % 11 == 0 else f"é{n}"} for n in range(500)]
    yield "folded", rig, rig.bind_records([*records, "broken", {"k": None, "v": "x"}], files=5)
    rig = make_rig(spark, root / "routed", *TWO_SHARDS)
    rows = [{"id": n % 9, "t": "ab"[n % 2], "v": n / 4} for n in range(60)]
    yield "routed", rig, rig.bind_records([*rows, {"id": 1, "t": "c", "v": 0.5}], files=2)
    rig = make_rig(spark, root / "refused")
    yield "refused", rig, rig.bind_records([{"k": "a", "v": "b"}, {"k": "c", "v": "d", "more": 1}])
    rig = make_rig(spark, root / "gone")
    binding = rig.bind_records([{"k": "a", "v": "b"}])
    (root / "gone" / "in" / "f0.json").unlink()
    yield "gone", rig, binding


def shown(digests: Digests) -> dict[str, str]:
    return {endpoint: f"{digest.count} {digest}" for endpoint, digest in sorted(digests.items())}


def outcome(rig: Rig, binding: Binding, token: str) -> Any:
    """What staging, read-back, replay and a look for rows that differ give; or the kind of error, with its
    message up to the colon."""
    plane = rig.plane()
    try:
        staged = plane.stage(binding, WriterToken(token))
    except TidemarkError as error:
        return [type(error).__name__, "undeclared column 'more'" in str(error)]
    replayed = plane.replay(binding)
    parts = {shard: added.parts for shard, added in staged.shards.items()}
    differing = [str(one) for one in plane.sample(binding, parts, limit=2)]
    digests = [staged.digests, plane.read_back(staged), replayed.digests]
    return [*map(shown, digests), differing, staged.engine]


def main() -> None:
    url, root = sys.argv[1:]
    spark = connect_session(url)
    found = {name: outcome(rig, binding, "connect") for name, rig, binding in scenarios(spark, Path(root))}
    sys.stdout.write(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
