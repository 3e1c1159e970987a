"""A pipeline file is compared with the warehouse before anything is bound, and again by the seal.

Scenarios C1 to C5, Invariant 17. In this world a file says by which columns the records are folded, so that a
transaction by the wrong file would leave a table that shows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.memory.fold import Change, fold
from tests.support.memory.ledger import Chaos, Crash, Fault
from tests.support.memory.plane import MemoryPlane, hash_of
from tests.support.memory.world import Script, World, rec
from tests.support.sealing import announce_generation
from tidemark.core.binding import Binding, Configuration
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate
from tidemark.core.ids import ShardId, Txn
from tidemark.core.ledger import UPPER, Head, Put
from tidemark.core.seal import Fenced, Part, Past, ShardParts, Staged, decide_seal, seal_of
from tidemark.core.shape import Misfit, Shape, differences
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.ingest import gather
from tidemark.pipeline.reclock import reclock
from tidemark.pipeline.run import run
from tidemark.pipeline.schema_change import fit_of
from tidemark.pipeline.upsert import seal_judged
from tidemark.pipeline.validate import judge_gathered

T = ShardId("t")
COLUMNS = {"id": "INT", "age": "INT"}
RECORDED = Shape(COLUMNS, ("id",), "")


def file(
    *,
    name: str = "t",
    generation: int = 0,
    sequence_by: str = "",
    keys: tuple[str, ...] = ("id",),
    **more: str,
) -> Configuration:
    """A pipeline file with one shard."""
    shard = {"name": name, "columns": {**COLUMNS, **more}, "keys": keys, "sequence_by": sequence_by}
    return Configuration.of(json.dumps({"generation": generation, "shards": [shard]}))


def shapes_of(configuration: Configuration) -> dict[ShardId, Shape]:
    return {
        ShardId(shard["name"]): Shape(shard["columns"], tuple(shard["keys"]), shard["sequence_by"])
        for shard in json.loads(configuration.text)["shards"]
    }


class ByFile(MemoryPlane):
    """Folds rows as the binding's file says; all of them go to its one shard."""

    def _fold(self, binding: Binding) -> tuple[Digest, dict[ShardId, list[Change]]]:
        (shard,) = json.loads(binding.configuration.text)["shards"]
        changes = []
        for position, record in self._source.records(binding):
            row: Any = record.value
            sequence = row[shard["sequence_by"]] if shard["sequence_by"] else None
            key = tuple(row[name] for name in shard["keys"])
            changes.append(Change(key, json.dumps(row), binding.txn, position, sequence))
        folded = sorted(fold(changes).values(), key=lambda change: repr(change.key))
        source = Digest.of(hash_of(change.value) for change in changes)
        return source, {ShardId(shard["name"]): folded} if folded else {}


def works(world: World, settings: Configuration, chaos: Chaos | None = None) -> Pipeline:
    pipeline = world.process(chaos, configuration=settings, generation=settings.generation)
    return replace(pipeline, plane=ByFile(world.source, world.files, chaos), shapes_of=shapes_of)


def whole(pipeline: Pipeline, attempt: Attempt) -> None:
    run(pipeline, attempt)


def stepwise(pipeline: Pipeline, attempt: Attempt) -> None:
    reclock(pipeline, attempt)
    gather(pipeline, attempt)
    judge_gathered(pipeline, attempt)
    seal_judged(pipeline, attempt)


Runs = Callable[[Pipeline, Attempt], None]
both = pytest.mark.parametrize("runs", [whole, stepwise])


def feed(world: World, *rows: tuple[int, int]) -> None:
    world.feed(*(rec(index, {"id": key, "age": age}) for index, (key, age) in enumerate(rows)))


def state(world: World, shard: ShardId = T) -> list[tuple[int, int]]:
    rows = [json.loads(str(value)) for value in world.state(shard).values()]
    return sorted((row["id"], row["age"]) for row in rows)


def durable(world: World) -> tuple[object, ...]:
    """All that a refused run must leave as it was."""
    versions = [ledger.version for ledger in (world.warehouse.bindings, world.warehouse.seals)]
    return *versions, sorted(world.files), dict(world.warehouse.shapes), world.log_txns(T)


CHANGES = {
    "keys": (file(keys=("age",)), "keys is recorded as [id], and the pipeline file says [age]"),
    "type": (file(age="BIGINT"), "column 'age' is recorded as INT, and the pipeline file says BIGINT"),
    "sequence": (
        file(sequence_by="age"), "sequence_by is recorded as none, and the pipeline file says age",
    ),
}  # fmt: skip


@both
@pytest.mark.parametrize("change", CHANGES)
def test_c1_c2_c3_a_file_that_does_not_fit_changes_nothing_and_the_old_one_just_works(
    change: str, runs: Runs
) -> None:
    other, fact = CHANGES[change]
    world = World()
    feed(world, (1, 1), (2, 1))
    runs(works(world, file()), world.attempt())
    feed(world, (1, 9), (1, 3))
    before = durable(world)
    with pytest.raises(Misfit) as refused:
        runs(works(world, other), world.attempt("monday"))
    assert refused.value.fact == f"shard t: {fact}"
    assert "restore the recorded shape, and run again" in refused.value.hint
    assert durable(world) == before
    runs(works(world, file()), world.attempt("monday"))
    assert state(world) == [(1, 3), (2, 1)]


@both
def test_c5_a_file_that_does_not_fit_is_told_without_new_input(runs: Runs) -> None:
    world = World()
    feed(world, (1, 1))
    runs(works(world, file()), world.attempt())
    before = durable(world)
    for _ in range(2):
        with pytest.raises(Misfit, match="sequence_by is recorded as none"):
            runs(works(world, file(sequence_by="age")), world.attempt("monday"))
    assert durable(world) == before, "not even that the run owns nothing"


@both
def test_a_run_that_bound_before_its_file_was_changed_is_refused_before_it_stages(runs: Runs) -> None:
    world = World()
    feed(world, (1, 1))
    runs(works(world, file()), world.attempt())
    feed(world, (1, 9), (1, 3))
    reclock(works(world, file()), world.attempt("monday"))
    before = durable(world)
    with pytest.raises(Misfit, match="sequence_by is recorded as none"):
        runs(works(world, file(sequence_by="age")), world.attempt("monday"))
    assert durable(world) == before
    runs(works(world, file()), world.attempt("monday"))
    assert state(world) == [(1, 3)]


@both
def test_what_one_file_has_bound_is_staged_and_recorded_by_the_file_that_fits(runs: Runs) -> None:
    """Two files race for a pipeline that has nothing yet: the second one's transaction is bound by it, before
    the first one's shape is on record."""
    world = World()
    feed(world, (1, 1))
    reclock(works(world, file()), world.attempt("first"))
    feed(world, (1, 9), (1, 3))
    reclock(works(world, file(sequence_by="age")), world.attempt("second"))
    runs(works(world, file()), world.attempt("first"))
    with pytest.raises(Misfit):
        runs(works(world, file(sequence_by="age")), world.attempt("second"))
    runs(works(world, file()), world.attempt("third"))
    assert state(world) == [(1, 3)]
    assert [binding.configuration for binding in world.bindings] == [file(), file(sequence_by="age")]
    assert world.seals[1].configuration == file(), "a replay reads it by the file that it was sealed with"


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("call", ["log.declare", "seals.commit", "log.commit"])
def test_the_shape_is_on_record_before_the_seal_wherever_its_writer_dies(call: str, fault: Fault) -> None:
    world = World()
    feed(world, (1, 9), (1, 3))
    with pytest.raises(Crash):
        run(works(world, file(), Script().fault(call, fault)), world.attempt())
    rival = works(world, file(sequence_by="age"))
    if world.warehouse.shapes:
        with pytest.raises(Misfit):
            run(rival, world.attempt())
        run(works(world, file()), world.attempt())
        assert state(world) == [(1, 3)]
    else:
        run(rival, world.attempt())
        assert state(world) == [(1, 9)]
        with pytest.raises(Misfit):
            run(works(world, file()), world.attempt())


@both
def test_a_rival_with_another_file_cant_seal_what_the_log_cant_take(runs: Runs) -> None:
    """Two files give the shard one column as two types. Both fit when they stage; what is recorded first
    counts, though its writer dies before its seal."""
    world = World()
    feed(world, (1, 1))
    runs(works(world, file()), world.attempt())
    feed(world, (1, 3))
    text, number = file(more="STRING"), file(more="INT")

    def other_file() -> None:
        with pytest.raises(Crash):
            run(works(world, number, Script().fault("seals.commit", Fault.CRASH_BEFORE)), world.attempt())

    script = Script().before("log.declare", other_file)
    with pytest.raises(Misfit, match="column 'more' is recorded as INT, and the pipeline file says STRING"):
        runs(works(world, text, script), world.attempt("monday"))
    assert world.sealed_upper == 2
    runs(works(world, number), world.attempt("monday"))
    assert (state(world), world.seals[1].configuration) == ([(1, 3)], number)
    assert world.warehouse.shapes[T].columns == {**COLUMNS, "more": "INT"}


@both
def test_a_column_can_be_added_and_not_taken_out_again(runs: Runs) -> None:
    world = World()
    feed(world, (1, 1))
    runs(works(world, file()), world.attempt())
    feed(world, (1, 2))
    wider = works(world, file(more="INT"))
    assert fit_of(wider).added == {T: ("more",)}
    runs(wider, world.attempt())
    with pytest.raises(Misfit, match="'more' is recorded as INT, and the pipeline file does not declare it"):
        runs(works(world, file()), world.attempt())


@both
def test_c4_a_shard_that_is_renamed_while_it_has_rows_is_told_by_name(runs: Runs) -> None:
    world = World()
    feed(world, (1, 1))
    runs(works(world, file(name="customers")), world.attempt())
    feed(world, (2, 1))
    before = durable(world)
    renamed = works(world, file(name="clients"))
    with pytest.raises(Misfit) as refused:
        runs(renamed, world.attempt("monday"))
    fact = "shard customers has rows up to transaction 1, but is not in the pipeline file"
    assert refused.value.fact == fact
    assert "raise `generation`" in refused.value.hint
    assert fit_of(renamed).left_out == {"customers": 1}
    assert durable(world) == before
    # Said with a higher generation in charge, it is meant. It is told ever after, and refused no more.
    for generation in (1, 1, 2):
        announce_generation(works(world, file(generation=generation)))
        runs(works(world, file(name="clients", generation=generation)), world.attempt())
    told = fit_of(works(world, file(name="clients", generation=1)))
    assert (told.refused, told.left_out) == ((), {"customers": 1})
    assert (state(world, ShardId("customers")), state(world, ShardId("clients"))) == ([(1, 1)], [(2, 1)])


@both
def test_c4_a_shard_that_a_transaction_is_bound_for_is_told_though_it_has_no_rows_yet(runs: Runs) -> None:
    """Before the first seal, a file with a higher generation begins the pipeline, with all that is bound."""
    world = World()
    feed(world, (1, 1))
    reclock(works(world, file(name="customers")), world.attempt("monday"))
    feed(world, (2, 1))
    with pytest.raises(Misfit, match="shard customers has transaction 1 bound for it"):
        runs(works(world, file(name="clients")), world.attempt())
    runs(works(world, file(name="clients", generation=1)), world.attempt())
    assert (state(world, ShardId("customers")), state(world, ShardId("clients"))) == ([], [(1, 1), (2, 1)])


def test_c4_rows_that_are_sealed_and_not_yet_in_the_log_count() -> None:
    world = World()
    feed(world, (1, 1))
    with pytest.raises(Crash):
        run(works(world, file(), Script().fault("log.commit", Fault.CRASH_BEFORE)), world.attempt())
    assert fit_of(works(world, file(name="u"))).left_out == {T: 1}


def test_a_file_that_only_proves_needs_not_fit() -> None:
    """P10: what a run has bound is proven by the recorded settings."""
    world = World()
    feed(world, (1, 9), (1, 3))
    run(works(world, file()), world.attempt("monday"))
    report = run(works(world, file(sequence_by="age")), world.attempt("monday", cleared=True))
    assert [finding.passed for finding in report.findings] == [True]


def test_all_that_does_not_fit_is_told_at_once() -> None:
    declared = Shape({"id": "INT", "age": "BIGINT"}, (), "age")
    assert list(differences(recorded=Shape({**COLUMNS, "x": "DATE"}, ("id",), ""), declared=declared)) == [
        "column 'age' is recorded as INT, and the pipeline file says BIGINT",
        "column 'x' is recorded as DATE, and the pipeline file does not declare it",
        "keys is recorded as [id], and the pipeline file says none",
        "sequence_by is recorded as none, and the pipeline file says age",
    ]
    assert not list(differences(recorded=replace(RECORDED, keys=None, sequence_by=None), declared=RECORDED))


def test_a_key_may_become_nullable_and_not_the_other_way() -> None:
    """The rows that are there may have NULL in it, and would no longer be found."""
    strict, loose = (replace(RECORDED, not_null=frozenset(names)) for names in (["id"], []))
    assert not list(differences(recorded=strict, declared=loose))
    assert list(differences(recorded=loose, declared=strict)) == [
        "key 'id' is recorded as nullable, but the pipeline file says NOT NULL"
    ]
    assert (strict.widened(loose), loose.widened(strict)) == (loose, loose)
    assert not list(differences(recorded=RECORDED, declared=strict)), "an older log doesn't say"


def test_the_seals_own_decision_takes_nothing_that_is_not_on_record() -> None:
    parts = ShardParts((Part("p", 1, 1),), Digest.of([1]))
    staged = Staged(Txn(1), World().attempt().token, Digest.of([1]), {T: parts}, "memory")
    seal = seal_of(staged, generation=0, held={})
    head = Head(0, {UPPER: 1})

    def decided(recorded: Shape | None, declared: Shape) -> object:
        found = {T: recorded} if recorded is not None else {}
        return decide_seal(
            head=head, found=None, seal=seal, past=Past(), recorded=found, declared={T: declared}
        )

    assert isinstance(decided(RECORDED, RECORDED), Put)
    with pytest.raises(Misfit, match="keys is recorded as"):
        decided(RECORDED, replace(RECORDED, keys=("age",)))
    loose = replace(RECORDED, not_null=frozenset())
    for recorded in (
        None,
        replace(RECORDED, columns={"id": "INT"}),
        replace(loose, not_null=frozenset({"id"})),
    ):
        with pytest.raises(Determinate, match="the shape of shard t is not recorded yet"):
            decided(recorded, loose)


def test_a_writer_of_an_older_generation_puts_nothing_on_record() -> None:
    world = World()
    feed(world, (1, 1))
    old = works(world, file())
    reclock(old, world.attempt("old"))
    announce_generation(works(world, file(generation=1)))
    with pytest.raises(Fenced):
        run(old, world.attempt("old"))
    assert world.warehouse.shapes == {}
