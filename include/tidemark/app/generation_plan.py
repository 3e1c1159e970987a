"""What a new generation would change, and what it takes: the pipeline file beside the settings in charge."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidemark.app.deployment import Deployment
from tidemark.config import PipelineConfig
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import TXN_FIRST, ShardId, Txn
from tidemark.core.reading import consumer_of
from tidemark.core.seal import Decision, Seal
from tidemark.core.shape import Shape, misfit, replaced_in
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
    replaced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The shards that get another key, type or order, each with what changes. They are begun anew, and their
    consumers stop."""
    stops: tuple[str, ...] = ()
    """The consumers that stop at the promotion until they agree, as `consumer/shard`."""

    def require_agreed(self, replaces: Sequence[str]) -> None:
        """`InvalidUsage` unless exactly the shards that are replaced were named."""
        other = sorted(set(replaces) - set(self.replaced))
        missing = sorted(set(self.replaced) - set(replaces))
        if other:
            raise InvalidUsage(
                f"shard {', '.join(other)} would not be replaced",
                hint="`tidemark generation plan PIPELINE` names those that would",
            )
        if missing:
            changes = "; ".join(f"{shard}: {', '.join(self.replaced[shard])}" for shard in missing)
            stops = f"; consumers {', '.join(self.stops)} stop until they agree" if self.stops else ""
            options = " ".join(f"--replace {shard}" for shard in missing)
            raise InvalidUsage(
                f"generation {self.generation} replaces shard {changes}{stops}",
                hint=f"agree to it with {options}, or give the shard another name",
            )

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


def plan(
    deployment: Deployment,
    *,
    file: PipelineConfig | None = None,
    from_now: bool = False,
    is_range: bool = False,
) -> Plan:
    """Compare a configuration, the pipeline file's by default, with the one in charge. Changes nothing and
    starts no Spark. `is_range` reads only some of the transactions with it."""
    file = file if file is not None else deployment.file
    control = deployment.fresh_control()
    known = replace(deployment.unchecked, control=control)
    recorded = deployment.declared
    upper = control.seals.head().upper
    seals = control.seals.read(TXN_FIRST, upper)
    gone = {} if from_now else _gone(known, upper)
    shards, replaced, refused = _shards(deployment, file, is_whole=not (from_now or is_range))
    if file.generation <= recorded.generation:
        refused.insert(
            0,
            f"the file has generation {file.generation}, and {recorded.generation} is in charge:"
            f" set `generation: {recorded.generation + 1}`",
        )
    if upper == TXN_FIRST:
        refused.append("the pipeline has no transactions: run it, and it begins with this file")
    for shard in shards:
        lacking = [seal.txn for seal in seals if shard in seal.shards and gone.get(seal.txn)]
        if lacking:
            shards[shard] += f"; its input is gone for {named(lacking)}"
    refused += _why_gone(gone)
    ends = [] if from_now else list(replayable(known, at_ends=1).values())
    until = [one.until_seconds for one in ends if one.until_seconds is not None]
    consumers = _consumers(control)
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
        consumers=tuple(consumers),
        refused=tuple(refused),
        started=there.generation if there is not None else None,
        caveat=next((one.caveat for one in ends if one.caveat), ""),
        replaced={str(shard): changes for shard, changes in replaced.items()},
        stops=tuple(name for name, shard in consumers.items() if shard in replaced),
    )


def _decided(seals: Sequence[Seal]) -> dict[str, int]:
    """How many transactions were decided otherwise than by their gate."""
    found = Counter(str(seal.decision) for seal in seals if seal.decision is not Decision.COMMITTED)
    return {str(kind): found[kind] for kind in Decision if kind in found}


def _why_gone(gone: Mapping[Txn, str]) -> list[str]:
    lost = [txn for txn, why in gone.items() if why]
    if not lost:
        return []
    more = f" (and that of {len(lost) - 1:,} more)" if len(lost) > 1 else ""
    return [
        f"the input of transaction {lost[0]} is gone{more}: {gone[lost[0]]};"
        " with --from-now the tables stay as they are"
    ]


def _consumers(control: Control) -> dict[str, ShardId]:
    """The consumers, as `consumer/shard`, each with its shard."""
    leases = [one for one in Leases(control.leases).latest() if one.is_kept]
    return {one.name: consumer[1] for one in leases if (consumer := consumer_of(one)) is not None}


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


def _shards(
    deployment: Deployment, file: PipelineConfig, *, is_whole: bool
) -> tuple[dict[str, str], dict[ShardId, tuple[str, ...]], list[str]]:
    """What becomes of each shard, those that are replaced, and what a promotion can't do. A shard is replaced
    only by a candidate that reads its whole input with the new settings."""
    control, declared = deployment.fresh_control(), file.shapes
    before = {ShardId(shard.name) for shard in deployment.declared.shards}
    fates: dict[str, str] = {}
    refused: list[str] = []
    replaced: dict[ShardId, tuple[str, ...]] = {}
    for shard, shape in declared.items():
        recorded = control.log(shard).shape()
        found = misfit(shard, recorded=recorded, declared=shape)
        changes = replaced_in(recorded=recorded, declared=shape) if found and recorded else ()
        why = _why_refused(shape, changes, is_whole=is_whole) or _unlike(deployment.declared, file, shard)
        if changes and not why:
            replaced[shard] = changes
            fates[shard] = f"replaced by one with {', '.join(changes)}"
        elif found is not None:
            fates[shard] = "refused"
            refused.append(f"{found.fact}: {why}")
        elif shard not in before:
            fates[shard] = NEW
        else:
            fates[shard] = CORRECTED
    for shard in before - set(declared):
        fates[shard] = "left out: its tables stay as they are"
    ours, theirs = deployment.declared, file
    if ours.source.type != theirs.source.type or ours.source_location != theirs.source_location:
        refused.append("the source is another one: its input is not that of the recorded transactions")
    return fates, replaced, refused


def _why_refused(shape: Shape, changes: Sequence[str], *, is_whole: bool) -> str:
    """Why a shard that does not fit its log is not replaced; empty if it may be."""
    if not changes:
        return "only another key, type or order replaces a shard; give it a new name"
    if shape.grows:
        return "a shard that gets the columns of its records is not replaced; give it a new name"
    if not is_whole:
        return "a shard is replaced only where all its input is read again, without --from, --to, --from-now"
    return ""


def _unlike(before: PipelineConfig, after: PipelineConfig, shard: ShardId) -> str:
    """Why two configurations of a shard are too unlike to read its input again with the other one; empty if
    they are not.

    A database sends deletes with its own key only, and a table that is read anew begins with the keys that
    the shard has. What people have set the watermark to counts the sequence of its time."""
    known = [one for config in (before, after) for one in config.shards if one.name == shard]
    if len(known) < 2:
        return ""
    if after.source.type == "postgres" and known[0].keys != known[1].keys:
        return "captured changes have the keys that they were captured with; give the shard a new name"
    kinds = [{c.name: c.type.ddl for c in one.columns}.get(str(one.sequence_by)) for one in known]
    same = known[0].sequence_by == known[1].sequence_by and kinds[0] == kinds[1]
    if same or any(one.lateness is None for one in known):
        return ""
    return "its lateness counts the old sequence_by, so it is not replaced; give it a new name"
