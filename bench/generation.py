"""What a new generation takes: `python -m bench.generation`.

- Catching up: a pipeline loads transactions one after the other, then a candidate takes the same ones in, in
  the same warm session. Told is how many times faster the candidate is, by the clock of this run.
- Promoting: a pipeline of one and of many shards gets a generation with another rule for some or all of them,
  which changes some rows. Told is how long the promotion takes, and how long runs wait for it: from its
  binding to its seal.

Afterwards the rows of the tables are compared with those worked out by hand.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.app.deployment import Deployment

WARM = 3
SHARDS = ("1/1", "20/20", "200/1")
CHANGED_EVERY = 1_000


def opened(spark: SparkSession, folder: Path, generation: int, shards: int, changed: int) -> Deployment:
    """A process of its own, but for Spark. The second generation has another rule of deletes for the first
    `changed` shards."""
    from tidemark.app.deployment import Deployment
    from tidemark.config import PipelineConfig

    (folder / "in").mkdir(exist_ok=True, parents=True)
    settings = {
        "name": "p",
        "generation": generation,
        "warehouse": "warehouse",
        "source": {"type": "files", "path": "in", "format": "json", "settle_seconds": 0},
        "shards": [
            {
                "name": f"t{n}",
                "schema": "id BIGINT NOT NULL, kind STRING, note STRING, price DOUBLE",
                "keys": ["id"],
                "apply_as_deletes": "op IN ('D', 'X')" if generation and n < changed else "op = 'D'",
                **({"route": {"column": "kind", "equals": f"t{n}"}} if shards > 1 else {}),
            }
            for n in range(shards)
        ],
    }
    return Deployment(PipelineConfig.model_validate(settings).at(folder), lambda: spark)


def land(folder: Path, number: int, records: int, shards: int) -> None:
    """One file, one transaction; one record of a thousand is deleted by the second generation only."""
    rows = (
        {
            "id": number * records + n, "kind": f"t{n % shards}", "note": f"note {n}", "price": n / 8,
            "op": "X" if is_changed(n, shards) else "U",
        }
        for n in range(records)
    )  # fmt: skip
    (folder / "in" / f"{number:05}.json").write_text("".join(f"{json.dumps(one)}\n" for one in rows))


def is_changed(n: int, shards: int) -> bool:
    return n // shards % CHANGED_EVERY == 0


def attempt() -> Any:
    from tidemark.app.deployment import new_token
    from tidemark.core.binding import Owner
    from tidemark.pipeline.context import Attempt

    return Attempt(Owner(new_token()), new_token())


def rows_left(deployment: Deployment) -> int:
    from tidemark.app.views import read

    return sum(read(deployment, shard).count() for shard in deployment.shards)


def waited(deployment: Deployment) -> float:
    """Seconds between the binding and the seal of the last promotion, by the times of their commits."""
    control = deployment.fresh_control()
    control.seals.head()
    control.bindings.head()
    txn = control.seals.mark("correction")
    bound, sealed = (ledger.written_at(txn) for ledger in (control.bindings, control.seals))
    if bound is None or sealed is None:
        raise RuntimeError(f"transaction {txn} has no time")
    return (sealed - bound).total_seconds()


def measured(
    spark: SparkSession, folder: Path, *, shards: int, changed: int, txns: int, records: int
) -> dict[str, float]:
    """Seconds of a load, of a catch-up, of the promotion, and that runs wait for it."""
    from tidemark.app.generation import Generations
    from tidemark.app.publish import run_and_publish

    works = opened(spark, folder, 0, shards, changed)
    loads = []
    for number in range(txns):
        land(folder, number, records, shards)
        before = time.perf_counter()
        run_and_publish(works, attempt())
        loads.append(time.perf_counter() - before)
    works.close()
    works = opened(spark, folder, 1, shards, changed)
    generations = Generations(works)
    pair = generations.pair(generations.start(reason="measured"))
    follows, last = [], time.perf_counter()
    for _ in pair.follow(attempt(), transactions_max=WARM):
        pass
    last = time.perf_counter()
    count = sum(1 for _ in pair.follow(attempt()))
    follows.append((time.perf_counter() - last) / max(1, count))
    before = time.perf_counter()
    pair.promote(attempt(), grace_seconds=3_600)
    promoted = time.perf_counter() - before
    gone = sum(1 for n in range(records) if is_changed(n, shards) and n % shards < changed) * txns
    if (found := rows_left(works)) != txns * records - gone:
        raise RuntimeError(f"{found} rows are left, and not {txns * records - gone}")
    times = {"promote": promoted, "wait": waited(works)}
    return {"load": statistics.median(loads[WARM:]), "follow": follows[0], **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--txns", type=int, default=15)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--shards", nargs="*", default=SHARDS, help="how many, and how many get a new rule")
    given = parser.parse_args()
    from tidemark.spark import session

    print(
        "| shards | with a new rule | transactions | records each | load, s | catch-up, s | times faster |"
        " promotion, s | runs wait, s |"
    )
    print(f"|{' ---: |' * 9}")
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as made:
        spark = session.build_session("bench", master="local[2]", scratch_folder=Path(made) / "scratch")
        for one in given.shards:
            shards, changed = map(int, one.split("/"))
            folder = Path(made) / f"{shards}-{changed}"
            txns = given.txns if shards == 1 else WARM + 1
            found = measured(spark, folder, shards=shards, changed=changed, txns=txns, records=given.records)
            faster = found["load"] / found["follow"]
            print(
                f"| {shards} | {changed} | {txns} | {given.records:,} | {found['load']:.2f} |"
                f" {found['follow']:.2f} | {faster:.2f} | {found['promote']:.1f} | {found['wait']:.1f} |",
                flush=True,
            )
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
