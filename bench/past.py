"""What a run, `status` and a consumer's start cost after much has happened: `python -m bench.past`.

Made-up ledgers on a local disk, no Spark. A pipeline is filled as an old one is: each transaction has bound
one file and touched two of five shards; a consumer has read all of it. The other shards have one old
transaction each. Then three pieces of work are done, each by a handle that has just been opened:

- a run: bind one new file, seal, append to the logs, checkpoint, look for due publishes;
- `status`, without the source;
- a consumer's start: take the lease, list what there is.

One size grows at a time, at last both. The cost is the processor time of this process, and what it asks of
the tables' files: both are the same on a busy machine. With `--report`, `docs/past.jsonl`, the table in
`docs/scale.md` and its picture are made from what is measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.made import NAME, STANDS_FOR, Made, Pattern, Texts, fill, unsynced
from tidemark.app.consume import leases_of
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.publish import publish_due
from tidemark.app.status import status_of
from tidemark.app.tasks import no_session, open_pipeline, reclock
from tidemark.config.load import load_pipeline
from tidemark.core.binding import Binding, Configuration, Owner
from tidemark.core.checkpoint import Checkpoint, TableMark
from tidemark.core.checksum import Digest
from tidemark.core.history import BOUND, HISTORY_MARKS, SEALED
from tidemark.core.ids import Frontier, ShardId, Txn, WriterToken
from tidemark.core.lease import LEASE_MARKS, HolderToken, Lease, Tenure
from tidemark.core.ledger import LINK, UPPER, Committed, Event, JournalEntry, Put
from tidemark.core.log import LogEntry
from tidemark.core.publish import Cut, Published, StateCommit
from tidemark.core.seal import Decision, Evidence, Part, Seal, ShardParts, Staged, touch_mark
from tidemark.delta.checkpoint import make_checkpoint
from tidemark.delta.ledger import DeltaLedger
from tidemark.delta.log import parts_folder
from tidemark.delta.parts import DeltaParts
from tidemark.delta.records import (
    attempts_codec,
    checkpoints_codec,
    history_codec,
    journal_codec,
    leases_codec,
    publishes_codec,
)
from tidemark.delta.store import Store
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.context import Attempt, binding_at
from tidemark.pipeline.leases import take_hold
from tidemark.pipeline.listing import listing
from tidemark.pipeline.upsert import bring_up_logs, put_seal
from tidemark.sources.files.bound_files import BoundFile, Manifest

TOUCHED = 5
DIGEST = Digest.of(range(80))
DETAIL = {"verdict": "identical", "finding": "", "compared": "2", "rows": "80", "expectations": "4"}
CONSUMER, HOLDER = "billing/t00000", HolderToken("old")
ROUNDS = 5
WORKS = ("a run", "status", "a consumer's start")
DOCS = Path(__file__).parent.parent / "docs"
RESULTS, PAGE, PICTURE = DOCS / "past.jsonl", DOCS / "scale.md", DOCS / "images" / "past.svg"
BEGIN, END = "<!-- bench.past -->", "<!-- end -->"
STYLE = "text{font:12px sans-serif;fill:#59636e}.t{font-weight:600}.o{fill:#2f81f7}"


def token_of(txn: int) -> WriterToken:
    return WriterToken(f"w{txn}")


def parts_of(txn: int, *shards: int) -> dict[ShardId, ShardParts]:
    path = f"{parts_folder(Txn(txn), token_of(txn))}/part-00000.parquet"
    part = Part(path, 80, 9999, json.dumps({"numRecords": 80}))
    return {ShardId(f"t{shard:05}"): ShardParts((part,), DIGEST) for shard in shards}


def touched_by(txn: int) -> dict[ShardId, ShardParts]:
    return parts_of(txn, txn % TOUCHED, (txn + 1) % TOUCHED)


def run_of(txn: int) -> str:
    """The name of a run by hand, which says nothing of its time."""
    return f"manual__{hashlib.md5(str(txn).encode()).hexdigest()[:16]}"


def owner_of(txn: int) -> Owner:
    return Owner(run_of(txn))


def commit(ledger: Any, records: list[Any], **marks: int) -> None:
    if not isinstance(ledger.commit(ledger.head(), Put(marks, records, None)), Committed):
        raise SystemExit("somebody else is writing to the bench's table")


def filled(folder: Path, *, txns: int, shards: int) -> tuple[Path, str]:
    """The pipeline's file, and its folder in the warehouse."""
    (folder / "landing").mkdir(parents=True)
    tables = "".join(
        f"  - {{name: t{at:05}, schema: id BIGINT, keys: [id], publish: manual,"
        f" route: {{column: t, equals: '{at}'}}}}\n"
        for at in range(shards)
    )
    file = folder / "p.yaml"
    source = "{type: files, path: landing, format: json, settle_seconds: 0}"
    file.write_text(f"name: p\nsource: {source}\nwarehouse: warehouse\nshards:\n{tables}")
    deployment = open_pipeline(file, None)
    control, settings = deployment.control, deployment.unchecked.configuration

    past = Past(settings)
    control.settings.keep(settings)
    commit(control.history, [])  # Creates the table, with its address.
    history = control.ledger("history", Texts(["binding", "seal"]), marks=HISTORY_MARKS)
    fill(history, past.history(txns), 2 * txns, {BOUND: txns + 1, SEALED: txns + 1})
    for name, pattern in (("attempts", past.evidence), ("journal", past.judged)):
        made = control.ledger(name, Texts([pattern.kind]))
        fill(made, map(pattern.made, range(1, txns + 1)), txns, {UPPER: txns + 1})
    checkpoints = control.ledger("checkpoints", Texts([past.checkpoint.kind]))
    fill(checkpoints, map(past.checkpoint.made, range(1, txns)), txns - 1, {UPPER: txns})
    last = {shard: txn for txn in range(txns - TOUCHED, txns + 1) for shard in touched_by(txn)}
    idle = {shard: 1 for shard in deployment.shards if shard not in last}
    with unsynced():
        for shard, txn in [*last.items(), *idle.items()][: TOUCHED + 1]:
            (parts,) = parts_of(txn, int(shard[1:])).values()
            entry = LogEntry(Txn(txn), token_of(txn), parts.parts)
            commit(control.log(shard), [entry], **{UPPER: txn + 1, LINK: txn})
            # The consumer's shard was published after every transaction.
            first = 1 if shard == CONSUMER.split("/")[1] else txn
            made = DeltaLedger(control.publishes(shard).uri, Texts([past.published.kind]))
            records = (past.published_at(number, first + number - 1) for number in count(1))
            fill(made, records, txn - first + 1, {UPPER: txn - first + 2})
    template, *others = idle
    for shard in others:
        # Files never change, so all idle shards share them.
        shutil.copytree(
            f"{control.root}/{template}", f"{control.root}/{shard}", copy_function=os.link, dirs_exist_ok=True
        )
    commit(control.seals, [], **{UPPER: txns + 1, **{touch_mark(s): t for s, t in (last | idle).items()}})
    newest = Checkpoint(Txn(txns), {shard: TableMark(Txn(txn + 1)) for shard, txn in last.items()}, link=txns)
    commit(control.checkpoints, [newest], **{UPPER: txns + 1})
    cuts = [Cut(number, Txn(1), shard, 1, 1) for number, shard in enumerate(idle, 1)]
    commit(control.cuts, cuts, **{UPPER: len(cuts) + 1})
    changed = [Cut(len(cuts) + at, Txn(txns), ShardId(f"t{at:05}"), txns, txns) for at in range(1, TOUCHED)]
    commit(control.cuts, changed, **{UPPER: len(cuts) + TOUCHED})
    held = control.ledger("leases", Texts([past.lease.kind]), marks=LEASE_MARKS)
    fill(held, map(past.lease.made, range(1, txns)), txns - 1, {UPPER: txns})
    leases = leases_of(deployment)
    tenure = leases.take(CONSUMER, HOLDER, start=None)
    if not isinstance(tenure, Tenure):
        raise SystemExit("the consumer's lease is held")
    leases.release(leases.renew(tenure, txn=Txn(txns), link=txns - 1).lease)
    for table in (control.history, control.attempts, control.journal, control.checkpoints, control.leases):
        aged(table.uri)
    return file, control.root


def aged(uri: str) -> None:
    """Let the table be a day old, with the checkpoint and the log that it would have by then."""
    yesterday = time.time() - 86_400
    for path in (Path(uri) / "_delta_log").iterdir():
        os.utime(path, (yesterday, yesterday))
    make_checkpoint(Store(uri, {}), {}, now_ms=int(time.time() * 1000))


class Past:
    """How each record of the past is made."""

    def __init__(self, settings: Configuration) -> None:
        txn, owner = Txn(STANDS_FOR), Owner(NAME)
        ends = [Frontier.of({"files": end}) for end in (txn - 1, txn)]
        manifest = Manifest("json", (BoundFile(txn, f"{txn}.json", 9, "h", 1),)).to_json()
        bound = Binding(txn, *ends, owner, settings, manifest)

        def token(number: int) -> str:
            return token_of(number)

        self.binding = Pattern.of(history_codec(), bound, lambda n: owner_of(n).identity, run_of)
        self.seals: list[Pattern] = []
        for at in range(TOUCHED):
            shards = parts_of(txn, at, (at + 1) % TOUCHED)
            sealed = Seal(txn, token_of(txn), 0, Decision.COMMITTED, DIGEST, shards, "bench", link=txn)
            self.seals.append(Pattern.of(history_codec(), sealed, token))
        staged = Staged(txn, token_of(txn), DIGEST, parts_of(txn, 0, 1), "bench")
        evidence = Evidence(txn, txn, owner, 0, token_of(txn), staged)
        self.evidence = Pattern.of(attempts_codec(), evidence, lambda n: owner_of(n).identity, run_of)
        judged = JournalEntry(number=txn, txn=txn, event=Event.JUDGED, token=token_of(txn), detail=DETAIL)
        self.judged = Pattern.of(journal_codec(), judged, str)
        self.checkpoint = Pattern.of(checkpoints_codec(), Checkpoint(txn, {}, link=txn), lambda n: "")
        lease = Lease(CONSUMER, HOLDER, txn, txn, 60.0, link=txn - 1)
        self.lease = Pattern.of(leases_codec(), lease, lambda n: CONSUMER)
        publish = Published(txn - 1, txn - 1, StateCommit(txn, token_of(txn), DIGEST, link=txn))
        self.published = Pattern.of(publishes_codec(), publish, token)

    def history(self, txns: int) -> Iterator[Made]:
        """A binding and its seal, one after the other."""
        for txn in range(1, txns + 1):
            yield self.binding.made(txn)
            yield self.seals[txn % TOUCHED].made(txn)

    def published_at(self, number: int, txn: int) -> Made:
        """The publish with a number, of a transaction."""
        body = self.published.text.replace(str(STANDS_FOR), str(txn))
        return Made(
            number, self.published.kind, token_of(txn), body.replace(str(STANDS_FOR - 1), str(number))
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a piece of work took: processor time, files opened, kilobytes read, names listed, commits."""

    cpu_ms: float
    files: int
    kilobytes: float
    listed: int


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts what is asked of the tables' files."""
    found: Counter[str] = Counter()
    get, names = Store.get, Store.names_after

    def count_get(store: Store, path: str) -> bytes:
        found["files"] += 1
        data = get(store, path)
        found["bytes"] += len(data)
        return data

    def count_names(store: Store, folder: str, name: str) -> list[str]:
        listed = names(store, folder, name)
        found["listed"] += len(names(store, folder, ""))
        return listed

    with ExitStack() as stack:
        stack.enter_context(patch.object(Store, "get", count_get))
        stack.enter_context(patch.object(Store, "names_after", count_names))
        yield found


def cost_of(prepare: Callable[[], Any], work: Callable[[Any], object]) -> Cost:
    """The medians of some rounds."""
    found: list[Cost] = []
    for _ in range(ROUNDS):
        given = prepare()
        with counted() as asked:
            began = time.process_time()
            work(given)
            taken = (time.process_time() - began) * 1000
        found.append(Cost(taken, asked["files"], asked["bytes"] / 1000, asked["listed"]))
    columns = zip(*(asdict(one).values() for one in found), strict=True)
    return Cost(*(statistics.median(column) for column in columns))


@dataclass(frozen=True, slots=True)
class Work:
    """A piece of work, and what it is given."""

    prepare: Callable[[], Any]
    work: Callable[[Any], object]

    def warm(self) -> None:
        self.work(self.prepare())


def works(file: Path) -> dict[str, Work]:
    """Each piece of work on a filled pipeline."""
    config = load_pipeline(file, None)
    landing = file.parent / "landing"

    def opened() -> Deployment:
        return Deployment(config, no_session)

    def with_input() -> Deployment:
        (landing / f"new-{time.time_ns()}.json").write_text('{"id": 1}\n')
        return opened()

    def run(deployment: Deployment) -> None:
        owner = Owner(f"manual__{random.getrandbits(64):016x}")
        upper = deployment.control.seals.head().upper
        attempt = Attempt(owner, token_of(upper))
        reclock(deployment, attempt)
        pipeline = deployment.pipeline
        txn = pipeline.control.seals.head().upper
        parts = parts_of(txn, *range(TOUCHED))
        bound = binding_at(pipeline, txn).link
        made = Seal(txn, attempt.token, 0, Decision.COMMITTED, DIGEST, parts, "bench", binding=bound)
        put_seal(pipeline, made)
        bring_up_logs(pipeline)
        checkpoint(pipeline)
        publish_due(deployment, attempt)

    def consume(deployment: Deployment) -> None:
        hold = take_hold(leases_of(deployment), CONSUMER, HolderToken(new_token()))
        shard = ShardId(CONSUMER.split("/")[1])
        files = DeltaParts(deployment.root)
        listing(deployment.control, files, shard, lower=hold.lease.txn, columns=())
        hold.release()

    def status(deployment: Deployment) -> None:
        status_of(deployment, now_seconds=time.time(), asks_source=False)

    return {
        "a run": Work(with_input, run),
        "status": Work(opened, status),
        "a consumer's start": Work(opened, consume),
    }


def costs(file: Path) -> dict[str, Cost]:
    """What each piece of work costs."""
    found = works(file)
    found["a run"].warm()  # This machine's indexes are there afterwards.
    return {what: cost_of(one.prepare, one.work) for what, one in found.items()}


def table(found: list[dict[str, Any]]) -> str:
    """Each measurement, and how many times that of the smallest pipeline it is."""
    lines = [
        "| what | transactions, files | shards | CPU, ms | files opened | KB | names listed | times |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in sorted(found, key=lambda one: (WORKS.index(one["what"]), one["shards"], one["txns"])):
        numbers = (one["txns"], one["shards"], one["cpu_ms"], one["files"], one["kilobytes"], one["listed"])
        cells = " | ".join(f"{number:,.0f}" for number in numbers)
        lines.append(f"| {one['what']} | {cells} | {times(one, found):.1f} |")
    return "\n".join(lines)


def times(one: dict[str, Any], found: list[dict[str, Any]]) -> float:
    same = [other for other in found if other["what"] == one["what"]]
    least = min(same, key=lambda other: (other["txns"], other["shards"]))
    return float(one["cpu_ms"] / least["cpu_ms"])


def picture(found: list[dict[str, Any]]) -> str:
    """Bars of how many times the smallest pipeline's processor time each work takes."""
    width, label, bar, gap, y = 760, 250, 14, 6, 20
    scale = (width - label - 70) / max(times(one, found) for one in found)
    parts: list[str] = []
    for what in WORKS:
        parts.append(f'<text class="t" x="8" y="{y}">{what}: times the smallest</text>')
        y += 8
        for one in (one for one in found if one["what"] == what):
            name, length = f"{one['txns']:,} transactions, {one['shards']:,} shards", times(one, found)
            parts += [
                f'<text x="{label - 8}" y="{y + 11}" text-anchor="end">{name}</text>',
                f'<rect class="o" x="{label}" y="{y}" width="{length * scale:.1f}" height="{bar}" rx="2"/>',
                f'<text x="{label + length * scale + 6:.1f}" y="{y + 11}">{length:.1f}</text>',
            ]
            y += bar + gap
        y += 24
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" role="img">'
    return "\n".join(
        [head, "<title>Cost after a long past</title>", f"<style>{STYLE}</style>", *parts, "</svg>\n"]
    )


def with_table(page: str, found: list[dict[str, Any]]) -> str:
    """The page, with the table in its place."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table(found)}\n{END}{rest.split(END)[1]}"


def write_report(found: list[dict[str, Any]]) -> None:
    RESULTS.write_text("".join(json.dumps(one) + "\n" for one in found))
    PAGE.write_text(with_table(PAGE.read_text(), found))
    PICTURE.write_text(picture(found))


def measured() -> list[dict[str, Any]]:
    """The results on record."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--txns", type=int, nargs="+", default=[1_000, 30_000, 1_000_000])
    parser.add_argument("--shards", type=int, nargs="+", default=[10, 1_000, 10_000])
    parser.add_argument("--report", action="store_true", help="write docs/past.jsonl, the table, the picture")
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    sizes = [(txns, given.shards[0]) for txns in given.txns]
    sizes += [(given.txns[0], shards) for shards in given.shards[1:]]
    sizes += [(given.txns[-1], given.shards[-1])] if len(given.txns) > 1 and len(given.shards) > 1 else []
    for txns, shards in sizes:
        with tempfile.TemporaryDirectory() as scratch:
            file, _ = filled(Path(scratch) / "p", txns=txns, shards=shards)
            for what, cost in costs(file).items():
                found.append({"what": what, "txns": txns, "shards": shards, **asdict(cost)})
                print(json.dumps(found[-1]), flush=True)
    if given.report:
        write_report(found)


if __name__ == "__main__":
    main()
