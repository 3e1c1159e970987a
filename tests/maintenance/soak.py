"""Writers, consumers and maintenance at once, each killed again and again; then everything is counted.

`python -m tests.maintenance.soak ROLE ROOT NAME` is one of them, in a process of its own and without a JVM;
`soak` starts them all, kills one after the other with SIGKILL, starts it again, and lets them finish. It goes
on until each of them was killed and maintenance has merged, truncated and deleted, however slow the machine
is. A merged file is truncated once all of it is below what the consumers have, so at last the writers pause.
Every record has a key of its own, so what each consumer must have had, exactly once, is every line that
landed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.maintenance.rig import LightDeployment, files_on_disk, log_folder, published, terms
from tests.support.light import SHARD
from tidemark.app import maintenance
from tidemark.app.deployment import new_token
from tidemark.core.binding import Owner
from tidemark.core.ids import WriterToken
from tidemark.core.lease import HolderToken, LeaseLost
from tidemark.core.log import Limits
from tidemark.core.reading import lease_name
from tidemark.delta.parts import DeltaParts
from tidemark.pipeline.consume import Range, Reading, ShardReader
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.leases import Hold, Leases, take_hold
from tidemark.pipeline.publish import last_published
from tidemark.pipeline.run import run

TTL_SECONDS = 6.0
WAIT_SECONDS_MAX = 600.0
LIFE_SECONDS = (3.0, 15.0)
"""How long a process lives before it is killed, starting included; on a slow machine until it has done a
round."""
RECORDS_PER_FILE = 5
STOP, PAUSE = "stop", "pause"
Row = tuple[int, str]


def is_over(root: Path) -> bool:
    return (root / STOP).exists()


def round_done(root: Path, name: str) -> None:
    """Leave a mark that this process has come so far."""
    (root / f"round-{name}-{os.getpid()}").touch()


def write(root: Path, name: str) -> None:
    """Land a file and take in what there is, until it is over."""
    for number in count():
        if is_over(root):
            return
        if (root / PAUSE).exists():
            time.sleep(0.2)
            round_done(root, name)
            continue
        keys = [random.getrandbits(60) for _ in range(RECORDS_PER_FILE)]
        lines = [json.dumps({"id": key, "value": f"{name}.{number}"}) for key in keys]
        hidden = root / "in" / f".{name}-{os.getpid()}-{number}"
        hidden.write_text("\n".join(lines) + "\n", encoding="utf-8")
        hidden.rename(root / "in" / f"{time.time_ns():020}-{name}.json")
        # Parts of an attempt that lost its seal may be swept while it still reads them: it begins again, like
        # a task that is retried. A part that is sealed would be missed by the consumers.
        with suppress(FileNotFoundError):
            run(LightDeployment(root).pipeline, Attempt(Owner(f"{name}-{time.time_ns()}"), new_token()))
        round_done(root, name)


def keep_house(root: Path, name: str) -> None:
    """Merge, truncate and delete all that nobody holds, without a moment of grace; the first also publishes,
    because one publisher at a time does."""
    tally = root / "tally" / f"{name}-{os.getpid()}"
    tally.parent.mkdir(exist_ok=True)
    while not is_over(root):
        deployment = LightDeployment(root)
        upper = deployment.control.log(SHARD).head().upper
        last = last_published(deployment.control, SHARD)
        if name == PUBLISHER and upper > 1 and (last is None or last.txn < upper - 1):
            published(deployment, upper - 1)
        done = maintenance.maintain(deployment, new_token(), terms(window=upper), watch=False)
        with tally.open("a", encoding="utf-8") as lines:
            lines.writelines(f"{chore.files} {chore.what}\n" for chore in done.chores)
        round_done(root, name)


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
        else:
            hold.check()
            keep(root, out, given)
            reader.delivered(given)
        round_done(root, name)
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


def tallied(root: Path) -> Counter[str]:
    """How many files the keepers say they have dealt with, by what they did; those that were killed have
    done more."""
    found: Counter[str] = Counter()
    for file in (root / "tally").glob("*"):
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
            files, _, what = line.partition(" ")
            if what.endswith("\n"):  # One that was killed may have left half a line.
                found[what.strip()] += int(files)
    return found


ROLES: dict[str, Callable[[Path, str], None]] = {"write": write, "keep_house": keep_house, "consume": consume}
LOST_LEASE = 4
PUBLISHER = "k0"
WANTED = ("merged small files", "truncated the log", "deleted replaced files")


def main(role: str, root: str, name: str) -> int:
    """One process; who was held up for so long that its lease was lost says so, and is started again."""
    try:
        ROLES[role](Path(root), name)
    except LeaseLost:
        return LOST_LEASE
    return 0


@dataclass
class Soaked:
    """What became of it."""

    kills: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    records: int = 0
    txns: int = 0
    since: int = 0
    bytes_peak: int = 0
    bytes_left: int = 0
    files_left: set[str] = field(default_factory=set)
    files_named: set[str] = field(default_factory=set)

    @property
    def is_enough(self) -> bool:
        """Whether all has happened that this is about."""
        return self.since > 1 and self.was_busy and all(self.done[what] for what in WANTED)

    @property
    def was_busy(self) -> bool:
        """Whether each was killed, and there is something that was merged."""
        return len(self.kills) == len(ROLES) and self.done[WANTED[0]] > 0


@dataclass
class Job:
    """A process of a role, started again whenever it has ended."""

    root: Path
    role: str
    name: str
    told: Soaked
    rng: random.Random

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.maintenance.soak", self.role, str(self.root), self.name]
        self.errors = self.root / f"errors-{self.role}-{self.name}"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(command, stderr=errors)
        self.lives_until = time.monotonic() + self.rng.uniform(*LIFE_SECONDS)

    def turn(self) -> None:
        """Kill it when its time has come; what has ended is looked at, and begins again."""
        mark = self.root / f"round-{self.name}-{self.process.pid}"
        if time.monotonic() > self.lives_until and mark.exists():
            self.process.kill()
            self.process.wait()
            self.told.kills[self.role] += 1
        if self.process.poll() is not None:
            self.note(self.process.returncode, allowed=(LOST_LEASE, -signal.SIGKILL))
            self.start()

    def to_its_end(self) -> None:
        """A process that was held up for longer than its lease lasts begins again."""
        while (code := self.process.wait(WAIT_SECONDS_MAX)) == LOST_LEASE:
            self.start()
        self.note(code, allowed=(0,))

    def note(self, code: int, *, allowed: tuple[int, ...]) -> None:
        if code not in allowed:
            why = self.errors.read_text(encoding="utf-8")[-2000:]
            self.told.errors.append(f"{self.role} {self.name} ended with {code}: {why}")


def soak(
    root: Path, *, seconds: float, seconds_max: float, seed: int, writers: int, consumers: int, keepers: int
) -> Soaked:
    """Everything at once for a while, and on until it is enough, then to its end; returns what was killed,
    what was done, and what went wrong."""
    (root / "in").mkdir(parents=True)
    for number in range(consumers):
        # A new consumer has what is kept: these are there before anything is cleaned away.
        held(LightDeployment(root), f"c{number}", new_token()).release()
    rng, told = random.Random(seed), Soaked()
    names = [("write", str(n)) for n in range(writers)] + [("consume", f"c{n}") for n in range(consumers)]
    names += [("keep_house", f"k{n}") for n in range(keepers)]
    jobs = [Job(root, role, name, told, rng) for role, name in names]
    began = time.monotonic()
    while (age := time.monotonic() - began) < seconds or not (told.is_enough or age > seconds_max):
        if told.errors:
            break
        time.sleep(0.2)
        for job in jobs:
            job.turn()
        look(root, told)
        if age > seconds and told.was_busy:
            (root / PAUSE).touch()
    (root / STOP).touch()
    for job in sorted(jobs, key=lambda one: one.role == "consume"):
        job.to_its_end()
    # What the killed writers had landed and nobody has taken in yet.
    last = LightDeployment(root)
    run(last.pipeline, Attempt(Owner("last"), new_token()))
    for job in jobs:
        if job.role == "consume":
            job.start()
            job.to_its_end()
    look(root, told)
    told.records = sum(landed(root).values())
    told.txns = last.control.seals.head().upper - 1
    published(last, told.txns)
    maintenance.maintain(LightDeployment(root), new_token(), terms(window=told.txns + 1), watch=False)
    left = files_on_disk(root)
    told.files_left, told.bytes_left = set(left), sum(left.values())
    uris = DeltaTable(str(log_folder(root))).file_uris()
    told.files_named = {str(Path(uri).relative_to(log_folder(root))) for uri in uris}
    return told


def look(root: Path, told: Soaked) -> None:
    """What has been done so far."""
    # Files go while they are counted: then this look doesn't count.
    with suppress(FileNotFoundError):
        told.bytes_peak = max(told.bytes_peak, sum(files_on_disk(root).values()))
    told.done = tallied(root)
    told.since = Leases(LightDeployment(root).control.leases).since()


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
