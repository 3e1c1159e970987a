"""What the control plane costs, and whether the cost grows with history: `python -m bench.control`.

Each ledger is first filled with as many records as a pipeline of that age has, in commits of a
hundred, and its log is made a day old and cleaned, as an old history's is: a fast loop of single
commits would measure a log that nobody has. Then every operation is timed on it.
Medians in milliseconds; the commits' means include the housekeeping that every tenth commit does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tidemark.core.binding import Binding, BindingRecord, Configuration, Owner, Step, decide_mint
from tidemark.core.checkpoint import Checkpoint, TableMark, decide_checkpoint
from tidemark.core.checksum import Digest
from tidemark.core.ids import Frontier, ShardId, Txn, WriterToken
from tidemark.core.ledger import UPPER, Committed, Put
from tidemark.core.seal import Decision, Part, Past, Seal, ShardParts, decide_seal
from tidemark.delta.control import DeltaControl
from tidemark.ports.control import Ledger

SIZES = (100, 1_000, 10_000)
SIZE_LARGE = 100_000
BATCH = 100
CONFIGURATION = Configuration.of(json.dumps({"columns": {f"column_{n}": "string" for n in range(40)}}))
ORDERS = ShardId("orders")


def binding_of(txn: int) -> Binding:
    lower, upper = Frontier.of({"p": txn - 1}), Frontier.of({"p": txn})
    return Binding(Txn(txn), lower, upper, Owner(f"scheduled__{txn:012}"), CONFIGURATION)


def seal_of(txn: int) -> Seal:
    parts = tuple(
        Part(f"_txn-{txn:020}/w/part-{n:05}.parquet", 10, 9999, json.dumps({"numRecords": 10}))
        for n in range(8)
    )
    digest = Digest.of(range(80))
    shards = {ShardId(name): ShardParts(parts, digest) for name in ("orders", "parties")}
    return Seal(Txn(txn), WriterToken(f"w{txn}"), 0, Decision.COMMITTED, digest, shards, "bench")


def checkpoint_of(txn: int) -> Checkpoint:
    return Checkpoint(Txn(txn), {ORDERS: TableMark(Txn(txn + 1))})


def fill(ledger: Any, make: Callable[[int], Any], records: int) -> None:
    for first in range(1, records + 1, BATCH):
        batch = [make(number) for number in range(first, min(first + BATCH, records + 1))]
        outcome = ledger.commit(ledger.head(), Put({UPPER: first + len(batch)}, batch, None))
        if not isinstance(outcome, Committed):
            raise SystemExit("somebody else is writing to the bench's table")


def age(log: Path) -> None:
    """Let the log be a day old, so that its clean-up takes what it would have taken by then."""
    yesterday = time.time() - 86_400
    for path in log.iterdir():
        os.utime(path, (yesterday, yesterday))
    table = DeltaTable(log.parent)
    table.create_checkpoint()
    table.cleanup_metadata()


def timed(repeats: int, work: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1000)
    return found


def mint(control: DeltaControl) -> None:
    bindings = control.bindings
    head = bindings.head()
    owner = Owner(f"scheduled__{head.upper:012}")
    found = bindings.find(owner.identity)
    [last] = bindings.read(head.upper - 1, head.upper)
    if not isinstance(last, Binding):
        raise SystemExit("the last record is not a binding")
    steps = [Step(Frontier.of({"p": int(head.upper)}))]
    put = decide_mint(
        head=head, last=last, found=found, steps=steps, owner=owner, configuration=CONFIGURATION
    )
    if isinstance(put, Put):
        bindings.commit(head, put)


def seal(control: DeltaControl) -> None:
    head = control.seals.head()
    put = decide_seal(head=head, found=None, seal=seal_of(head.upper), past=Past())
    if isinstance(put, Put):
        control.seals.commit(head, put)


def checkpoint(control: DeltaControl) -> None:
    sealed_upper = control.seals.head().upper
    control.seals.read(sealed_upper - 1, sealed_upper)
    head = control.checkpoints.head()
    put = decide_checkpoint(head=head, checkpoint=checkpoint_of(head.upper))
    if isinstance(put, Put):
        control.checkpoints.commit(head, put)


def measure(folder: str, records: int, repeats: int) -> Iterator[tuple[str, float]]:
    control = DeltaControl(folder, "bench")
    fill(control.bindings, binding_of, records)
    fill(control.seals, seal_of, records)
    fill(control.checkpoints, checkpoint_of, records)
    for table in (control.history, control.checkpoints):
        age(Path(table.uri) / "_delta_log")
    dice = random.Random(records)

    def fresh() -> Ledger[BindingRecord]:
        return DeltaControl(folder, "bench").bindings

    def cold_read() -> None:
        ledger = fresh()
        ledger.head()
        number = dice.randint(1, records)
        ledger.read(number, number + 1)

    def cold_find() -> None:
        ledger = fresh()
        ledger.head()
        ledger.find(Owner(f"scheduled__{dice.randint(1, records):012}").identity)

    yield "open a table and read its upper", statistics.median(timed(repeats, lambda: fresh().head()))
    yield "read the upper again", statistics.median(timed(repeats, control.bindings.head))
    yield "open, read one old record", statistics.median(timed(repeats, cold_read))
    yield "open, find a run's binding", statistics.median(timed(repeats, cold_find))
    for name, work in (("mint", mint), ("seal", seal), ("checkpoint", checkpoint)):
        taken = timed(repeats, lambda work=work: work(control))  # type: ignore[misc]
        yield name, statistics.median(taken)
        yield f"{name}, mean with housekeeping", statistics.mean(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help=f"also with {SIZE_LARGE:,} records")
    parser.add_argument("--repeats", type=int, default=30)
    arguments = parser.parse_args()
    sizes = (*SIZES, SIZE_LARGE) if arguments.large else SIZES
    with tempfile.TemporaryDirectory() as scratch:
        warm = dict(measure(str(Path(scratch) / "warm"), BATCH, 3))  # imports and first calls
        results = [
            dict(measure(str(Path(scratch) / str(records)), records, arguments.repeats)) for records in sizes
        ]
    print("| ms | " + " | ".join(f"{size:,} records" for size in sizes) + " | ratio |")
    print("| --- |" + " ---: |" * (len(sizes) + 1))
    for name in warm:
        row = [result[name] for result in results]
        cells = " | ".join(f"{value:.1f}" for value in row)
        print(f"| {name} | {cells} | {row[-1] / row[0]:.1f} |")


if __name__ == "__main__":
    main()
