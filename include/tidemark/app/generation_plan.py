"""What a new generation would change, and what it takes: the pipeline file beside the settings in charge."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tidemark.app.deployment import Deployment
from tidemark.config import PipelineConfig
from tidemark.core.ids import TXN_FIRST, ShardId, Txn
from tidemark.core.reading import CANDIDATE
from tidemark.core.seal import Decision, Seal
from tidemark.core.shape import misfit
from tidemark.core.text import amount, named, span
from tidemark.pipeline.candidates import candidate_of
from tidemark.pipeline.checkpoint import paused_shards
from tidemark.pipeline.context import Pipeline
from tidemark.pipeline.journal import times_of
from tidemark.pipeline.leases import Leases
from tidemark.pipeline.replay import replayable
from tidemark.ports.control import Control

TOO_SHORT: Final = "the input may expire before a candidate has read it: keep it longer at its source"

CORRECTED: Final = "is corrected where its rows differ"
NEW: Final = "new: gets its rows from the recorded input"
FROM_NOW: Final = {
    CORRECTED: "stays as it is; later input gets the new settings",
    NEW: "new: gets its rows from later input",
}
"""What becomes of shards where nothing is read again."""

READ: Final = (Decision.COMMITTED, Decision.ACCEPTED)
"""Decisions on transactions that a candidate reads again."""

NEWEST: Final = 100
"""So many transactions tell how long one takes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that two generations have different values for, as JSON; None where one lacks it."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a new generation would change, and what it takes.

    `shards` says for each shard what becomes of it; `refused` is why the generation can't be started.
    `bytes` is the size of the parts that the pipeline has made of these records, and `seconds` about how long
    it took, judged by the newest transactions; None if unknown. `gone` are the transactions whose input can't
    be read again, `until_seconds` is when the next input expires. `decided` counts the transactions by their
    decision. `caveat` is what may remove input sooner than the source says."""

    pipeline: str
    generation: int
    in_charge: int
    settings: tuple[Setting, ...]
    shards: Mapping[str, str]
    transactions: int
    records: int
    bytes: int
    seconds: float | None
    decided: Mapping[str, int]
    gone: Mapping[Txn, str]
    until_seconds: float | None
    paused: Mapping[str, Txn]
    consumers: tuple[str, ...]
    refused: tuple[str, ...]
    caveat: str = ""
    started: int | None = None
    """The generation of the candidate that is there already, whatever it was started with."""

    @property
    def effort(self) -> str:
        """What it takes, as a sentence."""
        if not self.transactions:
            return "nothing is read again"
        size = f"{amount(self.records, 'record')}, {self.bytes / 1e6:,.1f} MB of parts"
        took = f"; the pipeline took about {span(self.seconds)} for them" if self.seconds is not None else ""
        verb = "is" if self.transactions == 1 else "are"
        return f"{amount(self.transactions, 'transaction')} with {size}, {verb} read again{took}"

    @property
    def expires_first(self) -> bool:
        """Whether input may expire before a candidate has read it."""
        if self.until_seconds is None or self.seconds is None:
            return False
        return time.time() + self.seconds > self.until_seconds


def plan(deployment: Deployment, *, file: PipelineConfig | None = None, from_now: bool = False) -> Plan:
    """Compare a configuration, the pipeline file's by default, with the one in charge. Changes nothing and
    starts no Spark."""
    file = file if file is not None else deployment.file
    control = deployment.fresh_control()
    known = replace(deployment.unchecked, control=control)
    recorded = deployment.declared
    upper = control.seals.head().upper
    seals = control.seals.read(TXN_FIRST, upper)
    gone = {} if from_now else _gone(known, upper)
    shards, refused = _shards(deployment, file)
    if file.generation <= recorded.generation:
        refused.insert(
            0,
            f"the file has generation {file.generation}, and {recorded.generation} is in charge:"
            f" set `generation: {recorded.generation + 1}`",
        )
    if upper == TXN_FIRST:
        refused.append("the pipeline has no transactions: run it, and it begins with this file")
    lost = [txn for txn, why in gone.items() if why]
    for shard in shards:
        lacking = [seal.txn for seal in seals if shard in seal.shards and gone.get(seal.txn)]
        if lacking:
            shards[shard] += f"; its input is gone for {named(lacking)}"
    if lost:
        more = f" (and that of {len(lost) - 1:,} more)" if len(lost) > 1 else ""
        refused.append(
            f"the input of transaction {lost[0]} is gone{more}: {gone[lost[0]]};"
            " with --from-now the tables stay as they are"
        )
    ends = [] if from_now else list(replayable(known, at_ends=1).values())
    until = [one.until_seconds for one in ends if one.until_seconds is not None]
    leases = Leases(control.leases).latest()
    if from_now:
        shards = {shard: FROM_NOW.get(fate, fate) for shard, fate in shards.items()}
    there = candidate_of(control)
    return Plan(
        pipeline=file.name,
        generation=file.generation,
        in_charge=recorded.generation,
        settings=settings_between(recorded, file),
        shards=shards,
        transactions=0 if from_now else upper - 1,
        records=0 if from_now else sum(seal.source.count for seal in seals),
        bytes=0 if from_now else sum(map(_bytes_of, seals)),
        seconds=None if from_now else _seconds_for(control, seals),
        decided=_decided(seals) if not from_now else {},
        gone={txn: why for txn, why in gone.items() if why},
        until_seconds=min(until, default=None),
        paused={str(shard): waits.txn for shard, waits in paused_shards(known).items()},
        consumers=tuple(one.name for one in leases if one.is_kept and not one.name.startswith(CANDIDATE)),
        refused=tuple(refused),
        started=there.generation if there is not None else None,
        caveat=next((one.caveat for one in ends if one.caveat), ""),
    )


def _decided(seals: Sequence[Seal]) -> dict[str, int]:
    """How many transactions were decided otherwise than by their gate."""
    found = Counter(str(seal.decision) for seal in seals if seal.decision is not Decision.COMMITTED)
    return {str(kind): found[kind] for kind in Decision if kind in found}


def _bytes_of(seal: Seal) -> int:
    return sum(part.bytes for parts in seal.shards.values() for part in parts.parts)


def _seconds_for(control: Control, seals: Sequence[Seal]) -> float | None:
    """About how long the pipeline took for these transactions, if all took as long as the newest."""
    read = [seal.txn for seal in seals if seal.decision in READ]
    known = [seconds for txn in read[-NEWEST:] if (seconds := _seconds_of(control, txn)) is not None]
    return statistics.median(known) * len(read) if known else None


def _seconds_of(control: Control, txn: Txn) -> float | None:
    """How long the pipeline worked on a transaction: of several that were bound at once, each waits for those
    before it."""
    times, before = (times_of(control, Txn(one)) for one in (txn, txn - 1))
    if times.bound is None or times.sealed is None:
        return None
    began = max(times.bound, before.sealed) if before.sealed is not None else times.bound
    return (times.sealed - began).total_seconds()


def _gone(pipeline: Pipeline, upper: Txn) -> dict[Txn, str]:
    """Why input can't be read again, by transaction. Where the source can't be asked, it is asked when the
    transaction is read."""
    sealed = {seal.txn for seal in pipeline.control.seals.read(TXN_FIRST, upper) if seal.decision in READ}
    return {txn: one.gone for txn, one in replayable(pipeline).items() if txn in sealed}


def settings_between(before: PipelineConfig, after: PipelineConfig) -> tuple[Setting, ...]:
    old, new = (dict(_flat("", json.loads(one.canonical_json()))) for one in (before, after))
    names = sorted({*old, *new} - {"generation", "warehouse"})
    return tuple(
        Setting(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)
    )


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The leaves of a configuration, by their paths; members of a list by their `name`, if they have one."""
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _flat(f"{name}.{key}" if name else key, one)
    elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        for at, one in enumerate(value):
            yield from _flat(f"{name}[{one.get('name', at)}]", one)
    else:
        yield name, json.dumps(value, ensure_ascii=False)


def _shards(deployment: Deployment, file: PipelineConfig) -> tuple[dict[str, str], list[str]]:
    """What becomes of each shard, and what a promotion can't do."""
    control, declared = deployment.fresh_control(), file.shapes
    before = {ShardId(shard.name) for shard in deployment.declared.shards}
    fates: dict[str, str] = {}
    refused: list[str] = []
    for shard, shape in declared.items():
        found = misfit(shard, recorded=control.log(shard).shape(), declared=shape)
        if found is not None:
            fates[shard] = "refused"
            refused.append(
                f"{found.fact}: another type, key or order needs another shard; give it a new name"
            )
        elif shard not in before:
            fates[shard] = NEW
        else:
            fates[shard] = CORRECTED
    for shard in before - set(declared):
        fates[shard] = "left out: its tables stay as they are"
    ours, theirs = deployment.declared, file
    if ours.source.type != theirs.source.type or ours.source_location != theirs.source_location:
        refused.append("the source is another one: its input is not that of the recorded transactions")
    return fates, refused
