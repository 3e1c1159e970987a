"""Tables that are set back while others work, in any interleaving: the history, checkpoints and logs, alone
and together, under living processes and before new ones (scenario W1).

Whoever meets it stops by name; or nobody has to, and then the tables are right in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.checker import Broken, Checker
from tests.simulation.world import SHARDS, World
from tests.support.memory.control import MemoryControl
from tidemark.core.binding import Owner
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import ShardId, Txn
from tidemark.core.seal import Seal, decide_seal
from tidemark.core.shard import entry_of, next_append
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.history import losses
from tidemark.pipeline.repair import repair

SEEDS = 3_000
MUTANT_SEEDS_MAX = 6_000


class RestoredWorld(World):
    """A world in which somebody puts older copies of tables back, once."""

    def __init__(self, seed: int) -> None:
        self.told: list[str] = []
        super().__init__(seed, fault_rate=0.0)

    def _spawn(self) -> None:
        self.tampers = self.skips = False
        spawn = self.scheduler.spawn

        def spawn_writers(work: Callable[[], None]) -> None:
            if getattr(work, "__self__", None) not in self.readers and work != self.truncater:
                spawn(self.stopping(work))

        self.scheduler.spawn = spawn_writers  # type: ignore[method-assign]
        super()._spawn()
        self.scheduler.spawn(self.restorer)

    def stopping(self, work: Callable[[], None]) -> Callable[[], None]:
        """Whoever meets a loss says so, and does nothing more."""

        def stopped() -> None:
            try:
                work()
            except InvariantViolation as error:
                self.told.append(str(error))

        return stopped

    def restorer(self) -> None:
        for _ in range(self.rng.randint(1, 60)):
            self.scheduler.pause()
        truth = self.warehouse
        ledgers = [truth.history, truth.checkpoints, *(truth.log(shard) for shard in SHARDS)]
        for ledger in ledgers:
            if ledger.version and self.rng.random() < 0.5:
                ledger.restore(ledger.version - self.rng.randint(1, min(2, ledger.version)))

    def repair_all(self) -> None:
        """Parts of an attempt that had lost may have been removed, by its run or a sweep, before the seal
        that it lost to was lost itself, and it was sealed in its place. Readers stop at such parts and name
        them (R1), and a repair makes them again of the input."""
        pipeline = self.pipeline(None, 9)
        seals = self.warehouse.seals
        for seal in seals.records(seals.version):
            if any(pipeline.plane.damaged(shard, added.parts) for shard, added in seal.shards.items()):
                repair(pipeline, Attempt(Owner("repair"), self.token()), seal.txn)

    def ended(self) -> bool:
        """Whether everything ended without a word about a loss, of `status` either: it asks for the logs of
        shards that the last runs had nothing to do with."""
        self.readers.clear()
        with suppress(InvariantViolation):
            self.simulate()
            return not self.told and not losses(MemoryControl(self.warehouse), SHARDS)
        return False


def check(seed: int) -> bool:
    """Whether the seed ended well; `Broken` when it did, and the tables are wrong."""
    world = RestoredWorld(seed)
    if not world.ended():
        return False
    world.repair_all()
    checker = Checker(world)
    for look in (
        checker.check_bindings,
        checker.check_seals,
        checker.check_logs,
        checker.check_contents,
    ):
        try:
            look()
        except Broken as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
    return True


@pytest.mark.parametrize("chunk", range(3))
def test_w1_whatever_is_set_back_and_whenever_nobody_ends_well_with_wrong_tables(chunk: int) -> None:
    size = SEEDS // 3
    well = sum(check(seed) for seed in range(chunk * size, (chunk + 1) * size))
    assert size / 10 < well < size * 9 / 10, "both ends are to be seen"


def nothing(*_: object, **__: object) -> None:
    pass


def any_binding(**known: Any) -> Any:
    past = replace(known.pop("past"), binding=known["seal"].binding)
    return decide_seal(**known, past=past)


def newest_only(shard: ShardId, *, upper: Txn, seals: Sequence[Seal], release: Txn | None = None) -> Any:
    """Append what was sealed last, and jump over what the log lacks before it."""
    found = next_append(shard, upper=upper, seals=seals, release=release)
    touching = [seal for seal in seals if seal.touches(shard)]
    return replace(entry_of(touching[-1], shard), before=0) if touching else found


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("tidemark.pipeline.history.check_known", nothing),
        ("tidemark.pipeline.upsert.decide_seal", any_binding),
        ("tidemark.pipeline.upsert.next_append", newest_only),
    ],
    ids=["compares nothing", "seals for any binding", "jumps over a transaction"],
)
def test_the_simulation_of_restores_notices_a_mistake(
    monkeypatch: pytest.MonkeyPatch, name: str, mistake: Callable[..., object]
) -> None:
    monkeypatch.setattr(name, mistake)
    with pytest.raises(AssertionError, match="seed"):
        sum(check(seed) for seed in range(MUTANT_SEEDS_MAX))
