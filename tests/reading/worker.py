"""A consumer in a process of its own, without a JVM: `python -m tests.reading.worker FOLDER CONSUMER …`.

It reads as every consumer does (lease, listing, fetch, plan, frontier), takes the rows by pyarrow, and its
effect is one file per batch, named by the batch's range and put in place by a rename. `fuse` names the moment
at which it stops for good, or until it is told to go on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

from tests.support.shelf import SHARD, Shelf
from tidemark.app.consume import leases_of
from tidemark.app.deployment import new_token
from tidemark.core.errors import Determinate
from tidemark.core.ids import Txn
from tidemark.core.lease import HolderToken, LeaseLost
from tidemark.core.log import Limits
from tidemark.core.reading import lease_name
from tidemark.delta.parts import DeltaParts
from tidemark.pipeline.consume import Range, Reading, ShardReader
from tidemark.pipeline.leases import take_hold

TTL_SECONDS = 2.0
DONE, RETRY, LOST = 0, 1, 4
BEFORE_EFFECT, AFTER_EFFECT, STOP_BEFORE_EFFECT = "before", "after", "stop"


def effect(shelf: Shelf, out: Path, given: Range) -> None:
    """The batch's rows, in a file that is there whole or not at all. Once more makes the same file."""
    columns = ["_txn", "k", "v"]
    rows = [
        [row[name] for name in columns]
        for part in given.parts
        for row in pq.ParquetFile(shelf.log / part.path).read(columns=columns).to_pylist()
    ]
    file = out / f"{given.lower:06}-{given.upper:06}.json"
    text = json.dumps({"rows": rows, "by": os.getpid()})
    file.with_suffix(".new").write_text(text, encoding="utf-8")
    file.with_suffix(".new").rename(file)


def blow(fuse: str, moment: str, out: Path) -> None:
    if fuse == moment == STOP_BEFORE_EFFECT:
        (out / "stopped").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fuse == moment:
        os.kill(os.getpid(), signal.SIGKILL)


def main(root: str, consumer: str, upper: str, txns_max: str, fuse: str) -> int:
    """Read up to a transaction; says how it ended by its exit code."""
    shelf = Shelf(Path(root))
    out = Path(root) / "out" / consumer
    out.mkdir(parents=True, exist_ok=True)
    token = new_token()
    works = shelf.works
    try:
        hold = take_hold(
            leases_of(works),
            lease_name(consumer, SHARD),
            HolderToken(token),
            ttl_seconds=TTL_SECONDS,
            wait_seconds=200,
        )
        reading = Reading(consumer, SHARD, token, limits=Limits(txns_max=int(txns_max)))
        reader = ShardReader(works.pipeline, DeltaParts(works.root), hold, reading, name="p")
        given = None
        while reader.frontier < Txn(int(upper)):
            given = reader.next_range()
            if given is None:
                time.sleep(0.1)
                continue
            blow(fuse, STOP_BEFORE_EFFECT, out)
            hold.check()
            blow(fuse, BEFORE_EFFECT, out)
            effect(shelf, out, given)
            blow(fuse, AFTER_EFFECT, out)
            reader.delivered(given)
        hold.release()
    except LeaseLost as error:
        (out / "lost").write_text(str(error), encoding="utf-8")
        return LOST
    except Determinate as error:
        sys.stderr.write(f"{error}\n")
        return RETRY
    return DONE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
