"""Writers, consumers and maintenance at once, each killed again and again; then everything is counted.

`python -m tests.maintenance.soak ROLE ROOT NAME` is one of them, in a process of its own and without a JVM;
`soak` starts them all, kills one after the other with SIGKILL, starts it again, and lets them finish. Every
record has a key of its own, so what each consumer must have had, exactly once, is every line that landed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq

from tests.crash.light import SHARD
from tests.maintenance.rig import LightDeployment, files_on_disk, log_folder, published, terms
from tidemark import upkeep
from tidemark.assemble import new_token
from tidemark.core.binding import Owner
from tidemark.core.consumer import lease_name
from tidemark.core.errors import TidemarkError
from tidemark.core.ids import WriterToken
from tidemark.core.lease import HolderToken, LeaseLost
from tidemark.core.listing import Limits
from tidemark.delta.parts import DeltaParts
from tidemark.pipeline.consume import Range, Reading, ShardReader
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.holding import Hold, take_hold
from tidemark.pipeline.leasing import Leases
from tidemark.pipeline.publish import last_published
from tidemark.pipeline.run import run

TTL_SECONDS = 2.0
WAIT_SECONDS_MAX = 120.0
LIFE_SECONDS = (3.0, 15.0)
"""How long a process lives before it is killed, starting included."""
RECORDS_PER_FILE = 5
STOP = "stop"
Row = tuple[int, str]


def is_over(root: Path) -> bool:
    return (root / STOP).exists()


def write(root: Path, name: str) -> None:
    """Land a file and take in what there is, until it is over."""
    for number in count():
        if is_over(root):
            return
        keys = [random.getrandbits(60) for _ in range(RECORDS_PER_FILE)]
        lines = [json.dumps({"id": key, "value": f"{name}.{number}"}) for key in keys]
        hidden = root / "in" / f".{name}-{os.getpid()}-{number}"
        hidden.write_text("\n".join(lines) + "\n", encoding="utf-8")
        hidden.rename(root / "in" / f"{time.time_ns():020}-{name}.json")
        run(LightDeployment(root).pipeline, Attempt(Owner(f"{name}-{time.time_ns()}"), new_token()))


def keep_house(root: Path, name: str) -> None:
    """Publish, merge, truncate and delete all that nobody holds, without a moment of grace."""
    while not is_over(root):
        deployment = LightDeployment(root)
        upper = deployment.control.log(SHARD).head().upper
        last = last_published(deployment.control, SHARD)
        if upper > 1 and (last is None or last.txn < upper - 1):
            published(deployment, upper - 1)
        upkeep.maintain(deployment, new_token(), terms(window=upper), watch=False)


def consume(root: Path, name: str) -> None:
    """Take every batch to a file of its own, until it is over and there is no more."""
    deployment, token = LightDeployment(root), new_token()
    out = root / "out" / name
    out.mkdir(parents=True, exist_ok=True)
    hold = held(deployment, name, token)
    reading = Reading(name, SHARD, token, limits=Limits(txns_max=7))
    reader = ShardReader(deployment.pipeline, DeltaParts(deployment.root), hold, reading, name="race")
    while True:
        ends = is_over(root)
        given = reader.next_range()
        if given is None and ends:
            break
        if given is None:
            time.sleep(0.05)
            continue
        hold.check()
        keep(root, out, given)
        reader.delivered(given)
    hold.release()


def held(deployment: LightDeployment, consumer: str, token: WriterToken) -> Hold:
    """A consumer's lease."""
    return take_hold(
        Leases(deployment.control.leases),
        lease_name(consumer, SHARD),
        HolderToken(token),
        ttl_seconds=TTL_SECONDS,
        wait_seconds=WAIT_SECONDS_MAX,
    )


def keep(root: Path, out: Path, given: Range) -> None:
    """The batch's rows in a file that is there whole or not at all; once more makes the same file."""
    rows = [
        (row["id"], row["value"])
        for part in given.parts
        for row in pq.ParquetFile(log_folder(root) / part.path)
        .read(columns=["id", "value", "_txn"])
        .to_pylist()
        if given.lower <= row["_txn"] < given.upper
    ]
    file = out / f"{given.lower:06}-{given.upper:06}.json"
    file.with_suffix(".new").write_text(json.dumps(rows), encoding="utf-8")
    file.with_suffix(".new").rename(file)


ROLES: dict[str, Callable[[Path, str], None]] = {"write": write, "keep_house": keep_house, "consume": consume}
LOST_LEASE = 4


def main(role: str, root: str, name: str) -> int:
    """One process; who was held up for so long that its lease was lost says so, and is started again."""
    try:
        ROLES[role](Path(root), name)
    except LeaseLost:
        return LOST_LEASE
    except TidemarkError as error:
        (Path(root) / "errors").mkdir(exist_ok=True)
        (Path(root) / "errors" / f"{role}-{name}-{time.time_ns()}").write_text(f"{error!r}", encoding="utf-8")
        return 1
    return 0


@dataclass
class Soaked:
    """What became of it."""

    kills: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    records: int = 0
    txns: int = 0
    files_left: int = 0


def soak(root: Path, *, seconds: float, seed: int, writers: int, consumers: int, keepers: int) -> Soaked:
    """Everything at once for a while, then to its end; returns what was killed, and what went wrong."""
    (root / "in").mkdir(parents=True)
    for number in range(consumers):
        # A new consumer has what is kept: these are there before anything is cleaned away.
        held(LightDeployment(root), f"c{number}", new_token()).release()
    rng, told = random.Random(seed), Soaked()
    jobs = [("write", str(n)) for n in range(writers)] + [("consume", f"c{n}") for n in range(consumers)]
    jobs += [("keep_house", f"k{n}") for n in range(keepers)]
    running = {job: start(root, *job) for job in jobs}
    lives_until = {job: time.monotonic() + rng.uniform(*LIFE_SECONDS) for job in jobs}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.1)
        for job, process in running.items():
            if time.monotonic() > lives_until[job]:
                process.kill()
                told.kills[job[0]] += 1
            if process.poll() is not None or time.monotonic() > lives_until[job]:
                process.wait()
                running[job] = start(root, *job)
                lives_until[job] = time.monotonic() + rng.uniform(*LIFE_SECONDS)
    (root / STOP).touch()
    for job in sorted(jobs, key=lambda one: one[0] == "consume"):
        to_its_end(root, job, running[job])
    # What the killed writers had landed and nobody has taken in yet.
    last = LightDeployment(root)
    run(last.pipeline, Attempt(Owner("last"), new_token()))
    for job in jobs:
        if job[0] == "consume" and (code := to_its_end(root, job, start(root, *job))):
            told.errors.append(f"{job} ended with {code}, though nobody killed it")
    folder = root / "errors"
    told.errors += [file.read_text(encoding="utf-8") for file in folder.iterdir()] if folder.is_dir() else []
    told.records = sum(landed(root).values())
    told.txns = last.control.seals.head().upper - 1
    published(last, told.txns)
    upkeep.maintain(LightDeployment(root), new_token(), terms(window=told.txns + 1), watch=False)
    told.files_left = len(files_on_disk(root))
    return told


def to_its_end(root: Path, job: tuple[str, str], process: subprocess.Popen[bytes]) -> int:
    """A process that was held up for longer than its lease lasts begins again; returns how it ended."""
    while (code := process.wait(WAIT_SECONDS_MAX)) == LOST_LEASE:
        process = start(root, *job)
    return code


def start(root: Path, role: str, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.maintenance.soak", role, str(root), name]
    return subprocess.Popen(command)


def landed(root: Path) -> Counter[Row]:
    """Every record of the source, by hand."""
    lines = (line for file in (root / "in").glob("*.json") for line in file.read_text().splitlines())
    return Counter((record["id"], record["value"]) for record in map(json.loads, lines))


def delivered(root: Path, consumer: str) -> Counter[Row]:
    """Every record that a consumer's effects have."""
    files = (root / "out" / consumer).glob("*.json")
    return Counter((key, value) for file in files for key, value in json.loads(file.read_text()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
