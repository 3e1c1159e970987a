"""One simulated world: a source, a warehouse, and the actors that a seed puts into it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

from tests.simulation.scheduler import Scheduler
from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tests.support.memory.ledger import Chaos, Crash
from tests.support.memory.plane import Files, MemoryPlane
from tests.support.memory.source import MemorySource, MemorySourceView, SourceRecord
from tests.support.memory.world import AtOnce
from tests.support.sealing import announce_generation
from tidemark.core.binding import Binding, Configuration, Owner
from tidemark.core.errors import Determinate
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.replay import DataDiffers, Finding, InputGone
from tidemark.core.seal import Fenced, Staged, skip_of
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.context import Attempt, Pipeline, binding_at
from tidemark.pipeline.ingest import gather
from tidemark.pipeline.maintain import sweep
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.run import run
from tidemark.pipeline.upsert import put_seal, seal_judged
from tidemark.pipeline.validate import judge_gathered

SHARDS = (ShardId("a"), ShardId("b"))
CONFIGURATION = Configuration.of("{}")


@dataclass
class Evidence:
    """What the actors saw, for the checker: nothing here is read by the product."""

    staged: dict[WriterToken, list[Staged]] = field(default_factory=dict)
    differing: set[tuple[Txn, WriterToken]] = field(default_factory=set)
    findings: list[tuple[Finding, bool]] = field(default_factory=list)
    tampered: dict[tuple[str, int], SourceRecord] = field(default_factory=dict)
    acknowledged_at: list[tuple[object, int, int]] = field(default_factory=list)


class WitnessedPlane(MemoryPlane):
    """The memory plane, with a note of every attempt that was staged completely."""

    evidence: Evidence

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        staged = super().stage(binding, token)
        self.evidence.staged.setdefault(token, []).append(staged)
        return staged


class WitnessedSource(MemorySourceView):
    """The source's view, with a note of how far the seals were at each acknowledgement."""

    world: World

    def acknowledge(self, frontier) -> None:  # type: ignore[no-untyped-def]
        sealed = self.world.warehouse.seals
        self.world.evidence.acknowledged_at.append(
            (frontier, sealed.head(sealed.version).upper, self.world.logs_complete_upper())
        )
        super().acknowledge(frontier)


class World:
    """Everything that is durable, and the actors."""

    new_files: type[Files] = dict

    def __init__(self, seed: int, *, fault_rate: float | None = None) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed, fault_rate=0.0)
        rng = self.rng = self.scheduler.rng
        self.scheduler.fault_rate = rng.choice((0.0, 0.02, 0.06)) if fault_rate is None else fault_rate
        self.warehouse = MemoryWarehouse()
        self.source = MemorySource(records_max=rng.choice((1, 2, 100)))
        self.files: Files = self.new_files()
        self.evidence = Evidence()
        self.tokens = 0
        self.tampers = rng.random() < 0.15
        self.skips = rng.random() < 0.15
        self.scheduler.land_one = self.land_one
        self._spawn()

    def _spawn(self) -> None:
        spawn, rng = self.scheduler.spawn, self.rng
        self.produce(rng.randint(0, 2))
        spawn(lambda: self.producer(rng.randint(1, 3)))
        owners = [f"run{index}" for index in range(rng.randint(1, 3))]
        # Sometimes two processes work for one run: a zombie and its retry.
        for name in owners + ([owners[0]] if rng.random() < 0.4 else []):
            spawn(lambda name=name: self.writer(Owner(name)))  # type: ignore[misc]
        if rng.random() < 0.4:
            spawn(self.sweeper)
        if self.tampers:
            spawn(self.tamperer)
        if self.skips:
            spawn(self.skipper)

    # What a process has: its own views, its own memory.

    def pipeline(self, chaos: Chaos | None, generation: int = 0) -> Pipeline:
        plane = WitnessedPlane(self.source, self.files, chaos)
        plane.evidence = self.evidence
        source = WitnessedSource(self.source, chaos)
        source.world = self
        return Pipeline(MemoryControl(self.warehouse, chaos), source, plane, CONFIGURATION, generation)

    def token(self) -> WriterToken:
        self.tokens += 1
        return WriterToken(f"w{self.tokens}")

    def land_one(self) -> None:
        next(self.warehouse.land_delayed(), None)

    def logs_complete_upper(self) -> int:
        """The first sealed transaction that some log lacks, from the truth itself."""
        seals = self.warehouse.seals
        for seal in seals.records(seals.version):
            for shard in seal.shards:
                log = self.warehouse.log(shard)
                if log.head(log.version).upper <= seal.txn:
                    return seal.txn
        return seals.head(seals.version).upper

    # The actors.

    def produce(self, count: int) -> None:
        """Source transactions of one to three records over both tables."""
        rng = self.rng
        for _ in range(count):
            partition = rng.choice(("p0", "p1"))
            size = rng.randint(1, 3)
            records = [
                SourceRecord(
                    table=rng.choice(SHARDS),
                    key=(rng.randint(0, 2),),
                    value=None if rng.random() < 0.2 else rng.randint(0, 999),
                    ends=index == size - 1,
                )
                for index in range(size)
            ]
            self.source.append(partition, *records)

    def producer(self, count: int) -> None:
        for _ in range(count):
            self.scheduler.pause()
            self.produce(1)

    @property
    def in_charge(self) -> int:
        """The generation in charge."""
        history = self.warehouse.history
        return history.head(history.version).generation

    def writer(self, owner: Owner) -> None:
        generation = 1 if self.rng.random() < 0.1 else 0
        cleared = False
        steps = self.rng.random() < 0.5
        background = AtOnce() if self.rng.random() < 0.5 else None
        for _ in range(4):
            token = self.token()
            pipeline = self.pipeline(self.scheduler, generation)
            try:
                if generation:
                    announce_generation(pipeline)
                attempt = Attempt(owner, token, cleared, int(cleared))
                findings = (
                    self.stepwise(attempt, generation)
                    if steps
                    else run(pipeline, attempt, background=background).findings
                )
            except DataDiffers as error:
                self.evidence.differing.add((error.finding.txn, token))
                return
            except (Fenced, InputGone):
                return
            except (Crash, Determinate):
                continue
            self.evidence.findings += [(finding, bool(self.evidence.tampered)) for finding in findings]
            if cleared or self.rng.random() < 0.6:
                return
            cleared = True

    def stepwise(self, attempt: Attempt, generation: int) -> tuple[Finding, ...]:
        """A run whose steps are processes of their own, each with a token of its own, as tasks are."""

        def next_step() -> tuple[Pipeline, Attempt]:
            return self.pipeline(self.scheduler, generation), replace(attempt, token=self.token())

        reclock(*next_step())
        gather(*next_step())
        judged = judge_gathered(*next_step())
        seal_judged(*next_step())
        checkpoint(next_step()[0])
        return tuple(one.gated.finding for one in judged if one.replayed)

    def sweeper(self) -> None:
        for _ in range(2):
            with suppress(Crash):
                sweep(self.pipeline(self.scheduler))

    def tamperer(self) -> None:
        """Change one bound record in place, in a way that the source itself does not notice: also between two
        attempts that read it."""
        for _ in range(self.rng.randint(0, 150)):
            self.scheduler.pause()
        for _ in range(20):
            self.scheduler.pause()
            bindings = self.warehouse.bindings
            bound = bindings.records(bindings.version)
            positions = [position for binding in bound for position, _ in self.source.records(binding)]
            if not positions:
                continue
            position = self.rng.choice(positions)
            records = self.source.partitions[position.partition]
            original = records[position.offset]
            self.evidence.tampered[(position.partition, position.offset)] = original
            records[position.offset] = SourceRecord(
                original.table, original.key, "tampered", original.sequence, original.ends
            )
            return

    def skipper(self) -> None:
        """Someone skips an open transaction while writers work on it."""
        for _ in range(30):
            self.scheduler.pause()
            pipeline = self.pipeline(self.scheduler)
            try:
                upper = pipeline.control.seals.head().upper
                if upper < pipeline.control.bindings.head().upper:
                    bound, token = binding_at(pipeline, upper).link, self.token()
                    seal = skip_of(
                        upper, token=token, generation=self.in_charge, reason="asked for", binding=bound
                    )
                    put_seal(pipeline, seal)
                    return
            except (Crash, Determinate, Fenced):
                pass

    # The end: the faults stop, what is under way lands, and one more run must finish everything.

    def simulate(self) -> None:
        self.scheduler.run()
        for _ in self.warehouse.land_delayed():
            pass
        last = self.pipeline(None, generation=self.in_charge)
        for name in ("last", "very-last"):
            try:
                run(last, Attempt(Owner(name), self.token()))
            except DataDiffers as error:
                self.evidence.differing.add((error.finding.txn, WriterToken(name)))
        sweep(last)
