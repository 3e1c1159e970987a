"""A simulated world in which generations replace each other: candidates, followers, promoters, aborts and
processes of older generations, interleaved with writers, crashes and lost replies.

`check` recomputes the tables at every transaction, from the source, the history's order and the rules."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from tests.simulation.checker import ensure
from tests.simulation.scheduler import Scheduler
from tests.support.memory.fold import Change, fold, visible
from tests.support.memory.generations import (
    SHARDS,
    GenerationWorld,
    decoded,
    rules_of,
    settings,
    shapes_in,
)
from tests.support.memory.ledger import Crash
from tests.support.memory.source import SourceRecord
from tidemark.core.binding import Binding, Configuration
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.generation import Candidate, CandidateState
from tidemark.core.ids import ShardId, Txn
from tidemark.core.replay import Verdict
from tidemark.core.seal import Decision, Seal
from tidemark.pipeline.context import binding_at
from tidemark.pipeline.maintain import sweep
from tidemark.pipeline.promotion import NotReady
from tidemark.pipeline.reclock import mint
from tidemark.pipeline.run import finish, replay, run

RULES: tuple[dict[str, Any], ...] = (
    {},
    {"times": 10},
    {"times": 3, "without": [1]},
    {"rename": {"b": "a"}},
    {"without": [0]},
    {"times": 10, "of": ["b"]},
    {"without": [2], "of": ["a"]},
    {"half": True},
    {"half": True, "times": 10, "of": ["b"]},
    {"text": True},
)
SHAPED = {"half": False}
"""So that every configuration declares shapes."""
GRACE_SECONDS = (0.0, 3.0, 30.0)
ROUNDS_MAX = 4


class GenerationSimulation(GenerationWorld):
    """Everything that is durable, and the actors."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed, fault_rate=0.0)
        rng = self.rng = self.scheduler.rng
        self.scheduler.fault_rate = rng.choice((0.0, 0.01, 0.03))
        self.scheduler.land_one = lambda: next(self.warehouse.land_delayed(), None)
        super().__init__(records_max=rng.choice((1, 3, 100)), **SHAPED)
        self.produce(rng.randint(1, 3))
        self.run()
        spawn = self.scheduler.spawn
        spawn(lambda: self.producer(rng.randint(1, 4)))
        for _ in range(rng.randint(1, 2)):
            spawn(self.writer)
        if rng.random() < 0.5:
            spawn(self.zombie)
        for _ in range(rng.randint(1, 2)):
            spawn(self.starter)
            spawn(self.promoter)
        for _ in range(rng.randint(0, 2)):
            spawn(self.follower)
        if rng.random() < 0.4:
            spawn(self.aborter)
        if rng.random() < 0.3:
            spawn(self.sweeper)
        if rng.random() < 0.3:
            spawn(self.proposer)
        if rng.random() < 0.3:
            spawn(self.returner)

    def clock(self) -> float:
        return self.scheduler.now_seconds

    def sleep(self, seconds: float) -> None:
        self.scheduler.now_seconds += max(seconds, 0.5)
        self.scheduler.pause()

    def wait(self, pauses_max: int) -> None:
        for _ in range(self.rng.randint(0, pauses_max)):
            self.scheduler.pause()

    # The actors.

    def produce(self, count: int) -> None:
        rng = self.rng
        for _ in range(count):
            size = rng.randint(1, 3)
            for index in range(size):
                value = None if rng.random() < 0.2 else rng.randint(1, 99)
                key = (rng.randint(0, 3),)
                record = SourceRecord(rng.choice(SHARDS), key, value, ends=index == size - 1)
                self.source.append("p0", record)

    def producer(self, count: int) -> None:
        for _ in range(count):
            self.wait(40)
            self.produce(1)

    def writer(self) -> None:
        for _ in range(self.rng.randint(1, ROUNDS_MAX)):
            self.wait(60)
            with suppress(Crash, Determinate):
                self.run(self.scheduler)

    def zombie(self) -> None:
        """A process that was opened long ago, and wakes after a promotion: it binds, or it finishes what is
        open."""
        try:
            pipeline, attempt = self.opened(self.scheduler), self.attempt()
        except Crash:
            return
        for _ in range(400):
            self.scheduler.pause()
            if self.generation > pipeline.generation:
                break
        for _ in range(self.rng.randint(1, 30)):
            self.scheduler.pause()
            with suppress(Crash, Determinate, InvalidUsage):
                txn = pipeline.control.seals.head().upper
                if txn >= pipeline.control.bindings.head().upper:
                    continue
                if self.rng.random() < 0.2 or binding_at(pipeline, txn).promotes:
                    run(pipeline, attempt)
                else:
                    finish(pipeline, attempt, txn)

    def proposer(self) -> None:
        """A process that takes a file for the one in charge that was not promoted. No candidate gets its
        number: an edit under the number in charge would hold."""
        self.wait(40)
        proposal = settings(self.generation + 100, **SHAPED, times=5)
        pipeline = self.made(self.warehouse, self.files, proposal, self.scheduler)
        for _ in range(self.rng.randint(1, 4)):
            with suppress(Crash, Determinate, InvalidUsage):
                txn = pipeline.control.seals.head().upper
                if self.rng.random() < 0.5 or txn >= pipeline.control.bindings.head().upper:
                    mint(pipeline, self.attempt())
                elif not binding_at(pipeline, txn).promotes:
                    finish(pipeline, self.attempt(), txn)
            self.wait(10)

    def returner(self) -> None:
        for _ in range(self.rng.randint(1, 2)):
            self.wait(200)
            if self.generation:
                with suppress(Crash, Determinate, InvalidUsage):
                    self.rollback(self.scheduler, replaces=SHARDS)

    def starter(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self.wait(60)
            rng = self.rng
            known: dict[str, Any] = {}
            if rng.random() < 0.3:
                known["since"] = Txn(rng.randint(1, 4))
                known["until"] = Txn(rng.choice((0, known["since"], known["since"] + 2)))
            elif rng.random() < 0.1:
                known["from_now"] = True
            elif rng.random() < 0.9:
                known["replaces"] = SHARDS
            new = settings(self.generation + 1, **{**SHAPED, **rng.choice(RULES)})
            if {"since", "from_now"} & known.keys() and shapes_in(new) != shapes_in(
                self.opened().configuration
            ):
                continue  # A plan refuses it.
            with suppress(Crash, Determinate, InvalidUsage):
                self.start(new, self.scheduler, **known)

    def follower(self) -> None:
        for _ in range(self.rng.randint(1, ROUNDS_MAX)):
            self.wait(60)
            candidate = self.candidate
            if candidate is not None and not candidate.from_now:
                with suppress(Crash, Determinate, InvalidUsage):
                    self.follow(candidate, self.scheduler, transactions_max=self.rng.choice((1, 2, None)))

    def promoter(self) -> None:
        owner, candidate = self.attempt().owner, None
        for _ in range(self.rng.randint(1, 3)):
            self.wait(80)
            if candidate is None or self.rng.random() < 0.5:
                # Else the one from before, which may have been aborted meanwhile.
                candidate = self.candidate
            if candidate is None:
                continue
            attempt = self.attempt()
            if self.rng.random() < 0.5:
                attempt = replace(attempt, owner=owner)  # Another try of the same run.
            with suppress(Crash, Determinate, InvalidUsage):
                grace = self.rng.choice(GRACE_SECONDS)
                self.promote(candidate, self.scheduler, attempt=attempt, grace_seconds=grace)

    def aborter(self) -> None:
        self.wait(200)
        candidate = self.candidate
        if candidate is not None:
            with suppress(Crash, Determinate, InvalidUsage):
                self.abort(candidate, self.scheduler)

    def clean(self) -> None:
        kept = dict(self.shadows)
        super().clean()
        for folder in kept.keys() - self.shadows.keys():
            kept[folder][1].clear()  # Files go away under whoever still has them.

    def sweeper(self) -> None:
        self.wait(200)
        with suppress(Crash):
            sweep(self.opened(self.scheduler))

    def simulate(self) -> None:
        self.scheduler.run()
        for _ in self.warehouse.land_delayed():
            pass
        self.scheduler.now_seconds += 1_000
        self.run()
        if self.candidate is not None and self.rng.random() < 0.5:
            with suppress(NotReady):  # Nobody has agreed to replace a shard.
                self.promote(self.candidate)
        self.produce(1)
        self.run()
        sweep(self.opened())


class GenerationChecker:
    """Looks at a world after its end. Shares no decision with the product: it goes through the history in the
    order of its commits, and folds the source's records by a loop."""

    def __init__(self, world: GenerationSimulation) -> None:
        self.world = world
        self.promoted = self.skipped = self.untouched = self.replaced = 0
        self.reads: dict[int, Configuration] = {}
        """The configuration that the tables have each transaction by, at the cut that is looked at."""

    def check(self) -> None:
        self.check_numbers()
        self.check_history()
        self.check_logs()
        self.check_replays()

    def check_numbers(self) -> None:
        bindings, seals = self.world.bindings, self.world.seals
        numbers = list(range(1, len(bindings) + 1))
        ensure([one.txn for one in bindings] == numbers, "bindings are not dense")
        ensure([one.txn for one in seals] == numbers, "seals are not dense")
        for before, after in pairwise(bindings):
            ensure(before.upper == after.lower, f"binding {after.txn} does not start where the last ended")
        size = {name: len(records) for name, records in self.world.source.partitions.items()}
        ensure(bindings[-1].upper.as_dict() == size, "not everything is bound at the end")

    def check_history(self) -> None:
        """One generation is in charge at any time: all is bound and sealed by it, and it changes by the seal
        of a promotion of the candidate that is there."""
        in_charge, candidate, promotion = self.world.first, None, None
        pasts: dict[int, tuple[Txn, Configuration, dict[int, Configuration]]] = {}
        history = self.world.warehouse.history
        for record in history.records(history.version):
            match record:
                case Candidate(state=CandidateState.STARTED):
                    ensure(candidate is None, f"{record} was started beside {candidate}")
                    ensure(record.generation > in_charge.generation, f"{record} is not a new generation")
                    candidate = record
                case Candidate():
                    ensure(promotion is None, f"{record} was aborted during its promotion")
                    ensure(candidate is not None and candidate.start == record.start, f"{record} ends none")
                    candidate = None
                case Binding():
                    ensure(promotion is None, f"binding {record.txn} is above an open promotion")
                    promotion = record if record.promotes else None
                    right = candidate.configuration if promotion and candidate else in_charge
                    ensure(record.configuration == right, f"{record.txn} was bound by another generation")
                case Seal(decision=Decision.CORRECTED):
                    ensure(promotion is not None and promotion.txn == record.txn, "corrects no promotion")
                    ensure(candidate is not None, f"transaction {record.txn} promotes no candidate")
                    assert candidate is not None
                    ensure(record.configuration == candidate.configuration, "promotes another candidate")
                    before = (record.txn, in_charge, dict(self.reads))
                    in_charge, promotion = candidate.configuration, None
                    if candidate.undoes:
                        undone, restored, kept = pasts.pop(candidate.undoes)
                        ensure(in_charge == restored_as(restored, in_charge), "goes back to another one")
                        self.reads = {txn: kept[txn] if txn < undone else in_charge for txn in self.reads}
                    else:
                        self.reads |= {
                            txn: in_charge
                            for txn in range(1, record.txn)
                            if txn in self.reads and candidate.reads(Txn(txn))
                        }
                    pasts[candidate.generation] = before
                    candidate = None
                    self.promoted += 1
                    self.untouched += any(shard not in record.shards for shard in SHARDS)
                    self.replaced += bool(record.replaced)
                    self.check_replaced(record, before[1], in_charge)
                case Seal():
                    made = record.configuration or self.world.bindings[record.txn - 1].configuration
                    if promotion is not None and promotion.txn == record.txn:
                        ensure(record.decision is Decision.SKIPPED, "a promotion has no input")
                        promotion = None
                        self.skipped += 1
                    else:
                        ensure(made == in_charge, f"transaction {record.txn} was made by another generation")
                        self.reads[record.txn] = in_charge
            if isinstance(record, Seal):
                ensure(record.generation == in_charge.generation, f"{record.txn} has another generation")
                self.check_tables(record.txn)
        ensure(self.world.generation == in_charge.generation, "another generation is in charge")

    def check_replaced(self, seal: Seal, before: Configuration, after: Configuration) -> None:
        """Exactly the shards are replaced that get another key or type; one without rows has none yet."""
        old, new = shapes_in(before), shapes_in(after)
        touched = {shard for one in self.world.seals[: seal.txn - 1] for shard in one.shards}
        wanted = {shard for shard in touched if old[shard] != new[shard]}
        ensure(set(seal.replaced) == wanted, f"{seal.txn} replaces {set(seal.replaced)}, not {wanted}")

    def rows_at(self, shard: ShardId, txn: Txn) -> list[Change]:
        """The rows that a log has as of a transaction, by the seals; their files are kept."""
        rows: list[Change] = []
        for seal in self.world.seals[:txn]:
            if shard in seal.replaced:
                rows = []
            parts = seal.shards[shard].parts if shard in seal.shards else ()
            rows += [row for part in parts for row in self.world.files[part.path]]
        return rows

    def check_tables(self, txn: Txn) -> None:
        """The tables as of a transaction are what the rules make of everything up to there."""
        for shard in SHARDS:
            rows = self.rows_at(shard, txn)
            found, wanted = visible(fold(rows)), self.recomputed_at(shard, txn)
            ensure(found == wanted, f"{shard} has {found} at {txn}, and should have {wanted}")

    def recomputed_at(self, shard: ShardId, txn: Txn) -> dict[object, object]:
        rows: dict[object, object] = {}
        for binding in self.world.bindings[:txn]:
            for _, record in self.world.source.records(binding):
                taken = decoded(self.reads[binding.txn], record)
                if taken is not None and taken.table == shard:
                    rows[taken.key] = taken.value
        return {key: value for key, value in rows.items() if value is not None}

    def check_logs(self) -> None:
        sealed = set()
        for shard in SHARDS:
            touching = [one for one in self.world.seals if shard in one.shards]
            sealed |= {part.path for one in touching for part in one.shards[shard].parts}
            begins = max((one.txn for one in touching if shard in one.replaced), default=0)
            wanted = [(s.txn, s.token, s.shards[shard].parts) for s in touching if s.txn >= begins]
            found = [(one.txn, one.token, one.parts) for one in self.world.log(shard)]
            ensure(found == wanted, f"log {shard} has {found}, the seals say {wanted}")
        ensure(set(self.world.files) == sealed, f"other files than sealed: {set(self.world.files) ^ sealed}")

    def check_replays(self) -> None:
        upper = self.world.sealed_upper
        found = replay(self.world.opened(), self.world.attempt(), txn_from=Txn(1), txn_to=Txn(upper - 1))
        for one in found:
            seal = self.world.seals[one.txn - 1]
            lost = seal.decision is Decision.CORRECTED and any(
                seal.shards[shard].parts and shard in later.replaced
                for later in self.world.seals[one.txn :]
                for shard in seal.shards
            )
            wanted = Verdict.NOT_COMPARABLE if lost else Verdict.IDENTICAL
            ensure(seal.decision is Decision.SKIPPED or one.verdict is wanted, f"{one}")


def restored_as(configuration: Configuration, other: Configuration) -> Configuration:
    """A configuration's rules with another's generation."""
    return settings(**{**rules_of(configuration.text), "generation": other.generation})


def check(seed: int) -> GenerationChecker:
    """One seed; an assertion that names it where something is wrong in the end."""
    try:
        world = GenerationSimulation(seed)
        world.simulate()
        checker = GenerationChecker(world)
        checker.check()
    except Exception as wrong:
        raise AssertionError(f"generations, seed {seed}: {wrong!r}") from wrong
    return checker
