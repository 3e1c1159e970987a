"""A watermark that a wrong sequence has moved is set back by a person, for a reason that is kept (ADR 19)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.attempts import ingest, validate
from tests.support.memory.control import MemoryControl
from tests.support.memory.ledger import Chaos, Crash, Fault
from tests.support.memory.plane import MemoryPlane
from tests.support.memory.world import Script, World, rec
from tidemark.core.binding import Binding
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import Txn, WriterToken
from tidemark.core.ledger import Event
from tidemark.core.seal import Staged
from tidemark.core.text import sequence_number, sequence_text
from tidemark.pipeline.context import Pipeline, watermark_below
from tidemark.pipeline.decide import set_watermark_back, skip
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.run import run
from tidemark.pipeline.upsert import commit_staged

FAR = 2**62


class Sequenced(MemoryPlane):
    """A plane that tells the watermark, as one does whose shard has a lateness."""

    def __init__(self, world: World, chaos: Chaos | None = None) -> None:
        super().__init__(world.source, world.files, chaos)
        self._truth = MemoryControl(world.warehouse)

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        base = watermark_below(self._truth, binding.txn)
        sequences = [record.sequence for _, record in self._source.records(binding)]
        known = [one for one in (base, *sequences) if one is not None]
        return replace(super().stage(binding, token), base=base, watermark=max(known))


def process(world: World, chaos: Chaos | None = None) -> Pipeline:
    return replace(world.process(chaos), plane=Sequenced(world, chaos))


def load(world: World, *sequences: int) -> None:
    """One transaction for each of them."""
    for sequence in sequences:
        world.feed(rec("k", sequence, sequence=sequence))
        run(process(world), world.attempt())


def gone_wrong() -> World:
    world = World()
    load(world, 100, FAR)
    assert [seal.watermark for seal in world.seals] == [100, FAR]
    return world


def test_regression_the_way_back_is_on_record_and_holds_from_the_next_transaction_on() -> None:
    world = gone_wrong()
    assert set_watermark_back(process(world), world.attempt("ops"), 100, reason=" a clock of 2099 ") == 3
    (entry,) = world.journal(Event.WATERMARK)
    assert (entry.txn, entry.detail) == (
        3, {"from": str(FAR), "to": "100", "reason": "a clock of 2099", "run": "ops"}
    )  # fmt: skip
    load(world, 101, 102)
    assert [(seal.base, seal.watermark) for seal in world.seals] == [
        (None, 100), (100, FAR), (100, 101), (101, 102),
    ]  # fmt: skip
    # A replay starts from where each of them started.
    control = MemoryControl(world.warehouse)
    assert [watermark_below(control, Txn(txn)) for txn in range(1, 6)] == [None, 100, 100, 101, 102]


def test_the_same_request_again_changes_nothing() -> None:
    world = gone_wrong()
    for _ in range(2):
        assert set_watermark_back(process(world), world.attempt(), 100, reason="wrong clock") == 3
    assert len(world.journal(Event.WATERMARK)) == 1


def test_what_was_staged_above_the_wrong_watermark_is_not_sealed() -> None:
    world = gone_wrong()
    world.feed(rec("k", 101, sequence=101))
    pipeline, attempt = process(world), world.attempt()
    reclock(pipeline, attempt)
    staged = ingest(pipeline, attempt, Txn(3))
    assert isinstance(staged, Staged)
    assert staged.base == FAR
    set_watermark_back(process(world), world.attempt(), 100, reason="wrong clock")
    with pytest.raises(Determinate, match="was staged with another watermark"):
        commit_staged(pipeline, attempt, staged, validate(pipeline, staged))
    run(process(world), world.attempt())
    assert [(seal.base, seal.watermark) for seal in world.seals][2:] == [(100, 101)]


def test_a_retry_stages_anew_what_its_first_try_has_staged_above_the_wrong_watermark() -> None:
    world = gone_wrong()
    world.feed(rec("k", 101, sequence=101))
    with pytest.raises(Crash):
        run(process(world, Script().fault("seals.commit", Fault.CRASH_BEFORE)), world.attempt("r"))
    set_watermark_back(process(world), world.attempt(), 100, reason="wrong clock")
    run(process(world), world.attempt("r"))
    assert [(seal.base, seal.watermark) for seal in world.seals][2:] == [(100, 101)]


@pytest.mark.parametrize("nth", range(1, 4))
def test_a_seal_that_comes_between_is_passed_and_the_next_transaction_starts_below(nth: int) -> None:
    """Wherever a rival seals in the middle of it, the command ends with a watermark that is set back."""
    world = gone_wrong()
    script = Script().before("seals.head", lambda: load(world, 50), nth=nth)
    upper = set_watermark_back(process(world, script), world.attempt(), 100, reason="wrong clock")
    load(world, 101)
    assert next(seal.base for seal in world.seals if seal.txn >= upper) == 100
    assert world.seals[-1].watermark == 101


def test_a_transaction_that_was_judged_by_it_meanwhile_is_the_first_one() -> None:
    world = gone_wrong()
    script = Script().before("seals.commit", lambda: load(world, 101))
    assert set_watermark_back(process(world, script), world.attempt(), 100, reason="wrong clock") == 3
    assert [(seal.base, seal.watermark) for seal in world.seals][2:] == [(100, 101)]
    assert len(world.journal(Event.WATERMARK)) == 1


def test_a_lost_reply_is_decided_by_reading_back() -> None:
    world = gone_wrong()
    script = Script().fault("seals.commit", Fault.LOSE_REPLY)
    assert set_watermark_back(process(world, script), world.attempt(), 100, reason="wrong clock") == 3
    load(world, 101)
    assert world.seals[-1].base == 100


def test_a_skipped_transaction_hands_on_what_was_set_back() -> None:
    world = gone_wrong()
    world.feed(rec("k", 101, sequence=101))
    reclock(process(world), world.attempt())
    set_watermark_back(process(world), world.attempt(), 100, reason="wrong clock")
    skip(process(world), world.attempt(), Txn(3), reason="poisoned")
    load(world, 102)
    assert [(seal.base, seal.watermark) for seal in world.seals][2:] == [(100, 100), (100, 102)]


def refuse(world: World, to: int, reason: str = "wrong clock") -> Callable[[], Txn]:
    return lambda: set_watermark_back(process(world), world.attempt(), to, reason=reason)


def test_it_goes_back_only_and_never_without_a_reason() -> None:
    world = gone_wrong()
    with pytest.raises(InvalidUsage, match=f"the watermark is {FAR}, and can only be set back"):
        refuse(world, FAR + 1)()
    with pytest.raises(InvalidUsage, match="no reason was given"):
        refuse(world, 100, " ")()
    with pytest.raises(InvalidUsage, match="there is no watermark"):
        refuse(World(), 100)()
    assert world.journal(Event.WATERMARK) == []


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("-5", "the sequence's own unit", -5),
        ("2026-01-01", "days", 20_454),
        ("2026-01-01 00:00:00", "seconds", 1_767_225_600_000_000),
        ("2026-01-01 00:00:00.000001", "seconds", 1_767_225_600_000_001),
    ],
)
def test_a_sequence_is_written_as_people_write_it(text: str, unit: str, number: int) -> None:
    assert sequence_number(text, unit=unit) == number
    assert sequence_text(number, unit=unit) == text


def test_a_time_with_a_zone_is_taken_and_what_is_none_is_refused() -> None:
    assert sequence_number("2026-01-01T01:00:00+01:00", unit="seconds") == 1_767_225_600_000_000
    for text, unit in (("soon", "seconds"), ("1.5", "the sequence's own unit"), ("2026-13-01", "days")):
        with pytest.raises(InvalidUsage, match="is not a sequence"):
            sequence_number(text, unit=unit)
    assert sequence_text(2**70, unit="seconds") == str(2**70)
