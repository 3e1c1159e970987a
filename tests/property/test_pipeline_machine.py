"""A random mix of runs, crashes, retries, clears, sweeps and readers, checked after every step.

The model is the source alone: what each transaction must contain is worked out from its records by
a plain loop. Checks Invariants 1, 2, 3, 4, 5, 7, 9 and 10 in every state that is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.attempts import ingest, validate
from tests.support.memory.ledger import Crash, Fault
from tests.support.memory.world import World, head_of, newest, rec
from tidemark.core.errors import Determinate
from tidemark.core.ids import Frontier, ShardId, Txn
from tidemark.core.ledger import Event
from tidemark.core.log import LogEntry, Paused
from tidemark.core.replay import Verdict
from tidemark.core.seal import Decision, Opinion, Seal, Staged, skip_of
from tidemark.pipeline.checkpoint import checkpoint
from tidemark.pipeline.maintain import sweep
from tidemark.pipeline.run import run
from tidemark.pipeline.upsert import bring_up_log, commit_staged, put_seal
from tidemark.pipeline.validate import Gated

SHARDS = (ShardId("a"), ShardId("b"))
RUNS = ("one", "two", "three")
FAULTS = {
    "head": (Fault.STALE, Fault.CRASH_BEFORE),
    "commit": tuple(fault for fault in Fault if fault not in (Fault.NONE, Fault.STALE)),
    "write": (Fault.FAIL, Fault.CRASH_BEFORE, Fault.CRASH_AFTER),
    "acknowledge": (Fault.LOSE_REQUEST, Fault.CRASH_BEFORE, Fault.CRASH_AFTER),
}
DEATHS = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)


@dataclass
class Fate:
    """A chaos drawn beforehand: at these calls of the process a fault, or somebody else's turn."""

    faults: dict[int, int] = field(default_factory=dict)
    turns: dict[int, Callable[[], object]] = field(default_factory=dict)
    calls: int = 0

    def meet(self, call: str) -> Fault:
        self.calls += 1
        self.turns.pop(self.calls, lambda: None)()
        if self.calls not in self.faults:
            return Fault.NONE
        choices = FAULTS.get(call.rsplit(".", 1)[-1], DEATHS)
        return choices[self.faults[self.calls] % len(choices)]


fates = st.dictionaries(st.integers(1, 40), st.integers(0, 9), max_size=3)
places = st.integers(1, 40)


class Machine(RuleBasedStateMachine):
    """Every rule is one process's life, or something that befalls the world."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(records_max=2)
        self.before: dict[str, list[object]] = {}
        self.checkpoint_before = Txn(0)
        self.acknowledged_before = Frontier()
        self.delivered: dict[ShardId, list[LogEntry]] = {shard: [] for shard in SHARDS}

    # What befalls the world.

    @rule(
        partition=st.sampled_from(["p0", "p1"]),
        content=st.lists(
            st.tuples(st.sampled_from(SHARDS), st.integers(0, 2), st.one_of(st.none(), st.integers(0, 9))),
            min_size=1,
            max_size=3,
        ),
    )
    def produce(self, partition: str, content: list[tuple[ShardId, int, int | None]]) -> None:
        """One source transaction."""
        last = len(content) - 1
        self.world.feed(
            *(rec(k, v, table=t, ends=index == last) for index, (t, k, v) in enumerate(content)),
            partition=partition,
        )

    @rule()
    def land(self) -> None:
        """A write that was under way arrives."""
        next(self.world.warehouse.land_delayed(), None)

    # The lives of processes.

    def live(self, fate: Fate, name: str, *, cleared: bool = False) -> None:
        try:
            report = run(self.world.process(fate), self.world.attempt(name, cleared=cleared))
        except (Crash, Determinate):
            return
        assert all(finding.verdict is Verdict.IDENTICAL for finding in report.findings)

    @rule(name=st.sampled_from(RUNS), faults=fates)
    def run_with_faults(self, name: str, faults: dict[int, int]) -> None:
        self.live(Fate(faults), name)

    @rule(name=st.sampled_from(RUNS), faults=fates)
    def clear(self, name: str, faults: dict[int, int]) -> None:
        self.live(Fate(faults), name, cleared=True)

    @rule(
        name=st.sampled_from(RUNS),
        other=st.sampled_from(RUNS),
        faults=fates,
        theirs=fates,
        at=places,
        then=places,
    )
    def run_that_is_overtaken(
        self, name: str, other: str, faults: dict[int, int], theirs: dict[int, int], at: int, then: int
    ) -> None:
        """Another process, perhaps of the same run, lives in the middle of ours; then a sweep."""
        fate = Fate(faults, {at: lambda: self.live(Fate(theirs), other), at + then: lambda: self.sweep({})})
        self.live(fate, name)

    @rule(shard=st.sampled_from(SHARDS), faults=fates)
    def hold(self, shard: ShardId, faults: dict[int, int]) -> None:
        """A gate that pauses one shard at the lowest open transaction."""
        pipeline, attempt = self.world.process(Fate(faults)), self.world.attempt()
        try:
            staged = ingest(pipeline, attempt, self.world.sealed_upper)
            if isinstance(staged, Staged):
                gated = Gated(validate(pipeline, staged).finding, Opinion(held={shard: "late"}))
                commit_staged(pipeline, attempt, staged, gated)
        except (Crash, Determinate):
            return

    @rule(shard=st.sampled_from(SHARDS), faults=fates)
    def release(self, shard: ShardId, faults: dict[int, int]) -> None:
        """Someone lets the log go on, and may die right after."""
        pipeline = self.world.process(Fate(faults))
        try:
            end = bring_up_log(pipeline, shard).end
            if isinstance(end, Paused):
                bring_up_log(pipeline, shard, release=end.txn)
        except (Crash, Determinate):
            return

    @rule(faults=fates)
    def skip(self, faults: dict[int, int]) -> None:
        """Someone gives the lowest open transaction up."""
        txn, token = self.world.sealed_upper, self.world.attempt().token
        if txn <= len(self.world.bindings):
            bound = self.world.bindings[txn - 1].link
            seal = skip_of(txn, token=token, generation=0, reason="poisoned", binding=bound)
            with suppress(Crash, Determinate):
                put_seal(self.world.process(Fate(faults)), seal)

    @rule(faults=fates)
    def sweep(self, faults: dict[int, int]) -> None:
        try:
            swept = sweep(self.world.process(Fate(faults)))
        except Crash:
            return
        winners = {(seal.txn, seal.token) for seal in self.world.seals}
        assert winners.isdisjoint(swept)
        assert all(txn < self.world.sealed_upper for txn, _ in swept)

    @rule(faults=st.dictionaries(st.integers(1, 8), st.integers(0, 9), max_size=3))
    def acknowledge(self, faults: dict[int, int]) -> None:
        try:
            checkpoint(self.world.process(Fate(faults)))
        except (Crash, Determinate):
            return

    @rule(shard=st.sampled_from(SHARDS), faults=fates)
    def read(self, shard: ShardId, faults: dict[int, int]) -> None:
        """A reader goes on where it stopped; a stale snapshot gives it less, never other."""
        log = self.world.process(Fate(faults)).control.log(shard)
        delivered = self.delivered[shard]
        try:
            upper = log.head().upper
        except Crash:
            return
        lower = delivered[-1].txn + 1 if delivered else 1
        delivered += log.read(lower, upper)

    # What holds after every step.

    @invariant()
    def nothing_that_was_decided_changes(self) -> None:
        truth = self.world.warehouse
        ledgers = {
            "bindings": truth.bindings,
            "seals": truth.seals,
            "checkpoints": truth.checkpoints,
            "journal": truth.journal,
            **{f"log {shard}": truth.log(shard) for shard in SHARDS},
        }
        for name, ledger in ledgers.items():
            records = newest(ledger)
            old = self.before.get(name, [])
            assert records[: len(old)] == old, f"{name} was rewritten"
            self.before[name] = records

    @invariant()
    def bindings_join_and_seals_follow_them_without_gaps(self) -> None:
        bindings, seals = self.world.bindings, self.world.seals
        assert [binding.txn for binding in bindings] == list(range(1, len(bindings) + 1))
        lower = Frontier()
        for binding in bindings:
            assert binding.lower == lower
            assert all(
                self.world.source.partitions[name][upper - 1].ends
                for name, upper in binding.upper.offsets
                if upper
            )
            lower = binding.upper
        assert [seal.txn for seal in seals] == list(range(1, len(seals) + 1))
        assert len(seals) <= len(bindings)

    @invariant()
    def every_sealed_transaction_has_what_the_source_says(self) -> None:
        for seal in self.world.seals:
            if seal.decision is Decision.SKIPPED:
                assert not seal.shards
                continue
            expected: dict[str, dict[object, object]] = {}
            read = 0
            # Partition by partition, offset by offset: the last one stands.
            for _, record in self.world.source.records(self.world.bindings[seal.txn - 1]):
                expected.setdefault(record.table, {})[record.key] = record.value
                read += 1
            assert {shard: self.rows(seal, shard) for shard in seal.shards} == expected
            assert seal.source.count == read

    def rows(self, seal: Seal, shard: ShardId) -> dict[object, object]:
        """The sealed parts' rows; a missing file or a key that is there twice fails."""
        changes = [row for part in seal.shards[shard].parts for row in self.world.files[part.path]]
        assert len({change.key for change in changes}) == len(changes)
        return {change.key: change.value for change in changes}

    @invariant()
    def logs_are_a_prefix_of_the_seals(self) -> None:
        for shard in SHARDS:
            wanted = [
                (seal.txn, seal.token, seal.shards[shard].parts)
                for seal in self.world.seals
                if seal.touches(shard)
            ]
            entries = [(entry.txn, entry.token, entry.parts) for entry in self.world.log(shard)]
            assert entries == wanted[: len(entries)]
            upper = head_of(self.world.warehouse.log(shard)).upper
            assert upper == (entries[-1][0] + 1 if entries else 1)

    @invariant()
    def the_checkpoint_is_complete_and_the_source_is_not_ahead_of_it(self) -> None:
        world = self.world
        assert world.checkpoint >= self.checkpoint_before
        for seal in world.seals[self.checkpoint_before : world.checkpoint]:
            for shard in seal.shards:
                assert seal.txn in world.log_txns(shard) or self.waits(shard, seal.txn)
        self.checkpoint_before = world.checkpoint
        assert world.checkpoint <= len(world.seals)
        assert self.acknowledged_before <= world.acknowledged
        self.acknowledged_before = world.acknowledged
        assert world.acknowledged in [Frontier(), *(b.upper for b in world.bindings[: world.checkpoint])]

    def waits(self, shard: ShardId, txn: Txn) -> bool:
        """Whether the log waits for a transaction that a gate held, at or below this one.

        A snapshot may be one commit old, and then the log still waits at what was just released."""
        entries = self.world.log_txns(shard)
        upper = entries[-2] + 1 if len(entries) > 1 else 1
        held = [seal.txn for seal in self.world.seals if seal.touches(shard) and seal.shards[shard].held]
        return any(upper <= at <= txn for at in held)

    @invariant()
    def lost_races_name_their_winners(self) -> None:
        for entry in self.world.journal(Event.LOST):
            winner = self.world.seals[entry.txn - 1].token
            assert entry.detail["winner"] == winner != entry.token
            assert entry.detail["verdict"] == Verdict.IDENTICAL

    @invariant()
    def readers_have_what_the_logs_have(self) -> None:
        for shard, delivered in self.delivered.items():
            assert delivered == self.world.log(shard)[: len(delivered)]

    def teardown(self) -> None:
        """The faults stop, what is under way lands, and two calm runs finish everything."""
        world = self.world
        for _ in world.warehouse.land_delayed():
            pass
        for _ in range(2):  # The first may own nothing but open transactions; the second binds the rest.
            world.run()
        for shard in SHARDS:
            assert not bring_up_log(world.process(), shard).appended, "two calm runs left a log behind"
            while isinstance(end := bring_up_log(world.process(), shard).end, Paused):
                bring_up_log(world.process(), shard, release=end.txn)
        sweep(world.process())
        for check in (
            self.nothing_that_was_decided_changes, self.bindings_join_and_seals_follow_them_without_gaps,
            self.every_sealed_transaction_has_what_the_source_says, self.logs_are_a_prefix_of_the_seals,
            self.the_checkpoint_is_complete_and_the_source_is_not_ahead_of_it,
        ):  # fmt: skip
            check()
        assert world.checkpoint == len(world.bindings) == len(world.seals)
        sizes = {name: len(records) for name, records in world.source.partitions.items()}
        assert world.acknowledged.as_dict() == sizes
        sealed = {part.path for seal in world.seals for parts in seal.shards.values() for part in parts.parts}
        assert set(world.files) == sealed, "orphan parts"
        for shard in SHARDS:
            assert world.log_txns(shard) == [seal.txn for seal in world.seals if seal.touches(shard)]


Machine.TestCase.settings = settings(max_examples=80, stateful_step_count=15, deadline=None)
TestMachine = Machine.TestCase
