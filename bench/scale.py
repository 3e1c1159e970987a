"""What grows with the past, and what must not: `python -m bench.scale`.

Made-up ledgers, no Spark. Each row is one piece of work at a small and at a large size, in the same run, and
how much more the large one costs. What is `linear` may cost as many times more as it is larger; what is
`flat` may not grow.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from obstore.store import MemoryStore

from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tidemark.app.publish import publish_due
from tidemark.config import PipelineConfig
from tidemark.core.binding import Binding, Configuration, Owner
from tidemark.core.checkpoint import Checkpoint, decide_checkpoint
from tidemark.core.checksum import Digest
from tidemark.core.ids import Frontier, ShardId, Txn, WriterToken
from tidemark.core.publish import Policy
from tidemark.core.seal import Decision, Part, Past, Seal, ShardParts, decide_seal
from tidemark.pipeline.context import Pipeline, settle
from tidemark.pipeline.upsert import bring_up_logs
from tidemark.sources.files.bound_files import PARTITION, BoundFile, Manifest
from tidemark.sources.files.listing import Objects
from tidemark.sources.files.source import FileRules, FileSource

FILES_PER_BINDING = 1_000
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One piece of work: sizes, seconds, and how the cost may grow."""

    what: str
    grows: str
    sizes: tuple[int, int]
    seconds: tuple[float, float]

    @property
    def ratio(self) -> float:
        return self.seconds[1] / self.seconds[0]


def timed(work: Callable[[], object], *, rounds: int = ROUNDS) -> float:
    """The median time of some rounds."""
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def configuration(shards: int) -> PipelineConfig:
    listed = [
        {"name": f"t{n}", "schema": "id INT, v STRING", "keys": ["id"], "route": {"table": f"public.t{n}"}}
        for n in range(shards)
    ]
    source = {"type": "files", "path": "in", "format": "json"}
    return PipelineConfig.model_validate(
        {"name": "p", "source": source, "envelope": "debezium", "shards": listed}
    )


class BoundFiles:
    """A ledger of so many bound files, each binding made up when it is read."""

    def head(self) -> None:
        """It never moves."""

    def read(self, lower: int, upper: int) -> Sequence[Binding]:
        return [self.binding(txn) for txn in range(lower, upper)]

    def binding(self, txn: int) -> Binding:
        lower, upper = (txn - 1) * FILES_PER_BINDING, txn * FILES_PER_BINDING
        files = tuple(BoundFile(n, f"2026/{n:09}.json", 100, f"{n:032x}", n, n) for n in range(lower, upper))
        ends = [Frontier.of({PARTITION: end}) for end in (lower, upper)]
        manifest = Manifest("json", files).to_json()
        return Binding(Txn(txn), *ends, Owner("run"), Configuration.of("{}"), manifest)


def look_at_files(bound: int, root: Path) -> float:
    """What a new process takes to find one new file beside so many that were bound and cleared away; another
    process has been there before."""
    folder, ledger = root / f"in-{bound}", BoundFiles()
    folder.mkdir()
    (folder / "new.json").write_text("{}\n")
    last = ledger.binding(bound // FILES_PER_BINDING)

    def look() -> None:
        source = FileSource(
            folder,
            FileRules("json"),
            bindings=ledger,  # type: ignore[arg-type]
            index=root / f"{bound}.sqlite",
        )
        if len(source.offer(last)) != 1:
            raise RuntimeError("one file is new")

    look()
    return timed(look)


def look_at_objects(bound: int, root: Path) -> float:
    """What a new process takes to find one new object after so many that are bound, with
    `incremental_listing`: the server leaves those out, so they are not in the store here."""
    store, ledger, place = MemoryStore(), BoundFiles(), "s3a://bucket/landing"
    store.put("2027/new.json", b"{}")
    last = ledger.binding(bound // FILES_PER_BINDING)

    def look() -> None:
        source = FileSource(
            place,
            FileRules("json", incremental_listing=True),
            bindings=ledger,  # type: ignore[arg-type]
            index=root / f"objects-{bound}.sqlite",
            objects=Objects(place, store=store),  # type: ignore[arg-type]
        )
        if len(source.offer(last)) != 1:
            raise RuntimeError("one object is new")

    look()
    return timed(look)


def ask_for_publishes(shards: int, root: Path) -> float:
    """What a run takes to ask the shards that a transaction has touched, five of so many."""
    control: Any = MemoryControl(MemoryWarehouse())
    nothing: Any = None
    pipeline = Pipeline(control, nothing, nothing, Configuration.of("{}"))
    names = tuple(ShardId(f"t{n}") for n in range(shards))
    deployment: Any = SimpleNamespace(
        root=str(root / f"wh-{shards}"),
        shards=names,
        pipeline=pipeline,
        control=control,
        policy=lambda shard: Policy(None),
    )
    attempt: Any = SimpleNamespace(token="w")
    parts = ShardParts((Part("", 1, 1),), Digest.of([1]))
    touched = dict.fromkeys(names[:5], parts)
    links = [0]

    def work() -> float:
        txn = control.seals.head().upper
        made = Seal(txn, WriterToken(f"w{txn}"), 0, Decision.COMMITTED, Digest.of([1]), touched)
        past = Past(link=links[-1], touched=dict.fromkeys(touched, Txn(txn - 1)) if txn > 1 else {})
        seal = made.linked(past)
        links.append(seal.link)
        settle(
            control.seals,
            lambda head: decide_seal(head=head, found=None, seal=made, past=past),
            what="a seal",
        )
        bring_up_logs(pipeline)
        done = Checkpoint(txn, {}, seal.link)
        settle(control.checkpoints, lambda head: decide_checkpoint(head=head, checkpoint=done), what="done")
        return timed(lambda: publish_due(deployment, attempt), rounds=1)

    work()
    return statistics.median(work() for _ in range(ROUNDS))


def rows(scale: int) -> list[Row]:
    few, many = 100, 100 * scale
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = (FILES_PER_BINDING, FILES_PER_BINDING * scale)
        built = [timed(partial(configuration, size), rounds=3) for size in (few, many)]
        looked = [look_at_files(size, root) for size in files]
        listed = [look_at_objects(size, root) for size in files]
        asked = [ask_for_publishes(size, root) for size in (few, many)]
    return [
        Row("build a configuration, by shards", "linear", (few, many), (built[0], built[1])),
        Row("find new files, by bound files", "flat", files, (looked[0], looked[1])),
        Row("find new objects, by bound objects", "flat", files, (listed[0], listed[1])),
        Row("ask for due publishes, by shards", "flat", (few, many), (asked[0], asked[1])),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=100, help="how many times larger the large size is")
    found = rows(parser.parse_args().scale)
    print("| what | grows | small | large | seconds | seconds | times |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for row in found:
        sizes = " | ".join(f"{size:,}" for size in row.sizes)
        seconds = " | ".join(f"{one:.4f}" for one in row.seconds)
        print(f"| {row.what} | {row.grows} | {sizes} | {seconds} | {row.ratio:.1f} |")


if __name__ == "__main__":
    main()
