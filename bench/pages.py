"""What the pages in Airflow answer, and in what time: `python -m bench.pages`.

A pipeline of 200 shards and 100,000 transactions, with its attempts and its journal, on a local disk. Its
tables are filled in large commits, and their logs are made a day old, as those of an old history are. Then
each answer is made as a server makes it: the first look opens the pipeline, the later ones follow it. The
server shares the runs' cache of bound files; one on another machine learns them by its first look.
The last line is the list of the pages with 50 pipelines of 100 transactions, all rows after each other.
Medians in milliseconds, by the clock and of the processor, since others may use the machine too. No Spark and
no server: a request adds a few milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.control import CONFIGURATION, age, timed
from tidemark.airflow.pages import answers as bodies
from tidemark.airflow.pages import answers as looks
from tidemark.airflow.pages.registry import PipelineDag
from tidemark.app.tasks import open_pipeline, reclock
from tidemark.core.binding import Binding, Configuration, Owner
from tidemark.core.checkpoint import Checkpoint, TableMark
from tidemark.core.checksum import Digest
from tidemark.core.ids import Frontier, ShardId, Txn, WriterToken
from tidemark.core.ledger import LINK, UPPER, Committed, Event, JournalEntry, Put
from tidemark.core.log import LogEntry
from tidemark.core.publish import Published, StateCommit
from tidemark.core.seal import Decision, Evidence, Part, Seal, ShardParts, Staged, touch_mark
from tidemark.delta.log import parts_folder
from tidemark.pipeline.context import Attempt
from tidemark.sources.files.bound_files import BoundFile, Manifest

BATCH = 1_000
"""As many rows as the full files of a history have."""
DIGEST = Digest.of(range(80))
DETAIL = {"verdict": "identical", "finding": "", "compared": "2", "rows": "80", "expectations": "4"}


def token_of(txn: int) -> WriterToken:
    return WriterToken(f"w{txn}")


def shards_of(txn: int, shards: int) -> dict[ShardId, ShardParts]:
    part = Part(
        f"{parts_folder(Txn(txn), token_of(txn))}/part-00000.parquet",
        80,
        9999,
        json.dumps({"numRecords": 80}),
    )
    return {ShardId(f"t{at % shards:03}"): ShardParts((part,), DIGEST) for at in (2 * txn, 2 * txn + 1)}


def binding_of(txn: int, configuration: Configuration) -> Binding:
    lower, upper = Frontier.of({"files": txn - 1}), Frontier.of({"files": txn})
    manifest = Manifest("json", (BoundFile(txn, f"{txn}.json", 9, "h", 1),)).to_json()
    return Binding(Txn(txn), lower, upper, Owner(f"scheduled__{txn:012}"), configuration, manifest)


def put(ledger: Any, make: Callable[[int], Any], last: int, **marks: int) -> None:
    """Records 1 to `last`, in a few large commits."""
    for first in range(1, last + 1, BATCH):
        upper = min(first + BATCH, last + 1)
        records = [make(number) for number in range(first, upper)]
        moved = {UPPER: upper, **(marks if upper > last else {})}
        if not isinstance(ledger.commit(ledger.head(), Put(moved, records, None)), Committed):
            raise SystemExit("somebody else is writing to the bench's table")


def filled(folder: Path, name: str, *, txns: int, shards: int) -> PipelineDag:
    """A pipeline with so many transactions, of which each touches two shards."""
    (folder / "landing").mkdir(parents=True)
    tables = "".join(
        f"  - {{name: t{at:03}, schema: id BIGINT, keys: [id], route: {{column: t, equals: '{at}'}}}}\n"
        for at in range(shards)
    )
    file = folder / f"{name}.yaml"
    source = "{type: files, path: landing, format: json, settle_seconds: 0}"
    file.write_text(f"name: {name}\nsource: {source}\nwarehouse: warehouse\nshards:\n{tables}")
    deployment = open_pipeline(file, None)
    control, configuration = deployment.control, deployment.pipeline.configuration

    def seal_of(txn: int) -> Seal:
        sealed = shards_of(txn, shards)
        return Seal(Txn(txn), token_of(txn), 0, Decision.COMMITTED, DIGEST, sealed, "bench", link=txn)

    def evidence_of(txn: int) -> Evidence:
        staged = Staged(Txn(txn), token_of(txn), DIGEST, shards_of(txn, shards), "bench")
        return Evidence(txn, Txn(txn), Owner(f"scheduled__{txn:012}"), 0, token_of(txn), staged)

    def judged(txn: int) -> JournalEntry:
        return JournalEntry(number=txn, txn=Txn(txn), event=Event.JUDGED, token=token_of(txn), detail=DETAIL)

    touched = {
        shard: txn for txn in range(max(1, txns - shards), txns + 1) for shard in shards_of(txn, shards)
    }
    # Shards are compared with the newest configuration; the text of each would take 2 GB.
    newest = {txns: configuration}
    put(control.bindings, lambda txn: binding_of(txn, newest.get(txn, CONFIGURATION)), txns)
    put(control.seals, seal_of, txns, **{touch_mark(shard): txn for shard, txn in touched.items()})
    put(control.attempts, evidence_of, txns)
    put(control.journal, judged, txns)
    for shard, txn in touched.items():
        entry = LogEntry(Txn(txn), token_of(txn), shards_of(txn, shards)[shard].parts)
        log = control.log(shard)
        log.commit(log.head(), Put({UPPER: txn + 1, LINK: txn}, (entry,), None))
        commit = StateCommit(Txn(txn), token_of(txn), DIGEST, link=txn)
        publishes = control.publishes(shard)
        publishes.commit(publishes.head(), Put({UPPER: 2}, (Published(1, 1, commit),), None))
    marks = {shard: TableMark(Txn(txn + 1)) for shard, txn in touched.items()}
    checkpoints = control.checkpoints
    newest = Checkpoint(Txn(txns), marks, link=txns)
    checkpoints.commit(checkpoints.head(), Put({UPPER: txns + 1}, (newest,), None))
    for table in (control.history, control.attempts, control.journal):
        age(Path(table.uri) / "_delta_log")
    # A run that finds nothing leaves the index of bound files that the pages on its machine use.
    idle = Attempt(Owner("idle"), WriterToken("idle"))
    reclock(open_pipeline(file, None, binds=True), idle)
    return PipelineDag(name, str(file), None)


def looked(ask: Callable[[], object], repeats: int) -> str:
    """The medians of first looks, which open what they need, and of later ones, in processor time and by the
    clock: the cells of a line."""
    used: list[float] = []

    def look() -> None:
        began = time.process_time()
        ask()
        used.append((time.process_time() - began) * 1000)

    def first() -> None:
        looks._open.clear()
        look()

    cells = []
    for kind in (first, look):
        used.clear()
        clock = statistics.median(timed(repeats, kind))
        cells.append(f"{statistics.median(used):.0f} | {clock:.0f}")
    return " | ".join(cells)


def answers(one: PipelineDag, txns: int) -> dict[str, Callable[[], object]]:
    """What the pages ask for, by name."""
    attempt = Attempt(Owner(f"scheduled__{txns:012}"), WriterToken("page"))
    return {
        "a pipeline's row": lambda: bodies.pipeline_body(one),
        "50 transactions": lambda: bodies.transactions_body(one, before=None, limit=50, search=""),
        "a search that finds nothing": lambda: bodies.transactions_body(
            one, before=None, limit=50, search="x y"
        ),
        "one transaction, new": lambda: bodies.transaction_body(one, txns),
        "one transaction, old": lambda: bodies.transaction_body(one, txns // 2),
        "a run": lambda: bodies.run_body(one, attempt),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--txns", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--pipelines", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        one = filled(Path(scratch) / "large", "large", txns=given.txns, shards=given.shards)
        size = f"{given.txns:,} transactions, {given.shards} shards"
        print(f"| ms, {size} | first: CPU | first: clock | later: CPU | later: clock |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for name, ask in answers(one, given.txns).items():
            print(f"| {name} | {looked(ask, given.repeats)} |")
        many = [
            filled(Path(scratch) / f"p{at:02}", f"p{at:02}", txns=100, shards=4)
            for at in range(given.pipelines)
        ]

        def rows() -> None:
            for pipeline in many:
                bodies.pipeline_body(pipeline)

        print(f"| all rows of {given.pipelines} pipelines | {looked(rows, 3)} |")


if __name__ == "__main__":
    main()
