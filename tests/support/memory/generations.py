"""Generations in memory: configurations that read the same records differently, candidates with a warehouse
of their own, and the difference between two of them by the core's own fold.

The rules of a configuration stand in its text: `times` multiplies values, `without` drops keys, `rename`
sends a table's records to another, all only for the tables `of`; `hold_above` and `fail_above` are
expectations. `half`, `text` and `ordered` are another key, type and order; a configuration that names one of
them declares shapes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from tests.support.memory.control import MemoryChapter, MemoryControl, MemoryWarehouse
from tests.support.memory.fold import Change, Position, fold, visible
from tests.support.memory.ledger import Chaos
from tests.support.memory.plane import ENGINE, Files, MemoryPlane, digest_of
from tests.support.memory.source import MemorySourceView, SourceRecord
from tests.support.memory.world import A, B, World
from tidemark.core.binding import Binding, Configuration
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.generation import Candidate, Correction, PromotionOpen, Superseded
from tidemark.core.ids import TXN_FIRST, TXN_NONE, ShardId, Txn, WriterToken
from tidemark.core.ledger import CommitOutcome, Head, Put
from tidemark.core.seal import CORRECTION, Fenced, Opinion, ShardParts, Staged
from tidemark.core.shape import Shape, Shapes
from tidemark.pipeline.candidates import (
    abort,
    await_promotion,
    candidate_of,
    configuration_in_charge,
    start,
)
from tidemark.pipeline.context import Attempt, Pipeline, watermark_below
from tidemark.pipeline.generation import Recorded, Shadow, follow
from tidemark.pipeline.listing import readable_upper
from tidemark.pipeline.promotion import Promotion, promote
from tidemark.pipeline.run import RunReport, run

SHARDS = (A, B)


def settings(generation: int, **rules: Any) -> Configuration:
    return Configuration.of(json.dumps({"generation": generation, **rules}, sort_keys=True))


@lru_cache(maxsize=1_000)
def rules_of(text: str) -> Mapping[str, Any]:
    return json.loads(text)  # type: ignore[no-any-return]


def shapes_in(configuration: Configuration) -> Shapes:
    """The shapes that a configuration declares."""
    rules = rules_of(configuration.text)
    if not {"half", "text", "ordered"} & rules.keys():
        return {}

    def shape(shard: ShardId) -> Shape:
        here = rules if shard in rules.get("of", SHARDS) else {}
        key = "half" if here.get("half") else "k"
        columns = {"k": "INT", "half": "INT", "v": "STRING" if here.get("text") else "INT", "s": "INT"}
        return Shape(columns, (key,), "s" if here.get("ordered") else "", frozenset())

    return {shard: shape(shard) for shard in SHARDS}


def half(key: Any) -> Any:
    """A coarser key: several keys become one."""
    return key // 2 if isinstance(key, int) else str(key)[:1]


def decoded(configuration: Configuration, record: SourceRecord) -> SourceRecord | None:
    """A record as a configuration reads it; None where it is not taken."""
    rules = rules_of(configuration.text)
    if record.table not in rules.get("of", SHARDS):
        return record
    if record.key[0] in rules.get("without", ()):
        return None
    if isinstance(record.sequence, int) and record.sequence > rules.get("at_most", record.sequence):
        return None
    value: Any = record.value
    if rules.get("text") and value is not None:
        value = str(value)
    return replace(
        record,
        table=rules.get("rename", {}).get(record.table, record.table),
        key=(half(record.key[0]),) if rules.get("half") else record.key,
        sequence=record.sequence if rules.get("ordered", True) else None,
        value=value * rules["times"] if value is not None and "times" in rules else value,
    )


class DecodingPlane(MemoryPlane):
    """Reads records by the configuration of their binding. With the rule `lateness` it has a watermark. Its
    engine may add something to each value, as no rule says."""

    control: MemoryControl
    engine_adds = 0

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        staged = super().stage(binding, token)
        if "lateness" not in rules_of(binding.configuration.text):
            return staged
        base = watermark_below(self.control, binding.txn)
        taken = [self.decode(binding, record) for _, record in self._source.records(binding)]
        known = [one.sequence for one in taken if one is not None]
        numbers = [one for one in (base, *known) if isinstance(one, int)]
        return replace(staged, base=base, watermark=max(numbers))

    def decode(self, binding: Binding, record: SourceRecord) -> SourceRecord | None:
        found = decoded(binding.configuration, record)
        if found is None or not isinstance(found.value, int):
            return found
        return replace(found, value=found.value + self.engine_adds)


class RuleGate:
    """Expectations that a configuration's text declares."""

    def __init__(self, files: Files, configuration: Configuration) -> None:
        self._files, self._rules = files, rules_of(configuration.text)

    def opinion(self, staged: Staged) -> Opinion:
        held: dict[ShardId, str] = {}
        failed: list[str] = []
        for shard, added in staged.shards.items():
            rows = [row for part in added.parts for row in self._files.get(part.path, ())]
            highest = max((row.value for row in rows if isinstance(row.value, int)), default=0)
            if highest > self._rules.get("hold_above", highest):
                held[shard] = f"{highest} is too much"
            if highest > self._rules.get("fail_above", highest):
                failed.append(f"{shard}: {highest} is too much")
        return Opinion(tuple(failed), held)


class TimedBindings(MemoryChapter[Binding]):
    """Bindings that know when they were put."""

    def __init__(self, control: MemoryControl, world: GenerationWorld) -> None:
        super().__init__(control.history, "bindings")
        self._world = world

    def commit(self, head: Head, put: Put[Binding, Any]) -> CommitOutcome:
        for record in put.records:
            self._world.bound_at[record.number] = self._world.now_seconds
        return super().commit(head, put)

    def written_at(self, number: int) -> datetime | None:
        return datetime.fromtimestamp(self._world.bound_at[number], UTC)


class MemoryCorrector:
    """The difference of two generations, by the core's own fold over the rows of their logs."""

    engine = ENGINE

    def __init__(self, live: Pipeline, files: Files, shadow: Pipeline, shadow_files: Files) -> None:
        self._live, self._files = live, files
        self._shadow, self._shadow_files = shadow, shadow_files
        self.watermarks: list[int | None] = []
        self.compared: tuple[ShardId, ...] = ()

    def settings(self, configuration: Configuration, shard: ShardId) -> str | None:
        """The rule `folds`: no fold depends on another rule, so all else must show in the digests."""
        return str(rules_of(configuration.text).get("folds", {}).get(shard, ""))

    def check(self, shards: Sequence[ShardId], *, upper: Txn, replaced: Collection[ShardId] = ()) -> None:
        """It reads logs alone."""

    def correct(
        self,
        shards: Sequence[ShardId],
        *,
        txn: Txn,
        token: WriterToken,
        watermark: int | None,
        replaced: Collection[ShardId] = (),
    ) -> dict[ShardId, Correction]:
        self.watermarks.append(watermark)
        self.compared = tuple(shards)
        return {
            shard: (
                self.whole(shard, txn=txn, token=token)
                if shard in replaced
                else self.stage(shard, self.difference(shard, upper=txn), txn=txn, token=token)
            )
            for shard in shards
        }

    def whole(self, shard: ShardId, *, txn: Txn, token: WriterToken) -> Correction:
        """All rows of the candidate, and the tombstones that a late record could lose to."""
        folded = fold(self._rows(self._shadow, self._shadow_files, shard, txn)).values()
        kept = [row for row in folded if not row.deletes or row.sequence is not None]
        return self._staged(
            shard,
            [
                replace(row, txn=txn, position=Position("", at), since=txn)
                for at, row in enumerate(sorted(kept, key=lambda one: repr(one.key)))
            ],
            txn=txn,
            token=token,
        )

    def difference(self, shard: ShardId, *, upper: Txn) -> dict[tuple[object, ...], object]:
        """The keys whose values differ below `upper`, with the new ones; None where they are to go."""
        before = visible(fold(self._rows(self._live, self._files, shard, upper)))
        after = visible(fold(self._rows(self._shadow, self._shadow_files, shard, upper)))
        return {
            key: after.get(key)
            for key in sorted({*before, *after}, key=repr)
            if before.get(key) != after.get(key)
        }

    def _rows(self, pipeline: Pipeline, files: Files, shard: ShardId, upper: Txn) -> list[Change]:
        log = pipeline.control.log(shard)
        log.head()  # The first look may show an old version, and a lack that is none; the second is fresh.
        log.head()
        if readable_upper(pipeline.control, shard) < upper:
            raise Determinate(f"shard {shard} can't be read as of transaction {upper - 1}")
        entries = log.read(TXN_FIRST, upper)
        try:
            return [row for entry in entries for part in entry.parts for row in files[part.path]]
        except KeyError as error:
            raise Determinate(f"part {error} is gone") from error

    def stage(
        self, shard: ShardId, found: Mapping[tuple[object, ...], object], *, txn: Txn, token: WriterToken
    ) -> Correction:
        if not found:
            return Correction()
        rows = [Change(key, value, txn, Position("", at)) for at, (key, value) in enumerate(found.items())]
        return self._staged(shard, rows, txn=txn, token=token)

    def _staged(self, shard: ShardId, known: Sequence[Change], *, txn: Txn, token: WriterToken) -> Correction:
        rows = tuple(known)
        if not rows:
            return Correction()
        plane: Any = self._live.plane
        part = plane._write(f"{shard}/{txn}/{token}/correction", rows)
        deletes = sum(row.deletes for row in rows)
        return Correction(ShardParts((part,), digest_of(rows)), len(rows) - deletes, deletes)


class GenerationWorld(World):
    """A world whose configuration in charge is the one in the history, and its candidates' shadow folders."""

    def __init__(self, *, records_max: int = 1_000_000, **rules: Any) -> None:
        super().__init__(records_max=records_max)
        self.first = settings(0, **rules)
        self.shadows: dict[str, tuple[MemoryWarehouse, Files]] = {}
        self.bound_at: dict[int, float] = {}
        self.now_seconds = 0.0
        self.engine_adds = 0
        """What pipelines that are opened from now on add to each value."""

    def made(
        self, warehouse: MemoryWarehouse, files: Files, configuration: Configuration, chaos: Chaos | None
    ) -> Pipeline:
        control = MemoryControl(warehouse, chaos)
        control.bindings = TimedBindings(control, self) if warehouse is self.warehouse else control.bindings
        plane = DecodingPlane(self.source, files, chaos)
        plane.control, plane.engine_adds = MemoryControl(warehouse), self.engine_adds
        return Pipeline(
            control,
            MemorySourceView(self.source, chaos),
            plane,
            configuration,
            configuration.generation,
            RuleGate(files, configuration),
            shapes_in,
        )

    def opened(self, chaos: Chaos | None = None) -> Pipeline:
        """The pipeline with the configuration in charge."""
        found = configuration_in_charge(MemoryControl(self.warehouse, chaos)) or self.first
        return self.made(self.warehouse, self.files, found, chaos)

    def pair(self, candidate: Candidate, chaos: Chaos | None = None) -> tuple[Shadow, MemoryCorrector]:
        warehouse, files = self.shadows.setdefault(candidate.folder, (MemoryWarehouse(), {}))
        shadow = self.made(warehouse, files, candidate.configuration, chaos)
        pair = Shadow(
            candidate,
            self.opened(chaos),
            replace(shadow, source=Recorded(shadow.source)),
            self.made(self.warehouse, self.files, candidate.configuration, chaos),
        )
        return pair, MemoryCorrector(pair.live, self.files, pair.shadow, files)

    # What a command does.

    def run(self, chaos: Chaos | None = None, pipeline: Pipeline | None = None) -> RunReport:
        """A whole run, opened again where another generation has taken over, as a command does it."""
        attempt = self.attempt()
        pipeline = pipeline or self.opened(chaos)
        while True:
            try:
                return run(pipeline, attempt)
            except PromotionOpen as found:
                await_promotion(pipeline, self.attempt(), found.binding, clock=self.clock, sleep=self.sleep)
            except (Superseded, Fenced):
                pipeline = self.opened(chaos)

    def clock(self) -> float:
        return self.now_seconds

    def sleep(self, seconds: float) -> None:
        self.now_seconds += seconds

    def start(
        self, configuration: Configuration, chaos: Chaos | None = None, *, token: str = "", **known: Any
    ) -> Candidate:
        known = {"since": TXN_FIRST, "until": Txn(0), "reason": "other rules", **known}
        token = WriterToken(token or f"start{next(self._numbers)}")
        new = Candidate(1, 1, token, configuration, **known)
        return start(MemoryControl(self.warehouse, chaos), new)

    def rollback(self, chaos: Chaos | None = None, *, replaces: Sequence[ShardId] = ()) -> Candidate:
        """Begin a candidate that takes back the last promotion, as a command does it."""
        control = MemoryControl(self.warehouse, chaos)
        generation = control.seals.head().generation
        last = Txn(control.seals.mark(CORRECTION))
        if last == TXN_NONE:
            raise InvalidUsage("no generation was promoted")  # An old version of the history says so.
        before = configuration_in_charge(control, below=last)
        assert before is not None
        rules = {**rules_of(before.text), "generation": generation + 1}
        return self.start(settings(**rules), chaos, undoes=generation, replaces=tuple(replaces))

    def follow(self, candidate: Candidate, chaos: Chaos | None = None, **known: Any) -> list[int]:
        pair, _ = self.pair(candidate, chaos)
        return [one.txn for one in follow(pair, self.attempt(), **known)]

    def promote(
        self,
        candidate: Candidate,
        chaos: Chaos | None = None,
        *,
        attempt: Attempt | None = None,
        **known: Any,
    ) -> Promotion:
        pair, corrector = self.pair(candidate, chaos)
        return promote(pair, attempt or self.attempt(), corrector, SHARDS, **known)

    def abort(self, candidate: Candidate, chaos: Chaos | None = None, *, token: str = "") -> Candidate:
        """End a candidate and remove its tables."""
        token = WriterToken(token or f"abort{next(self._numbers)}")
        control = MemoryControl(self.warehouse, chaos)
        ended = abort(control, candidate, token=token, reason="not needed")
        self.clean()
        return ended

    def clean(self) -> None:
        there = candidate_of(MemoryControl(self.warehouse))
        for folder in [one for one in self.shadows if there is None or one != there.folder]:
            del self.shadows[folder]

    def replaced(self, configuration: Configuration, **known: Any) -> Promotion:
        """A candidate from its start to its promotion."""
        return self.promote(self.start(configuration, **known))

    # What is durable now.

    @property
    def generation(self) -> int:
        return self.warehouse.history.head(self.warehouse.history.version).generation

    @property
    def candidate(self) -> Candidate | None:
        return candidate_of(MemoryControl(self.warehouse))

    def recomputed(
        self, configuration: Configuration, shard: ShardId = A, *, without: Sequence[int] = ()
    ) -> dict[object, object]:
        """What a configuration makes of all that is bound, by a loop over the source."""
        rows: dict[object, object] = {}
        for binding in self.bindings:
            for _, record in self.source.records(binding) if binding.txn not in without else ():
                found = decoded(configuration, record)
                if found is not None and found.table == shard:
                    rows[found.key] = found.value
        return {key: value for key, value in rows.items() if value is not None}
