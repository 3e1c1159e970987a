"""Recoveries under the scheduler: tables are set back while writers work, two recoveries begin at once, meet
faults and die, and runs come in between. In the end the tables are right, whatever the interleaving (W2, W5).

A crash of a machine loses what was not on disk yet: of each table the newest commits, independently."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from tests.simulation.test_restores import RestoredWorld
from tests.simulation.world import SHARDS
from tests.support.memory.control import MemoryControl
from tests.support.memory.fold import fold, visible
from tests.support.memory.ledger import Crash
from tidemark.core.binding import Owner
from tidemark.core.errors import Determinate, InvariantViolation, TidemarkError
from tidemark.core.history import Forked, LogLost, decide_recovery, plan_recovery
from tidemark.core.ids import Txn
from tidemark.core.ledger import UPPER
from tidemark.core.replay import Verdict
from tidemark.core.seal import Decision
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.history import losses
from tidemark.pipeline.recover import recover
from tidemark.pipeline.run import replay, run

SEEDS = 600
MUTANT_SEEDS_MAX = 1_500
TRIES_MAX = 12


class RecoveredWorld(RestoredWorld):
    """A world whose machine goes down, and comes back without its newest writes."""

    def __init__(self, seed: int) -> None:
        self.restored = seed % 5 == 0
        """All of the warehouse is put back from one copy, while nobody works."""
        super().__init__(seed)

    def restorer(self) -> None:
        for _ in range(self.rng.randint(5, 120)):
            self.scheduler.pause()
        with suppress(InvariantViolation):
            self.consume()
        truth = self.warehouse
        ledgers = [truth.history, truth.checkpoints, *(truth.log(shard) for shard in SHARDS)]
        for ledger in ledgers if not self.restored else ():
            if ledger.version and self.rng.random() < 0.6:
                ledger.restore(ledger.version - self.rng.randint(1, min(3, ledger.version)))

    def put_all_back(self) -> None:
        """Everything from before the last transaction was bound: then nothing here names that any more."""
        if self.put_back():
            self.warehouse.leases.restore(0)

    # After the crash: people recover, some at once, while runs try to go on.

    def recover_all(self) -> None:
        spawn = self.scheduler.spawn
        self.scheduler.fault_rate = self.rng.choice((0.0, 0.03))
        spawn(lambda: self.recoverer(self.restored))
        if self.rng.random() < 0.5:
            spawn(lambda: self.recoverer(False))
        if not self.restored:  # Nothing here could stop it from giving numbers out again.
            spawn(lambda: self.stubborn_run("between"))
        self.scheduler.run()
        self.scheduler.fault_rate = 0.0
        for _ in self.warehouse.land_delayed():
            pass
        self.recover_once(None, restored=False)

    def recoverer(self, restored: bool) -> None:
        for _ in range(TRIES_MAX):
            # Between a seal of one recovery and its append the other finds a log behind, and says so.
            with suppress(Crash, Determinate, LogLost):
                self.recover_once(self.scheduler, restored=restored)
                return

    def recover_once(self, chaos: Any, *, restored: bool) -> None:
        recover(
            self.pipeline(chaos, self.in_charge), Attempt(Owner("recover"), self.token()), restored=restored
        )

    def stubborn_run(self, name: str) -> None:
        for number in range(TRIES_MAX):
            with suppress(Crash, Determinate, InvariantViolation):
                run(
                    self.pipeline(self.scheduler, self.in_charge),
                    Attempt(Owner(f"{name}-{number}"), self.token()),
                )
                return

    def simulate_all(self) -> None:
        with suppress(InvariantViolation):
            self.simulate()
        self.scheduler = self.scheduler.again()
        if self.restored:
            with suppress(InvariantViolation):
                self.consume()
            self.put_all_back()
            self.produce(2)
        before = list(self.warehouse.history.records(self.warehouse.history.version))
        self.recover_all()
        kept = list(self.warehouse.history.records(self.warehouse.history.version))
        assert kept[: len(before)] == before, "a recovery has cut the history back"
        self.produce(1)
        self.repair_all()
        for name in ("after", "long after"):
            run(self.pipeline(None, generation=self.in_charge), Attempt(Owner(name), self.token()))
        self.consume()


def check(seed: int) -> tuple[int, int]:
    """How many recoveries and lost transactions the seed's world has; an assertion that names the seed where
    a table is wrong in the end. Living writers that a copy was put back under may have forked: then nobody
    goes on, and nothing is right or wrong."""
    world = RecoveredWorld(seed)
    try:
        world.simulate_all()
        check_tables(world)
    except Forked:
        return 0, 0
    except (AssertionError, TidemarkError, KeyError) as wrong:
        raise AssertionError(f"seed {seed}: {wrong!r}") from wrong
    seals = world.warehouse.seals
    lost = [one for one in seals.records(seals.version) if one.decision is Decision.LOST]
    found = world.warehouse.recoveries.records(world.warehouse.recoveries.version)
    return len(found), len(lost)


def check_tables(world: RecoveredWorld) -> None:
    control = MemoryControl(world.warehouse)
    assert not losses(control, SHARDS)
    seals = list(world.warehouse.seals.records(world.warehouse.seals.version))
    assert [one.txn for one in seals] == list(range(1, len(seals) + 1))
    bindings = world.warehouse.bindings
    bound = bindings.records(bindings.version)
    assert [one.txn for one in bound] == [one.txn for one in seals]
    size = {name: len(records) for name, records in world.source.partitions.items()}
    assert not size or bound[-1].upper.as_dict() == size
    for shard in SHARDS:
        log = world.warehouse.log(shard)
        rows = [
            row
            for entry in log.records(log.version)
            for part in entry.parts
            for row in world.files[part.path]
        ]
        wanted: dict[object, object] = {}
        for one in bound:
            for _, record in world.source.records(one):
                if record.table == shard:
                    wanted[record.key] = record.value
        assert visible(fold(rows)) == {key: value for key, value in wanted.items() if value is not None}
    # The consumer was given every transaction that is in the logs.
    assert all(one in world.effects for one in world.entries())
    lost = {one.txn for one in seals if one.decision is Decision.LOST}
    if seals:
        attempt = Attempt(Owner("proof"), world.token())
        for one in replay(
            world.pipeline(None, world.in_charge), attempt, txn_from=Txn(1), txn_to=seals[-1].txn
        ):
            assert (one.verdict is Verdict.LOST) is (one.txn in lost), f"{one}"
            assert one.verdict in (Verdict.LOST, Verdict.IDENTICAL), f"{one}"


@pytest.mark.parametrize("chunk", range(3))
def test_w2_whatever_is_lost_and_whoever_recovers_the_tables_are_right_in_the_end(chunk: int) -> None:
    size = SEEDS // 3
    found = [check(seed) for seed in range(chunk * size, (chunk + 1) * size)]
    recovered, lost = sum(one > 0 for one, _ in found), sum(one > 0 for _, one in found)
    assert min(recovered, lost) > size / 20, "both are to be seen"


def cuts_back(**known: Any) -> Any:
    """Go on from the last sealed transaction, as if nothing had come after it."""
    plan = replace(known["plan"], lost=(), proven={}, decided=Txn(0))
    return decide_recovery(**{**known, "plan": plan})


def without_an_epoch(**known: Any) -> Any:
    put = decide_recovery(**known)
    return replace(put, marks={name: value for name, value in put.marks.items() if name != UPPER})


def forgetful(**known: Any) -> Any:
    """Numbers that are named somewhere are given out again."""
    made = plan_recovery(**known)
    return replace(made, lost=made.lost[:-1], proven={})


MISTAKES = {
    "recover cuts back": ("tidemark.pipeline.recover.decide_recovery", cuts_back),
    "recover without an epoch": ("tidemark.pipeline.recover.decide_recovery", without_an_epoch),
    "lost numbers are given out again": ("tidemark.pipeline.recover.plan_recovery", forgetful),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_simulation_of_recoveries_notices_a_mistake(name: str) -> None:
    with patch(*MISTAKES[name]), pytest.raises(AssertionError, match="seed"):
        deque((check(seed) for seed in range(MUTANT_SEEDS_MAX)), maxlen=0)
