"""Tables that are set back while others work, in any interleaving: the history, checkpoints and logs, alone
and together, under living processes and before new ones (scenario W1).

Whoever meets it stops by name; or nobody has to, and then the tables are right in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from tests.simulation.checker import Broken, Checker
from tests.simulation.world import SHARDS, World
from tests.support.memory.control import MemoryControl
from tidemark.core.binding import Binding, Owner
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import ShardId, Txn
from tidemark.core.lease import HolderToken, Lease
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.log import LogEntry, entry_of, next_append
from tidemark.core.reading import effect_key
from tidemark.core.seal import Seal, decide_seal
from tidemark.pipeline import history
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.history import epoch_of, losses
from tidemark.pipeline.repair import repair
from tidemark.pipeline.run import run
from tidemark.ports.control import Control

SEEDS = 3_000
WORK_STEPS = 400
MUTANT_SEEDS_MAX = 6_000


class RestoredWorld(World):
    """A world in which somebody puts older copies of tables back, once. A sink outside of it keeps what a
    consumer has had, keyed by batch, and skips what it has."""

    def __init__(self, seed: int) -> None:
        self.told: list[str] = []
        self.forks = seed % 8 == 0
        """A copy from before the consumer came has gone on elsewhere, and is put in the place of this one."""
        self.sink: dict[str, int] = {}
        self.effects: list[tuple[ShardId, Txn, object]] = []
        super().__init__(seed, fault_rate=0.0)

    def _spawn(self) -> None:
        self.tampers = self.skips = False
        spawn = self.scheduler.spawn

        self.scheduler.spawn = lambda work: spawn(self.stopping(work))  # type: ignore[method-assign]
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
        for _ in range(WORK_STEPS if self.forks else self.rng.randint(1, 60)):
            self.scheduler.pause()
        self.consume()
        if self.forks:
            self.fork()
            return
        truth = self.warehouse
        ledgers = [truth.history, truth.checkpoints, *(truth.log(shard) for shard in SHARDS)]
        for ledger in ledgers:
            if ledger.version and self.rng.random() < 0.5:
                ledger.restore(ledger.version - self.rng.randint(1, min(2, ledger.version)))

    def consume(self) -> None:
        """A consumer takes everything that is readable now, each transaction by itself. Its frontier is in
        the warehouse, what it has done is outside. As any reader it stops where the history is not the one
        that it knows."""
        control = MemoryControl(self.warehouse)
        control.seals.head()
        for shard in SHARDS:
            leases = control.leases
            had = [one for one in leases.read(1, leases.head().upper) if one.name == f"sink/{shard}"]
            if had:
                history.require_known(control, "consumer sink", txn=Txn(had[-1].txn - 1), link=had[-1].link)
            log = control.log(shard)
            head = log.head()
            if head.upper > 1 and (not had or head.upper > had[-1].txn):
                self.advance(control, shard, head)
            for entry in log.read(1, head.upper):
                key = effect_key("p", "sink", shard, epoch=epoch_of(control, entry.txn))
                if entry.txn > self.sink.get(key, 0):
                    self.sink[key] = entry.txn
                    self.effects += [(shard, entry.txn, self.rows_of(entry))]

    def advance(self, control: MemoryControl, shard: ShardId, log: Head) -> None:
        head = control.leases.head()
        lease = Lease(f"sink/{shard}", HolderToken("sink"), log.upper, head.upper, 1.0, link=log.link)
        control.leases.commit(head, Put({UPPER: head.upper + 1}, (lease,), None))

    def fork(self) -> None:
        """The last transaction is bound again elsewhere, with more input."""
        if self.put_back():
            self.produce(2)
            with patch.object(history, "require_leases", nothing):
                run(self.pipeline(None, self.in_charge), Attempt(Owner("elsewhere"), self.token()))

    def put_back(self) -> bool:
        """Set everything but the leases back to before the last transaction was bound, if there is one."""
        truth = self.warehouse
        bound = [one for one in truth.history.records(truth.history.version) if isinstance(one, Binding)]
        if not bound:
            return False
        last = bound[-1].txn
        for ledger, names in (
            (truth.history, lambda one: getattr(one, "txn", 0) >= last),
            (truth.checkpoints, lambda one: one.txn >= last),
            (truth.journal, lambda one: one.txn >= last),
            (truth.attempts, lambda one: one.txn >= last),
            *((truth.log(shard), lambda one: one.txn >= last) for shard in SHARDS),
        ):
            version = ledger.version
            while version and any(names(one) for one in ledger.records(version)):
                version -= 1
            if version < ledger.version:
                ledger.restore(version)
        for path in [path for path in self.files if int(path.split("/")[1]) >= last]:
            del self.files[path]
        return True

    def entries(self) -> list[tuple[ShardId, Txn, object]]:
        """What a consumer is to have had in the end."""
        logs = {shard: self.warehouse.log(shard) for shard in SHARDS}
        return [
            (shard, entry.txn, self.rows_of(entry))
            for shard, log in logs.items()
            for entry in log.records(log.version)
        ]

    def rows_of(self, entry: LogEntry) -> object:
        """What a consumer has of a transaction's rows."""
        rows = [row for part in entry.parts for row in self.files[part.path]]
        return sorted((row.key, repr(row.value)) for row in rows)

    def repair_all(self) -> None:
        """Parts of an attempt that had lost may have been removed, by its run or a sweep, before the seal
        that it lost to was lost itself, and it was sealed in its place. Readers stop at such parts and name
        them (R1), and a repair makes them again of the input."""
        pipeline = self.pipeline(None, self.in_charge)
        seals = self.warehouse.seals
        for seal in seals.records(seals.version):
            if any(pipeline.plane.damaged(shard, added.parts) for shard, added in seal.shards.items()):
                repair(pipeline, Attempt(Owner("repair"), self.token()), seal.txn)

    def ended(self) -> bool:
        """Whether everything ended without a word about a loss, of `status` either: it asks for the logs of
        shards that the last runs had nothing to do with."""
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
    try:
        world.consume()
    except InvariantViolation:
        return False
    missed = [one for one in world.entries() if one not in world.effects]
    assert not missed, f"seed {seed}: a consumer was never given {missed}"
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


REQUIRE_KNOWN = history.require_known


def number_only(control: Control, what: str, *, txn: Txn, link: int) -> None:
    """A consumer compares numbers, and takes another transaction for the one that it has had."""
    if what.startswith("consumer"):
        link = next((seal.link for seal in control.seals.read(txn, txn + 1)), link)
    REQUIRE_KNOWN(control, what, txn=txn, link=link)


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("tidemark.pipeline.history.check_known", nothing),
        ("tidemark.pipeline.upsert.decide_seal", any_binding),
        ("tidemark.pipeline.upsert.next_append", newest_only),
        ("tidemark.pipeline.history.require_known", number_only),
    ],
    ids=[
        "compares nothing",
        "seals for any binding",
        "jumps over a transaction",
        "consumers compare the number only",
    ],
)
def test_the_simulation_of_restores_notices_a_mistake(
    monkeypatch: pytest.MonkeyPatch, name: str, mistake: Callable[..., object]
) -> None:
    monkeypatch.setattr(name, mistake)
    with pytest.raises(AssertionError, match="seed"):
        sum(check(seed) for seed in range(MUTANT_SEEDS_MAX))
