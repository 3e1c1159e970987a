"""Consumers: named readers that get every change of a shard once, in order, across restarts.

    shop = tidemark.load_pipeline("pipelines/shop.yaml")

    with tidemark.Consumer(shop, "orders", "billing") as billing:
        for batch in billing.listen():
            batch.frame.write.format("delta").options(**batch.once).mode("append").save(target)

A batch is a range of whole transactions as a DataFrame: the shard's columns, `_txn`, `_op` (`U` upsert, `D`
delete) and the position. Requesting the next batch acknowledges the previous one; only then does the
consumer's frontier advance. After a crash, an error or a `break`, the consumer gets the unacknowledged batch
again, with the same end. A target that stores `batch.once` with its rows therefore has each change exactly
once; any other effect happens at least once.

One process at a time reads for a consumer. A second process waits until the first releases the lease, or
stops renewing it and so loses it (`LeaseLost`). Data that can't be read raises `Frozen`.

`consumers_of` reports the consumers of a pipeline from its ledgers, for the command and the pages in Airflow.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tidemark.app.deployment import Deployment
from tidemark.app.workspace import open_deployment
from tidemark.core.errors import InvalidUsage, InvariantViolation, TidemarkError
from tidemark.core.ids import TXN_FIRST, ShardId, Txn
from tidemark.core.lease import LEASE_MARKS, HolderToken, Lease, LeaseLost
from tidemark.core.log import Condition, Limits
from tidemark.core.reading import Frozen, consumer_of, effect_key, lease_name, open_freeze
from tidemark.delta.parts import DeltaParts
from tidemark.delta.records import leases_codec
from tidemark.pipeline.consume import Range, Reading, ShardReader
from tidemark.pipeline.history import LOOKS_MAX, replaced_at
from tidemark.pipeline.leases import TTL_SECONDS, Hold, Leases, take_hold
from tidemark.pipeline.listing import readable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.app.deployment import Deployment
    from tidemark.app.workspace import AnyPipeline
    from tidemark.config.shard import ShardConfig
    from tidemark.spark.state_table import StateSpec


POLL_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Batch:
    """The whole transactions in [lower, upper). `skipped` has the skipped ones, each with the reason."""

    lower: Txn
    upper: Txn
    frame: DataFrame
    once: Mapping[str, str]
    is_snapshot: bool = False
    skipped: Mapping[Txn, str] = field(default_factory=dict)

    @property
    def txn(self) -> Txn:
        """The last transaction of the batch: the key for idempotent effects."""
        return Txn(self.upper - 1)


def _check_conditions(shard: ShardConfig, conditions: Sequence[Condition]) -> None:
    """`InvalidUsage` if a condition is on a column that the shard doesn't have."""
    names = [*shard.columns.names, *([shard.error_column] if shard.error_column is not None else [])]
    for one in conditions:
        if one.column not in names:
            raise InvalidUsage(
                f"shard {shard.name!r} has no column {one.column!r}", hint=f"it has {', '.join(names)}"
            )


def leases_of(deployment: Deployment) -> Leases:
    """The pipeline's leases, through a separate ledger handle."""
    control = deployment.control
    return Leases(control.ledger("leases", leases_codec(), marks=LEASE_MARKS))


class Consumer:
    """A named reader of one shard. Use it in a `with`: it holds a lease and releases it at the end.

    :param pipeline: a result of `load_pipeline`, the pipeline's name, or the path of its file
    :param spark: the session that reads; without one the warm Spark is used, or one is started
    :param start: the first transaction of a new consumer; by default the first one in the log's retention
    :param accept: the transaction whose replacement of the shard this consumer agrees to (`ShardReplaced`)
    :param where: conditions `(column, comparison, value)`, all of which must hold for a row; files whose
        statistics rule that out are not opened. A delete is excluded only by a condition on its key
    :param limits: the maximum size of a batch
    :param ttl_seconds: how long a lease lasts after its holder has stopped renewing it
    :param wait_seconds: how long to wait for the lease at most; three times the ttl by default
    """

    def __init__(  # noqa: PLR0913 - all but three by name
        self,
        pipeline: AnyPipeline,
        shard: str,
        name: str,
        *,
        spark: SparkSession | None = None,
        start: int | None = None,
        accept: int | None = None,
        where: Sequence[tuple[str, str, Any]] = (),
        limits: Limits | None = None,
        ttl_seconds: float = TTL_SECONDS,
        wait_seconds: float | None = None,
    ) -> None:
        self._deployment = deployment = open_deployment(pipeline, spark=spark)
        self._shard = ShardId(deployment.config.shard(shard).name)
        self._name = name
        self._lease_name = lease_name(name, self._shard)
        self._start = None if start is None else Txn(start)
        self._accept = None if accept is None else Txn(accept)
        self._conditions = tuple(Condition(*one) for one in where)
        self._limits = limits or Limits()
        self._ttl_seconds = ttl_seconds
        self._wait_seconds = 3 * ttl_seconds if wait_seconds is None else wait_seconds
        self._stop = threading.Event()
        self._hold: Hold | None = None
        self._reader: ShardReader | None = None
        self._given: Range | None = None

    def __enter__(self) -> Consumer:
        from tidemark.app.deployment import new_token

        config = self._deployment.config
        _check_conditions(config.shard(self._shard), self._conditions)
        token = new_token()
        self._hold = take_hold(
            leases_of(self._deployment),
            self._lease_name,
            HolderToken(token),
            start=self._start,
            ttl_seconds=self._ttl_seconds,
            wait_seconds=self._wait_seconds,
            stop=self._stop,
        )
        if self._accept is not None and self._hold.lease.txn <= self._accept:
            self._accept_now(self._hold, self._accept)
        keys = () if config.envelope == "append" else tuple(config.shard(self._shard).keys)
        self._reader = ShardReader(
            self._deployment.pipeline,
            DeltaParts(self._deployment.root),
            self._hold,
            Reading(self._name, self._shard, token, self._conditions, keys, self._limits),
            name=config.name,
            stop=self._stop,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hold, reader, given = self._hold, self._reader, self._given
        self._hold = self._reader = self._given = None
        if hold is None or reader is None:
            return
        try:
            failed = isinstance(error, Exception) and not isinstance(error, TidemarkError)
            # A consumer that was asked to stop may fail in any way and has no time to examine the cause.
            if given is not None and failed and not self._stop.is_set():
                _examine(reader, given, error)
        finally:
            hold.release()

    def _accept_now(self, hold: Hold, txn: Txn) -> None:
        try:
            require_replaced(self._deployment, self._shard, txn)
            hold.accept(txn)
        except BaseException:
            self._hold = None
            hold.release()
            raise

    @cached_property
    def _spec(self) -> StateSpec:
        """The schema of the rows. Spark parses the declared types, so this starts Spark."""
        from tidemark.spark.state_table import specs_of

        self._deployment.session()
        return specs_of(self._deployment.config).of(self._shard)

    @property
    def frontier(self) -> Txn:
        """The first transaction that this consumer has not acknowledged."""
        return self._opened.frontier

    @property
    def is_new(self) -> bool:
        """Whether the consumer has acknowledged nothing and the shard has transactions for it. A snapshot may
        then come first."""
        if not self._held.is_new:
            return False
        found = readable(self._deployment.control, self._shard)
        return found.upper > self.frontier or bool(found.lost)

    @property
    def needs_snapshot(self) -> bool:
        """Whether a snapshot comes next: the shard was replaced, and this consumer agrees to that, or has had
        nothing."""
        return self._opened.needs_snapshot

    def snapshot(self, as_of: int | None = None) -> Batch:
        """The shard's rows as of a transaction (now, by default), as one batch; `listen` continues after it.

        A snapshot that was not acknowledged is delivered again as of the same transaction."""
        from tidemark.app.views import View, read
        from tidemark.spark.views import rows_as_changes

        self.delivered()
        given = self._opened.plan_snapshot(None if as_of is None else Txn(as_of))
        rows = read(self._deployment, self._shard, view=View.FRESH, as_of=given.txn)
        frame = rows_as_changes(rows, self._spec, as_of=given.txn, conditions=self._conditions)
        self._given = given
        return self._batch(given, frame, is_snapshot=True)

    def listen(self, *, follow: bool = False, poll_seconds: float = POLL_SECONDS) -> Iterator[Batch]:
        """The batches from the frontier to the end of the log; with `follow`, until `stop` is called."""
        begun = False
        while True:
            self.delivered()
            if self._stop.is_set():
                return
            begun = begun or not self._needs_snapshot()
            given = self._opened.next_range() if begun else None
            if given is None:
                if not follow:
                    return
                self._stop.wait(poll_seconds)
                continue
            from tidemark.spark.views import log_changes

            frame = log_changes(
                self._deployment.session(),
                self._spec,
                given.parts,
                lower=given.lower,
                upper=given.upper,
                conditions=self._conditions,
            )
            self._given = given
            yield self._batch(given, frame)

    def delivered(self) -> None:
        """Acknowledge the last batch durably. Requesting the next batch does this too."""
        if self._given is not None:
            self._opened.delivered(self._given)
            self._given = None

    def stop(self) -> None:
        """End `listen` before its next batch. May be called from another thread or a signal handler."""
        self._stop.set()

    @property
    def _opened(self) -> ShardReader:
        if self._reader is None:
            raise InvalidUsage(f"consumer {self._name!r} is not open", hint="use it in a `with`")
        return self._reader

    def _batch(self, given: Range, frame: DataFrame, *, is_snapshot: bool = False) -> Batch:
        app = effect_key(self._deployment.config.name, self._name, self._shard, epoch=given.epoch)
        once = {"txnAppId": app, "txnVersion": str(given.txn)}
        return Batch(given.lower, given.upper, frame, once, is_snapshot, given.skipped)

    @property
    def _held(self) -> Hold:
        if self._hold is None:
            raise InvalidUsage(f"consumer {self._name!r} is not open", hint="use it in a `with`")
        return self._hold

    def _needs_snapshot(self) -> bool:
        """Whether this is a new consumer of a log that has been truncated.

        Such a consumer has to take a snapshot first: `InvalidUsage` if there are transactions above its
        frontier, so that it could; True if there are none yet."""
        if self.frontier == TXN_FIRST or self._start is not None or not self._held.is_new:
            return False
        if self.is_new:
            raise InvalidUsage(
                f"transactions below {self.frontier} can no longer be read one by one",
                hint="call snapshot() first; listen() continues after it",
            )
        return True


def _examine(reader: ShardReader, given: Range, error: BaseException | None) -> None:
    """Raise `Frozen` or `LeaseLost` if a damaged part or a lost lease made the batch fail."""
    try:
        reader.examine(given)
    except (Frozen, LeaseLost) as blamed:
        raise blamed from error
    except TidemarkError as unknown:
        if error is not None:
            error.add_note(f"whether the batch's files are to blame could not be found out: {unknown}")


def require_replaced(deployment: Deployment, shard: ShardId, txn: Txn) -> None:
    """`InvalidUsage` unless this transaction is the last one that replaced the shard."""
    for _ in range(LOOKS_MAX):
        deployment.control.seals.head()
        replaced = replaced_at(deployment.control, shard)
        if replaced == txn:
            return
    last = f"transaction {replaced} did last" if replaced else "none did"
    raise InvalidUsage(f"transaction {txn} is not the one that replaced shard {shard!r}", hint=last)


def accept_replacement(deployment: Deployment, shard: str, consumer: str, txn: int) -> Lease:
    """Record that a consumer agrees to the replacement of its shard at a transaction."""
    name = ShardId(deployment.config.shard(shard).name)
    require_replaced(deployment, name, Txn(txn))
    return leases_of(deployment).accept(lease_name(consumer, name), Txn(txn))


# The status of consumers.


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A consumer's frontier, its lag in transactions (None if the log can't be read), the holder that reads
    for it now, and the reason if it is frozen, or stops at a transaction that replaced its shard."""

    consumer: str
    shard: str
    frontier: int
    lag: int | None
    reading: str
    frozen: str


def held_leases(deployment: Deployment) -> list[Lease]:
    """The leases that maintenance respects, the lowest transaction first."""
    held = [lease for lease in leases_of(deployment).latest() if lease.is_kept]
    return sorted(held, key=lambda one: (one.txn, one.name))


def consumers_of(deployment: Deployment) -> list[ConsumerStatus]:
    """The pipeline's consumers, from their leases."""
    found: list[ConsumerStatus] = []
    with suppress(InvariantViolation):  # A consumer below says what is lost.
        deployment.control.seals.head()
    for lease in held_leases(deployment):
        named = consumer_of(lease)
        if named is None:
            continue
        consumer, shard = named
        reading = lease.holder if lease.is_live else ""
        frozen = stopped_at(deployment, shard, lease) or frozen_at(deployment, consumer, shard, lease.txn)
        try:
            lag = max(0, readable(deployment.control, shard).upper - lease.txn)
        except InvariantViolation as error:
            lag, frozen = None, frozen or error.fact
        found.append(ConsumerStatus(consumer, shard, lease.txn, lag, reading, frozen))
    return sorted(found, key=lambda one: (one.shard, one.consumer))


def stopped_at(deployment: Deployment, shard: ShardId, lease: Lease) -> str:
    """The transaction that replaced the shard and that a consumer does not have, as text; empty if there is
    none."""
    replaced = replaced_at(deployment.control, shard)
    if replaced < lease.txn:
        return ""
    agreed = "it takes a snapshot next" if lease.accepted >= replaced else "it has not agreed to a snapshot"
    return f"transaction {replaced} replaced the shard: {agreed}"


def frozen_at(deployment: Deployment, consumer: str, shard: ShardId, txn: int) -> str:
    """Why a consumer is frozen at a transaction, from the journal; empty if it is not, or no longer."""
    journal = deployment.control.journal
    journal.head()
    found = open_freeze(journal.find(str(txn)), consumer=consumer, shard=shard)
    return f"{found['part'] or 'its listing'}: {found['why']}" if found is not None else ""
