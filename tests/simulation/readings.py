"""Consumers and maintenance under the scheduler, all by the product's own code: leases with the threads that
renew them, the reader of a shard, truncation, compaction and the deletion of replaced files.

A consumer's effects are outside of the warehouse, and keyed by batch. Files that maintenance has replaced are
deleted at once, so that only leases protect a reader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from tests.simulation.checker import Checker, ensure
from tests.simulation.test_publishes import PublishedWorld
from tests.simulation.threads import Threads, simulated
from tests.simulation.world import SHARDS
from tests.support.memory.control import MemoryControl, MemoryLogView, MemoryWarehouse
from tests.support.memory.fold import Change
from tests.support.memory.ledger import Calm, Chaos, Crash, Fault
from tests.support.memory.plane import Files, digest_of
from tidemark.core import maintenance
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, Indeterminate, InvariantViolation, TidemarkError
from tidemark.core.ids import ShardId, Txn
from tidemark.core.lease import HolderToken
from tidemark.core.ledger import CommitOutcome, Head, Put
from tidemark.core.log import Limits
from tidemark.core.maintenance import Leftover, Replacement
from tidemark.core.reading import Frozen, effect_key, lease_name
from tidemark.core.seal import Part
from tidemark.pipeline import consume
from tidemark.pipeline.consume import Range, Reading, ShardReader
from tidemark.pipeline.context import Pipeline
from tidemark.pipeline.leases import Leases, expire_stale, take_hold
from tidemark.pipeline.maintain import announce, compact, reclaim, sweep, truncate
from tidemark.ports.control import LogListing

TTL_SECONDS = 1.0
LIVES, TRIES_MAX = 4, 20
FILES_MIN = 2
"""A compaction takes so few files."""
Consumer = tuple[str, ShardId]


class KeptFiles(dict[str, tuple[Change, ...]]):
    """Files, and outside of the world all that there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.ever: Files = {}

    def __setitem__(self, path: str, rows: tuple[Change, ...]) -> None:
        self.ever[path] = rows
        super().__setitem__(path, rows)


class MaintainedLog(MemoryLogView):
    """A log with the operations of maintenance."""

    def __init__(
        self, warehouse: MemoryWarehouse, chaos: Chaos | None, shard: ShardId, on_disk: Files
    ) -> None:
        super().__init__(warehouse, chaos, shard)
        self._on_disk = on_disk

    def replace(self, head: Head, put: Put[Replacement, Any]) -> CommitOutcome:
        return self.commit(head, put)  # type: ignore[arg-type]

    def leftovers(self) -> Sequence[Leftover]:
        found = [path for path in self._on_disk if path.startswith(f"{self._shard}/")]
        if self._chaos.meet("log.leftovers") is not Fault.NONE:
            raise Crash
        self.head()
        named = {file.part.path for file in self.files()}
        return [leftover_of(path) for path in found if path not in named]

    def delete(self, leftovers: Sequence[Leftover]) -> None:
        for leftover in leftovers:
            if self._chaos.meet("log.delete") is not Fault.NONE:
                raise Crash
            self._on_disk.pop(leftover.path, None)


def leftover_of(path: str) -> Leftover:
    _, of, by, _ = path.split("/")
    if of.isdigit():
        return Leftover(path, 1, Txn(int(of)), Txn(int(of)), by)
    first, last = of.split("-")[1:]
    number, token = by.split("-")
    return Leftover(path, 1, Txn(int(first)), Txn(int(last)), token, int(number))


class MaintainedControl(MemoryControl):
    """One process's view of a warehouse whose logs are maintained."""

    def __init__(self, warehouse: MemoryWarehouse, chaos: Chaos | None, on_disk: Files) -> None:
        super().__init__(warehouse, chaos)
        self._on_disk = on_disk
        self._maintained: dict[ShardId, MaintainedLog] = {}

    def log(self, shard: ShardId) -> MaintainedLog:
        if shard not in self._maintained:
            self._maintained[shard] = MaintainedLog(self._warehouse, self._chaos, shard, self._on_disk)
        return self._maintained[shard]


@dataclass(frozen=True)
class FilesOfLogs:
    """A reader's and a compaction's way to the files."""

    control: MaintainedControl
    on_disk: Files
    chaos: Chaos

    def listed(
        self, shard: ShardId, *, lower: Txn, upper: Txn | None = None, columns: Sequence[str] = ()
    ) -> LogListing:
        log = self.control.log(shard)
        log.head()  # It may be an old version; the second look is not.
        head = log.head()
        end = head.upper if upper is None else upper
        files = (file for file in log.files() if file.txn_last >= lower and file.txn_first < end)
        return LogListing(head.version, head.upper, tuple(files))

    def fault(self, shard: ShardId, part: Part, *, whole: bool) -> str:
        self._pause("files.fault")
        return "" if part.path in self.on_disk else "there is no such file"

    def merge(self, shard: ShardId, files: Sequence[Part], *, folder: str) -> tuple[Part, ...]:
        rows: list[Change] = []
        for part in files:
            self._pause("files.merge")
            if part.path not in self.on_disk:
                raise Determinate(f"{part.path} is not there")
            rows += self.on_disk[part.path]
        parts: list[Part] = []
        for number in range(min(2, len(rows))):
            self._pause("files.write")
            path, some = f"{shard}/{folder}/{number}", tuple(rows[number::2])
            self.on_disk[path] = some
            parts.append(Part(path, len(some), len(some)))
        return tuple(parts)

    def digests_by_txn(self, shard: ShardId, parts: Sequence[Part]) -> Mapping[Txn, Digest]:
        rows: defaultdict[Txn, list[Change]] = defaultdict(list)
        for part in parts:
            self._pause("files.read")
            if part.path not in self.on_disk:
                raise FileNotFoundError(part.path)
            for row in self.on_disk[part.path]:
                rows[row.txn].append(row)
        return {txn: digest_of(some) for txn, some in rows.items()}

    def _pause(self, call: str) -> None:
        match self.chaos.meet(call):
            case Fault.CRASH_BEFORE | Fault.CRASH_AFTER:
                raise Crash
            case Fault.LOSE_REQUEST:
                raise Determinate("the store does not answer")


class ReadWorld(PublishedWorld):
    """A world with consumers and maintenance."""

    new_files = KeptFiles

    def __init__(self, seed: int) -> None:
        self.sink: dict[str, int] = {}
        self.effects: defaultdict[Consumer, list[tuple[Range, dict[Txn, list[Change]]]]] = defaultdict(list)
        self.began: dict[Consumer, Txn] = {}
        self.wrong: list[str] = []
        self.read_merged = self.repeated = 0
        self.truncated = Txn(1)
        self.damaged: list[str] = []
        """Files that somebody removed by hand."""
        super().__init__(seed)
        self.threads = Threads(self.scheduler)

    def _spawn(self) -> None:
        super()._spawn()
        rng, spawn = self.rng, self.scheduler.spawn
        self.produce(rng.randint(0, 4))
        for number in range(rng.randint(1, 2)):
            consumer = (f"consumer{number}", rng.choice(SHARDS))
            # Sometimes two processes read for one consumer.
            for _ in range(rng.choice((1, 1, 2))):
                spawn(lambda consumer=consumer: self.consumer(consumer))  # type: ignore[misc]
        for _ in range(rng.randint(1, 2)):
            spawn(self.maintainer)
        if rng.random() < 0.1:
            spawn(self.hand)

    def control(self, chaos: Chaos | None) -> MaintainedControl:
        return MaintainedControl(self.warehouse, chaos, self.files)

    def pipeline(self, chaos: Chaos | None, generation: int = 0) -> Pipeline:
        return replace(super().pipeline(chaos, generation), control=self.control(chaos))

    # Consumers.

    def consumer(self, consumer: Consumer) -> None:
        for _ in range(LIVES):
            self.wait(100)
            try:
                self.consume(consumer, self.scheduler, looks=self.rng.randint(1, 3))
            except Crash:
                self.threads.kill()
            except (Determinate, Indeterminate):
                pass
            except Frozen as error:
                # It has delivered what is before; see the checker.
                self.wrong += [] if self.damaged else [f"{consumer}: {error}"]
            except InvariantViolation as error:
                self.wrong.append(f"{consumer}: {error}")

    def consume(self, consumer: Consumer, chaos: Chaos | None, *, looks: int) -> None:
        name, shard = consumer
        control = self.control(chaos)
        leases = Leases(control.leases, clock=self.scheduler.monotonic)
        holder = HolderToken(self.token())
        hold = take_hold(
            leases, lease_name(name, shard), holder, ttl_seconds=TTL_SECONDS, wait_seconds=8 * TTL_SECONDS
        )
        self.began.setdefault(consumer, hold.lease.txn)
        reading = Reading(name, shard, self.token(), limits=Limits(txns_max=self.rng.choice((1, 2, 100))))
        files = FilesOfLogs(control, self.files, chaos or Calm())
        reader = ShardReader(self.pipeline(chaos), files, hold, reading, name="p")
        try:
            for _ in range(looks):
                while (given := reader.next_range()) is not None:
                    self.take(consumer, reader, given)
                    reader.delivered(given)
                self.wait(40)
        except Crash:
            raise
        except BaseException:
            hold.release()
            raise
        hold.release()

    def take(self, consumer: Consumer, reader: ShardReader, given: Range) -> None:
        """The consumer's work with a batch: all of its rows are read, and its effect happens once."""
        rows: defaultdict[Txn, list[Change]] = defaultdict(list)
        for part in given.parts:
            self.scheduler.pause()
            if part.path not in self.files:
                reader.examine(given)  # The lease is lost, or it is maintenance that was wrong.
                raise InvariantViolation(f"{part.path} was removed under a reader")
            for row in self.files[part.path]:
                if given.lower <= row.txn < given.upper:
                    rows[row.txn].append(row)
        fault = self.scheduler.meet("consumer.effect")
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        key = effect_key("p", *consumer, epoch=given.epoch)
        self.repeated += given.txn <= self.sink.get(key, 0)
        if given.txn > self.sink.get(key, 0):
            self.sink[key] = given.txn
            self.effects[consumer].append((given, rows))
            self.read_merged += any("/_txns-" in part.path for part in given.parts)
        if fault is Fault.CRASH_AFTER:
            raise Crash

    def hand(self) -> None:
        """Somebody removes a file that a log names."""
        self.wait(800)
        log = self.warehouse.log(self.rng.choice(SHARDS))
        paths = [file.part.path for file in log.files(log.version)]
        if paths:
            self.damaged.append(self.rng.choice(paths))
            self.files.pop(self.damaged[0], None)

    # Maintenance.

    def maintainer(self) -> None:
        for _ in range(5):
            self.wait(60)
            with suppress(Crash, Determinate, Indeterminate):
                self.maintain(self.scheduler, behind=self.rng.randint(0, 3))

    def maintain(self, chaos: Chaos | None, *, behind: int) -> None:
        """In the order of `app.maintenance.maintain`."""
        pipeline = self.pipeline(chaos)
        control = pipeline.control
        sweep(pipeline)
        leases = Leases(control.leases, clock=self.scheduler.monotonic)
        if self.rng.random() < 0.5:
            expire_stale(leases, sleep=lambda seconds: self.threads.until(lambda: False, seconds=seconds))
        window = Txn(max(1, control.seals.head().upper - behind))
        announce(pipeline, leases, SHARDS, window=window)
        self.truncated = since = leases.since()
        for shard in SHARDS:
            log: Any = control.log(shard)
            truncate(log, shard, since)
            merger = FilesOfLogs(control, self.files, chaos or Calm())  # type: ignore[arg-type]
            compact(control, log, merger, shard, token=self.token())
            reclaim(control, log, shard, leases, now_ms=0, kept_ms=0)

    def wait(self, pauses_max: int) -> None:
        for _ in range(self.rng.randint(0, pauses_max)):
            self.scheduler.pause()

    # The end.

    def simulate_all(self) -> None:
        with (
            simulated(self.threads),
            patch.object(maintenance, "FILES_MIN", FILES_MIN),
            patch.object(consume, "FETCH_WORKERS", 2),
        ):
            self.simulate()
            self.scheduler.fault_rate = 0.0
            for shard in SHARDS if not self.damaged else ():
                self.publish(shard, None)
            self.scheduler.spawn(self.finish)
            self.scheduler.run()

    def finish(self) -> None:
        for consumer in self.began:
            for _ in range(TRIES_MAX):
                with suppress(Determinate):  # The clock still jumps, so that leases are lost.
                    with suppress(*([Frozen] if self.damaged else [])):
                        self.consume(consumer, None, looks=1)
                    break
        self.threads.until(lambda: False, seconds=3 * TTL_SECONDS)
        # A second one ends what the first could still not delete.
        for _ in range(2):
            self.maintain(None, behind=0)


def check(seed: int) -> ReadWorld:
    world = ReadWorld(seed)
    try:
        world.simulate_all()
        ReadChecker(world).check()
    except (AssertionError, TidemarkError) as wrong:
        raise AssertionError(f"readings, seed {seed}: {wrong!r}") from wrong
    return world


class ReadChecker:
    """Looks at a world after its end."""

    def __init__(self, world: ReadWorld) -> None:
        self.world = world
        self.files = world.files
        assert isinstance(self.files, KeptFiles)
        world.files = self.files.ever
        seals = world.warehouse.seals
        self.seals = list(seals.records(seals.version))

    def check(self) -> None:
        ensure(not self.world.wrong, "; ".join(self.world.wrong))
        whole = Checker(self.world)
        looks: list[Callable[[], object]] = [whole.check_bindings, whole.check_seals, whole.check_contents]
        looks += [whole.check_logs, self.check_consumers]
        looks += [self.world.check, self.check_files] if not self.world.damaged else []
        for look in looks:
            look()

    def sealed_rows(self, shard: ShardId) -> dict[Txn, list[Change]]:
        """The rows of each transaction that touches a shard, as they were sealed."""
        found = {seal.txn: seal.shards[shard].parts for seal in self.seals if shard in seal.shards}
        return {
            txn: in_order([row for part in parts for row in self.world.files[part.path]])
            for txn, parts in found.items()
        }

    def check_files(self) -> None:
        """Each log has the rows of all transactions that are kept; other files are gone."""
        since = Leases(MemoryControl(self.world.warehouse).leases).since()
        named: set[str] = set()
        for shard in SHARDS:
            log = self.world.warehouse.log(shard)
            paths = [file.part.path for file in log.files(log.version)]
            ensure(len(paths) == len(set(paths)), f"{shard} names a file twice")
            gone = [path for path in paths if path not in self.files]
            ensure(not gone, f"files of {shard} are gone: {gone}")
            rows = in_order([row for path in paths for row in self.files[path] if row.txn >= since])
            wanted = [row for txn, some in self.sealed_rows(shard).items() if txn >= since for row in some]
            ensure(rows == in_order(wanted), f"{shard} has {rows}, and should have {wanted}")
            named |= set(paths)
        ensure(set(self.files) == named, f"files are left over: {set(self.files) - named}")

    def check_consumers(self) -> None:
        """Each has had every transaction from its beginning on, once, in order, whole."""
        for consumer, began in self.world.began.items():
            last = began
            got: dict[Txn, list[Change]] = {}
            for given, rows in self.world.effects[consumer]:
                ensure(last <= given.lower, f"{consumer} had {given.lower} again")
                ensure(not given.skipped, f"{consumer} skipped {given.skipped}")
                last = given.upper
                got |= {txn: in_order(some) for txn, some in rows.items()}
            sealed = self.sealed_rows(consumer[1])
            # Where a file is lost, the consumer stops there, or has had it before.
            end = last if self.world.damaged else max(sealed, default=0) + 1
            wanted = {txn: rows for txn, rows in sealed.items() if began <= txn < end and rows}
            ensure(got == wanted, f"{consumer} had {got}, and should have had {wanted}")


def in_order(rows: Sequence[Change]) -> list[Change]:
    return sorted(rows, key=repr)
