"""Reads of shards from Python: the state, the fresh view, or the log, at pinned versions.

    shop = tidemark.load_pipeline("pipelines/shop.yaml")
    rows = tidemark.read(shop, "orders", view="fresh")
    found = tidemark.read_together(shop)  # found.rows["orders"], found.rows["items"], both as of found.txn

A read is stable: versions are pinned before the first row is read, and a state that differs from its publish
is rejected (scenario M13). `read_together` reads several shards at one transaction, so the changes of a
transaction are visible in all of them or in none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tidemark.app.workspace import open_deployment
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import QUARANTINE, TXN_FIRST, TXN_NONE, ShardId, Txn, next_txn
from tidemark.core.lease import since_of
from tidemark.core.log import BeforeReplacement, Truncated, begins_at
from tidemark.core.publish import Published
from tidemark.pipeline.candidates import last_reread
from tidemark.pipeline.history import LOOKS_MAX, replaced_at
from tidemark.pipeline.listing import readable_upper
from tidemark.pipeline.publish import checked_record, published_as_of, published_together

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.app.deployment import Deployment
    from tidemark.app.workspace import AnyPipeline
    from tidemark.spark.state_table import StateSpec
    from tidemark.spark.views import Pins


class View(StrEnum):
    """The three ways to read a shard."""

    STATE = "state"
    FRESH = "fresh"
    LOG = "log"

    @classmethod
    def _missing_(cls, value: object) -> View:
        raise InvalidUsage(f"there is no view {value!r}", hint=f"use {', '.join(cls)}")


def read(
    pipeline: AnyPipeline,
    shard: str,
    *,
    view: View | str = View.FRESH,
    as_of: int | None = None,
    spark: SparkSession | None = None,
) -> DataFrame:
    """The shard's rows, as of a transaction or now.

    `state` is the last publish at or below `as_of`. `fresh` is exact at `as_of`. `log` has every change from
    `since` to `as_of`, with `_txn` and `_op`. `Truncated` if maintenance has removed the needed transactions.
    Without a `spark` session the warm Spark is used, or one is started.
    """
    view, deployment = View(view), open_deployment(pipeline, spark=spark)
    from tidemark.spark.state_table import specs_of
    from tidemark.spark.tables import no_rows
    from tidemark.spark.views import fresh, read_log, read_state

    name = ShardId(deployment.config.shard(shard).name)
    spec = specs_of(deployment.config).of(name)
    pins = _pins(deployment, name, as_of)
    base, upper = pins.base, pins.upper
    since = since_of(deployment.control.leases.head())
    lower = since if view is View.LOG else pins.lower
    if lower > upper or (lower < since and lower < upper and view is View.FRESH):
        raise Truncated(name, as_of=Txn(upper - 1), since=since)
    spark = deployment.session()
    if view is View.LOG:
        return read_log(spark, spec, pins, lower=since)
    if view is View.STATE and base is not None:
        return read_state(spark, spec, base)
    if view is View.STATE and pins.begins:
        raise Determinate(
            f"the state of shard {name!r} has no publish from transaction {pins.begins}, which replaced it,"
            f" to {upper - 1}",
            hint="publish it: `tidemark publish PIPELINE SHARD`; or read the fresh view",
        )
    if view is View.STATE:
        return no_rows(spark, spec.declared)
    return fresh(spark, spec, pins)


LOG_ROWS_MAX: Final = 1_000_000
"""So many rows are folded faster than Delta's reader lists the files of a state."""


def fresh_pins(deployment: Deployment, spec: StateSpec, *, as_of: Txn) -> Pins:
    """What to read for a shard's exact rows and tombstones as of a transaction.

    A log that reaches back to the first transaction and is short is folded whole: Delta's reader takes
    several jobs to list the files of a state, which is most of the time for a small one. But for a shard
    with `sequence_by`: its tables may have forgotten tombstones that its log still has."""
    from tidemark.spark.tables import log_files

    shard = ShardId(spec.name)
    pins, since = _pins(deployment, shard, as_of), since_of(deployment.control.leases.head())
    if pins.base is not None and since == TXN_FIRST and spec.rule.sequence_by is None:
        files = log_files(spec, lower=TXN_FIRST, upper=pins.upper, version=pins.log_version)
        if sum(file.part.rows for file in files) <= LOG_ROWS_MAX:
            return replace(pins, base=None)
    if pins.lower < min(since, pins.upper):
        raise Truncated(shard, as_of=as_of, since=since)
    return pins


def _pins(deployment: Deployment, name: ShardId, as_of: int | None) -> Pins:
    """What a read as of a transaction, or now, is pinned to."""
    from tidemark.spark.views import Pins

    log, control = deployment.control.log(name), deployment.control
    for _ in range(LOOKS_MAX):
        begins = begins_at(log.head())
        upper = readable_upper(control, name)
        if as_of is not None:
            if not TXN_NONE <= as_of < upper:
                raise InvalidUsage(
                    f"shard {name!r} can't be read as of transaction {as_of}", hint=f"it has 0 to {upper - 1}"
                )
            upper = next_txn(Txn(as_of))
        if upper <= begins:
            raise BeforeReplacement(name, as_of=Txn(upper - 1), begins=begins)
        base = _base(deployment, name, Txn(upper - 1))
        head = log.head()
        # Asked after the log is pinned: what replaces a log is sealed before the log has it.
        in_charge = control.seals.head().generation
        lacks = replaced_at(control, name) >= head.upper and deployment.config.generation == in_charge
        if begins_at(head) == begins and not lacks:
            known = base if base is not None and base.txn >= begins else None
            return Pins(known, head.version, upper, begins)
    raise Determinate(
        f"shard {name!r} is being replaced by transaction {replaced_at(control, name)}",
        hint="retry; if it stays so, run the pipeline, which appends that transaction",
    )


@dataclass(frozen=True, slots=True)
class Together:
    """The rows of several shards, by name, all as of one transaction."""

    txn: Txn
    rows: Mapping[str, DataFrame]


def read_together(
    pipeline: AnyPipeline,
    shards: Sequence[str] = (),
    *,
    view: View | str = View.FRESH,
    as_of: int | None = None,
    spark: SparkSession | None = None,
) -> Together:
    """These shards (all, by default) at one transaction: `as_of`, or the last one that is in all of them.

    States are published one by one, so `state` reads the last transaction, at or below `as_of`, at which a
    version of every state is exact. A shard that is paused at a transaction holds the others back."""
    view, deployment = View(view), open_deployment(pipeline, spark=spark)
    named = shards or deployment.shards
    names = tuple(ShardId(deployment.config.shard(shard).name) for shard in named)
    upper = min(readable_upper(deployment.control, name) for name in names)
    txn = Txn(upper - 1) if as_of is None else Txn(as_of)
    if not TXN_NONE <= txn < upper:
        raise InvalidUsage(
            f"shards {', '.join(names)} can't be read together as of transaction {as_of}",
            hint=f"all of them have 0 to {upper - 1}",
        )
    if view is View.STATE:
        txn = published_together(deployment.control, names, as_of=txn)
    rows: dict[str, DataFrame] = {name: read(deployment, name, view=view, as_of=txn) for name in names}
    if view is View.LOG:
        # Maintenance may have raised `since` between two reads; all frames start at the newest one.
        since = since_of(deployment.control.leases.head())
        rows = {name: frame.where(f"_txn >= {since}L") for name, frame in rows.items()}
    return Together(txn, rows)


def open_errors(pipeline: AnyPipeline, shard: str, *, spark: SparkSession | None = None) -> DataFrame:
    """The shard's quarantined records whose key has had no good row since, unmasked.

    Exact at the last transaction that is readable in both logs. Records without a readable key are left out,
    because they belong to no key (scenario E2)."""
    from tidemark.spark.state_table import specs_of
    from tidemark.spark.views import ErrorPins
    from tidemark.spark.views import open_errors as still_open

    deployment = open_deployment(pipeline, spark=spark)
    name = ShardId(deployment.config.shard(shard).name)
    upper = min(readable_upper(deployment.control, name), readable_upper(deployment.control, QUARANTINE))
    quarantine_version, version = (deployment.control.log(one).head().version for one in (QUARANTINE, name))
    pins = ErrorPins(quarantine_version, version, upper, last_reread(deployment.control))
    spec = specs_of(deployment.config).of(name)
    return still_open(deployment.session(), spec, deployment.shard_uri(QUARANTINE), pins)


def read_quarantine(deployment: Deployment, *, as_of: int) -> DataFrame:
    """The records that were quarantined up to a transaction, unmasked, in the columns of the log."""
    from tidemark.spark.state_table import specs_of
    from tidemark.spark.views import ErrorPins, quarantined

    version = deployment.control.log(QUARANTINE).head().version
    pins = ErrorPins(version, version, next_txn(Txn(as_of)))
    spec = next(iter(specs_of(deployment.config).shards.values()))
    return quarantined(deployment.session(), spec, deployment.shard_uri(QUARANTINE), pins)


def _base(deployment: Deployment, shard: ShardId, as_of: Txn) -> Published | None:
    """The publish that a read starts from, after a check that the state is as published; None without one."""
    last = checked_record(deployment.control, deployment.state(), shard)
    if last is None or last.txn <= as_of:
        return last
    records = deployment.control.publishes(shard)
    records.head()
    return published_as_of(records, as_of=as_of)
