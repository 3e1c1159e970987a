"""Killed at every durable step of start, catch-up, promotion, rollback and abort, on real control tables,
logs, parts and states: one generation in charge, tables as recomputed from the files, no reader between two.

Each scene is a pipeline just before a verb. A copy of it dies before the verb's n-th step, while a reader
looks again and again; then another process repeats the verb, or the pipeline runs first, or the candidate is
aborted instead. `make test` takes a few steps of each scene, `make test-all` takes them all.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import cast

import pytest

from tests.crash.generation_recompute import (
    HOME,
    LOG,
    Rows,
    Told,
    check_candidate_gone,
    check_parts,
    check_tables,
    history_of,
)
from tests.crash.generations import TRACE, VERBS, deploy, deployment_at, land, run
from tests.support.copies import at_home
from tests.support.deployed import attempt
from tests.support.light import rows_in
from tests.support.light_generations import SHARDS, RuleStatePlane, fresh
from tests.support.steps import BEFORE
from tests.support.tables import Row, rows_of
from tests.support.workers import KILLED, Workers
from tidemark.app.consume import leases_of
from tidemark.app.deployment import new_token
from tidemark.app.maintenance import maintain, terms_of
from tidemark.core.errors import Determinate
from tidemark.core.ids import ShardId, Txn
from tidemark.core.lease import HolderToken
from tidemark.core.reading import lease_name
from tidemark.core.replay import Verdict
from tidemark.delta.parts import DeltaParts
from tidemark.pipeline.consume import Reading, ShardReader
from tidemark.pipeline.leases import take_hold
from tidemark.pipeline.listing import readable_upper
from tidemark.pipeline.maintain import sweep
from tidemark.pipeline.publish import published_as_of, published_together, verify_state
from tidemark.pipeline.run import replay

pytestmark = pytest.mark.slow

CONSUMED = ShardId("a")
Finish = Callable[[Path, str, str], None]


# The scenes.


@dataclass(frozen=True)
class Scene:
    """A verb on a prepared pipeline, and the generation in charge after it. The candidate is there after it,
    unless it `ends` it. The short form takes one of `every` so many steps."""

    name: str
    verb: str
    prepare: Callable[[Path], None]
    every: int
    generation: int = 0
    ends: bool = False

    def check_end(self, told: Told, finish: Finish) -> None:
        if finish is not abort_instead:
            assert (told.generation, told.candidate is None) == (self.generation, self.ends)
            return
        assert told.candidate is None
        before = self.generation - (self.verb == "promote")
        assert told.generation in (before, self.generation)


def begun(root: Path) -> None:
    deploy(root, 0)
    for number in range(3):
        land(root)
        run(root, f"run-{number}")
        if number == 1:
            consumed(root)
    deploy(root, 1)


def started(root: Path) -> None:
    begun(root)
    VERBS["start"](root, "start")


def followed(root: Path) -> None:
    """With a transaction that the candidate lacks."""
    started(root)
    VERBS["follow"](root, "follow")
    land(root)
    run(root, "run-3")


def promoted(root: Path) -> None:
    followed(root)
    VERBS["promote"](root, "promote")
    land(root)
    run(root, "run-4")


def rolled_back(root: Path) -> None:
    promoted(root)
    VERBS["rollback"](root, "rollback")


def third(root: Path) -> None:
    promoted(root)
    VERBS["rollback"](root, "rollback")
    VERBS["promote"](root, "back")
    deploy(root, 3)
    VERBS["start"](root, "third")
    VERBS["follow"](root, "third")


def undecided(root: Path) -> None:
    """A promotion that is bound, and whose process is no more; nobody waits for it."""
    followed(root)
    with Workers("tests.crash.generations") as workers:
        steps = steps_of(workers, root, "promote")
        (bind,) = [number for number, name in enumerate(steps, 1) if name.startswith("bind")][-1:]
        kill(workers, root, "promote", bind + 1)
    land(root)


# Dying.


def kill(workers: Workers, root: Path, verb: str, number: int) -> int:
    job = {"root": str(root), "verb": verb, "owner": f"own-{verb}", "when": BEFORE, "number": number}
    return workers.run(**job)


def steps_of(workers: Workers, root: Path, verb: str) -> list[str]:
    """The durable steps of a verb, on a copy."""
    with copied(root, root.with_name(f"{root.name}-calm")) as calm:
        assert kill(workers, calm, verb, 0) == 0
        return (calm / TRACE).read_text().splitlines()


@contextmanager
def copied(root: Path, copy: Path) -> Iterator[Path]:
    shutil.copytree(root, copy)
    at_home(copy)
    (copy / TRACE).unlink(missing_ok=True)
    yield copy
    shutil.rmtree(copy)


# Finishing: each by another process than the one that has died.


def again(root: Path, verb: str, owner: str) -> None:
    """The same verb: a retry of the same run, or another one."""
    VERBS[verb](root, owner)


def run_first(root: Path, verb: str, owner: str) -> None:
    """The pipeline does not wait for whoever replaces its settings."""
    with suppress(Determinate):
        run(root, "between")
    VERBS[verb](root, f"other-{owner}")


def abort_instead(root: Path, verb: str, owner: str) -> None:
    """The candidate is not wanted any more, whatever has become of it."""
    VERBS["abort"](root, owner)


FINISHES: tuple[Finish, ...] = (again, run_first, abort_instead)


# Reading.


@dataclass(frozen=True)
class Batch:
    """What a consumer was given: the transactions in [lower, upper), and the rows of their log."""

    lower: int
    upper: int
    rows: tuple[Row, ...]


def consumed(root: Path) -> list[Batch]:
    """What there is for a consumer, whatever process read for it before."""
    deployment, token, found = deployment_at(root), new_token(), []
    name = lease_name("copy", CONSUMED)
    hold = take_hold(leases_of(deployment), name, HolderToken(token), start=None, wait_seconds=60.0)
    try:
        reading = Reading("copy", CONSUMED, token, (), ("id",))
        files = DeltaParts(deployment.root)
        reader = ShardReader(deployment.pipeline, files, hold, reading, name=deployment.config.name)
        while (given := reader.next_range()) is not None:
            log = Path(deployment.shard_uri(CONSUMED)) / "log"
            rows = rows_in([log / part.path for part in given.parts])
            found.append(
                Batch(given.lower, given.upper, tuple(tuple(row[name] for name in LOG) for row in rows))
            )
            reader.delivered(given)
    finally:
        hold.release()
    return found


@dataclass
class Watcher:
    """A reader that looks again and again at everything, in a thread of its own."""

    root: Path
    together: list[tuple[str, int, dict[str, Rows]]] = field(default_factory=list)
    by_path: list[tuple[str, Rows]] = field(default_factory=list)
    logs: list[tuple[str, list[Row]]] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)

    def look(self) -> None:
        """Fresh and published rows at one transaction; states and logs by their paths; the changes since."""
        deployment = deployment_at(self.root)
        control, state = deployment.control, cast("RuleStatePlane", deployment.state())
        txn = Txn(min(readable_upper(control, shard) for shard in SHARDS) - 1)
        self.together.append(("fresh", txn, {one: fresh(deployment, one, as_of=txn) for one in SHARDS}))
        txn = published_together(control, SHARDS, as_of=txn)
        published = {shard: published_as_of(control.publishes(shard), as_of=txn) for shard in SHARDS}
        rows = {shard: state.at(shard, one.version) for shard, one in published.items() if one is not None}
        self.together.append(("state", txn, rows))
        for shard in SHARDS:
            self.by_path.append((shard, dict(rows_of(self.root / HOME / shard / "state", ("id", "value")))))
            self.logs.append((shard, rows_of(self.root / HOME / shard / "log", LOG)))
        self.batches += consumed(self.root)

    @contextmanager
    def watching(self) -> Iterator[None]:
        stop = threading.Event()

        def watch() -> None:
            try:
                while not stop.is_set():
                    self.look()
            except BaseException as error:
                self.failed.append(error)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def check(self, told: Told) -> None:
        """Everything that was seen is of one transaction, and no transaction was seen in part."""
        assert self.failed == []
        for view, txn, rows in self.together:
            assert rows == told.tables[txn], f"{view} as of {txn}"
        for shard, found in self.by_path:
            assert told.has_been(shard, found), f"the state of {shard} was {found}"
        for shard, log in self.logs:
            txns = {row[2] for row in log}
            assert set(log) == {row for txn in txns for row in told.logs[txn][shard]}, f"the log of {shard}"
            assert len(log) == len(set(log))
            touched = {txn for txn in told.logs if txn <= max(txns) and told.logs[txn][shard]}
            assert txns == touched, f"the log of {shard} had {txns}"
        self._check_batches(told)

    def _check_batches(self, told: Told) -> None:
        upper = self.batches[0].lower if self.batches else told.last + 1
        table = dict(told.tables[upper - 1][CONSUMED])
        for batch in self.batches:
            # Transactions without rows of the shard come in no batch.
            assert table == told.tables[batch.lower - 1][CONSUMED]
            for key, value, _, op in sorted(batch.rows, key=lambda row: row[2]):
                table.pop(key, None)
                if op == "U":
                    table[key] = value
            upper = batch.upper
            assert table == told.tables[upper - 1][CONSUMED], f"the consumer has {table} at {upper - 1}"
        assert table == told.tables[told.last][CONSUMED], "the consumer has not had everything"


# What must be true.


def check(root: Path, watcher: Watcher, *, proves: bool) -> Told:
    """After another process has finished, and a last run."""
    land(root)
    run(root, "last")
    sweep(deployment_at(root).pipeline)
    watcher.look()
    told = history_of(root)
    deployment = deployment_at(root)
    assert deployment.control.seals.head().generation == told.generation
    check_tables(root, told)
    check_parts(root, told)
    watcher.check(told)
    for shard in SHARDS:
        assert verify_state(deployment.control, deployment.state(), shard) is not None
    if proves:
        proven = replay(deployment.pipeline, attempt(), txn_from=Txn(1), txn_to=Txn(told.last))
        assert {one.verdict for one in proven} == {Verdict.IDENTICAL}
    maintain(deployment, new_token(), terms_of(deployment), watch=False)
    check_candidate_gone(root, told)
    return told


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers("tests.crash.generations") as opened:
        yield opened


def killed_at(workers: Workers, scene: Scene, root: Path, number: int, finish: Finish) -> bool:
    """A copy of a scene that dies before its n-th step, finished and compared; returns whether it died. It
    has fewer steps where the watcher has done housekeeping that was due."""
    with copied(root, root.with_name(f"{number}-{finish.__name__}")) as copy:
        watcher = Watcher(copy)
        with watcher.watching():
            status = kill(workers, copy, scene.verb, number)
            assert status in (KILLED, 0)
            assert status == KILLED or len((copy / TRACE).read_text().splitlines()) < number
            finish(copy, scene.verb, f"own-{scene.verb}")
        scene.check_end(check(copy, watcher, proves=number % 5 == 0), finish)
    return status == KILLED


def prepared(workers: Workers, scene: Scene, folder: Path) -> tuple[Path, int]:
    """A scene, and how many durable steps its verb takes."""
    root = folder / "root"
    root.mkdir()
    scene.prepare(root)
    return root, len(steps_of(workers, root, scene.verb))


SCENES = (
    Scene("start", "start", begun, 2),
    Scene("catch-up", "follow", started, 30),
    Scene("promotion", "promote", followed, 9, 1, ends=True),
    Scene("given-up", "run", undecided, 17),
    Scene("rollback", "rollback", promoted, 2, 1),
    Scene("promotion-of-rollback", "promote", rolled_back, 60, 2, ends=True),
    Scene("abort", "abort", third, 2, 2, ends=True),
)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_g24_a_replacement_that_is_killed_at_any_step_is_finished_and_no_reader_sees_a_half(
    scene: Scene, workers: Workers, tmp_path: Path
) -> None:
    root, steps = prepared(workers, scene, tmp_path)
    chosen = range(1, steps + 1, scene.every)
    ways = zip(chosen, cycle(FINISHES), strict=False)
    assert sum(killed_at(workers, scene, root, number, finish) for number, finish in ways) >= 2


STEPS_MAX = 60


@pytest.mark.sweep
@pytest.mark.parametrize("finish", FINISHES, ids=lambda finish: finish.__name__)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_g24_killed_at_every_step(scene: Scene, finish: Finish, workers: Workers, tmp_path: Path) -> None:
    """Of a verb with many steps, each finish takes its third."""
    root, steps = prepared(workers, scene, tmp_path)
    chosen = range(1, steps + 1)
    if steps > STEPS_MAX:
        chosen = chosen[FINISHES.index(finish) :: len(FINISHES)]
    assert sum(killed_at(workers, scene, root, number, finish) for number in chosen) >= len(chosen) - 3
