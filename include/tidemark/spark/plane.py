"""The data plane on Spark: one bound transaction in, staged part files and digests out.

One shard costs one job: read, decode, fold, hash and write in a single pass over the input. Several shards
share one read, which is persisted for the transaction, and run in parallel. The pass counts bad records;
only if there are some does a second job write them to quarantine, and it must find exactly those that were
counted.

The plane has its own sessions, children of the given one, so its settings (block size, ANSI, time zone,
strict parsing, no adaptive re-planning) neither depend on the caller's nor change them. They are set once,
so several threads may use one plane: the next transaction can be staged while the last one is read back.
The sessions may be on a Spark Connect server.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from tidemark.config import PipelineConfig
from tidemark.config.load import with_new_columns
from tidemark.config.shard import ShardConfig
from tidemark.core.binding import Binding, Configuration
from tidemark.core.checksum import ENCODING, SOURCE, Digest, Digests, shard_endpoint
from tidemark.core.errors import InvalidUsage
from tidemark.core.generation import Correction
from tidemark.core.ids import QUARANTINE, TXN_NONE, ShardId, Txn, WriterToken
from tidemark.core.replay import Difference
from tidemark.core.seal import Part, Staged
from tidemark.core.shape import NewColumns
from tidemark.spark import documents as doc
from tidemark.spark.columns import literal, log_schema
from tidemark.spark.correction import SIDES, Comparison, Dead, compare, correct, correct_quarantine
from tidemark.spark.decode import SHARD, Rules, hashed_columns, route, shards_of
from tidemark.spark.failures import JOB_ERRORS, translated
from tidemark.spark.fold import (
    WRITE_CONFS,
    Sink,
    Totals,
    fold_shard,
    folded_rows,
    quarantine,
    refuse_if_all_ahead,
)
from tidemark.spark.inputs import FilesInput, Input, input_of
from tidemark.spark.new_columns import columns_of, columns_of_files, columns_of_records, growing_shards
from tidemark.spark.parts import PartStore
from tidemark.spark.read import READ_CONFS
from tidemark.spark.sample import Sampler
from tidemark.spark.session import Sessions, cores_of, in_parallel, persisted
from tidemark.spark.state_table import StateSpec, spec_of
from tidemark.spark.tables import LogRows

_CONFS: Final = {
    **READ_CONFS,
    **WRITE_CONFS,
    # A fold has one shuffle and no join: there is nothing to re-plan, and each stage would be its own job.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.json.enablePartialResults": "true",
    "spark.sql.json.enableExactStringParsing": "true",
    # The optimization would drop unused columns, and with them the errors about their values.
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",
    "spark.sql.optimizer.enableCsvExpressionOptimization": "false",
    # Large frames set their number of partitions explicitly; all others have a handful of rows.
    "spark.sql.shuffle.partitions": "1",
    # The old default, INT96, has no statistics, and other engines have dropped it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
}

RULES: Final = 4
"""The version of the rules that turn records into rows and quarantined records. Raise it with every change
that gives another result for the same input: a replay of a transaction that was sealed under older rules
is not comparable. 2: a record whose `sequence_by` is NULL is quarantined, and so is a PostgreSQL array with
explicit bounds. 3: reasons show JSON text in quotes. 4: an object with one name twice is bad."""


class SparkPlane:
    """The `DataPlane` port on a Spark session. It is thread-safe.

    `watermark_before` returns the watermark of the seals before a transaction; it is called only if a shard
    declares a lateness.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: PipelineConfig,
        *,
        warehouse: str | None = None,
        watermark_before: Callable[[Txn], int | None] | None = None,
        confs: Mapping[str, str] | None = None,
    ) -> None:
        self._sessions = Sessions(spark, {**_CONFS, **(confs or {})})
        self._parts_fixed = int((confs or {}).get("spark.sql.shuffle.partitions", 0))
        self._spark = spark
        self._config = config
        self._store = PartStore(f"{warehouse or config.tables_warehouse}/{config.name}")
        self.log_rows = LogRows(self._sessions, config, self._store)
        self._watermark_before = watermark_before or _no_watermark
        self.engine = engine_of(spark)
        _check(config)

    def close(self) -> None:
        """Close the plane's own sessions; the given one stays open."""
        self._sessions.close()

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        """Write the transaction's parts under the token. A failed attempt leaves nothing behind."""
        # A token's earlier parts may be sealed; the clean-up below must never reach them.
        if self._store.has(binding.txn, token):
            raise InvalidUsage(
                f"token {token!r} has already staged transaction {binding.txn}", hint="use a new token"
            )
        try:
            return self._run(binding, Sink(self._store, binding.txn, token))
        except BaseException as error:
            self._store.discard(binding.txn, token)
            new = self._new_columns(binding) if isinstance(error, InvalidUsage) else {}
            if new:
                raise NewColumns(binding.txn, new) from None
            raise

    def replay(self, binding: Binding) -> Staged:
        """The result of staging now, without writing anything."""
        return self._run(binding, Sink(None, binding.txn, WriterToken("")))

    def read_back(self, staged: Staged, *, moved: Mapping[ShardId, Sequence[Part]] | None = None) -> Digests:
        """The digests of the transaction's rows as they are on disk, in one job. A lost file has no rows; a
        shard with an unreadable file has none at all."""
        merged = dict(moved or {})
        shards = {shard: added.parts for shard, added in staged.shards.items()} | merged
        found = self.log_rows.digests(staged.txn, shards, merged=merged)
        counted = {shard_endpoint(shard): found.get(shard, Digest()) for shard in shards}
        return {SOURCE: staged.source, **counted}

    def rows(self, shard: ShardId, parts: Sequence[Part]) -> DataFrame:
        """The rows of a shard's parts, in the log's columns."""
        columns = log_schema(doc.declared_schema(self._config.shard(shard)))
        return self._sessions.many.read.schema(columns).parquet(*self._store.existing(shard, parts))

    def discard(self, txn: Txn, token: WriterToken) -> None:
        """Remove one attempt's parts."""
        self._store.discard(txn, token)

    def damaged(self, shard: ShardId, parts: Sequence[Part]) -> Sequence[Part]:
        """Those parts whose file is missing, truncated, or can't be opened."""
        return self._store.damaged(shard, parts)

    def restore(self, shard: ShardId, *, lost: Part, copy: Part) -> None:
        """Replace a lost part's file by the file of a staged part."""
        self._store.restore(shard, lost=lost, copy=copy)

    def attempts(self) -> Sequence[tuple[Txn, WriterToken]]:
        """The attempts that have files below the logs, committed or not."""
        return self._store.attempts()

    def sample(
        self, binding: Binding, shards: Mapping[ShardId, Sequence[Part]], *, limit: int
    ) -> tuple[Difference, ...]:
        """Up to `limit` keys of each shard whose rows differ between the input and these parts.

        A part that is lost or truncated has no rows. The input is read with the recorded configuration; a
        column that is masked in it or in today's configuration is never shown.
        """
        config, read = self._recorded(binding)
        if not read:
            return ()
        watermark = self._watermark(config, binding.txn)
        today = {shard.name: shard.masked for shard in shards_of(self._config)}
        found: list[Difference] = []
        try:
            routed, rules, count = self._prepared(config, read, binding.txn, watermark)
            for name, parts in shards.items():
                if name not in rules:
                    continue
                shard = rules[name].shard
                masked = _masked(shard, today.get(name, ()))
                paths, spark = self._store.readable(name, parts), routed.sparkSession
                kept = self.log_rows.rows(spark, binding.txn, hashed_columns(shard), paths) if paths else None
                given = folded_rows(routed.where(f"{SHARD} = {literal(name)}"), rules[name], parts=count)
                keys = () if rules[name].keeps_all else shard.keys
                sampler = Sampler(shard, binding.txn, keys, masked)
                found += sampler.differing(given, kept, parts=count, limit=limit)
        except JOB_ERRORS as error:
            raise translated(error, binding.txn, read) from error
        return tuple(found)

    def correct(
        self,
        shard: ShardId,
        *,
        old: DataFrame,
        new: DataFrame,
        txn: Txn,
        token: WriterToken,
        dead: Dead | None = None,
        still_open: DataFrame | None = None,
    ) -> Correction:
        """Write the difference between two generations of a shard under the token (`spark.correction`).

        `old` and `new` are the fresh rows of both at the transaction before `txn`; a shard with `sequence_by`
        needs their tombstones too (`dead`). For the quarantine they are its log's rows, with the new
        generation's `still_open` errors. The caller discards the attempt if this fails for a shard."""
        sink = Sink(self._store, txn, token)
        if shard == QUARANTINE:
            return correct_quarantine(old, new, sink, still_open=still_open)
        return correct(old, new, self._spec(shard), sink, dead=dead)

    def compare(
        self,
        shard: ShardId,
        *,
        old: DataFrame,
        new: DataFrame,
        limit: int,
        masked: Collection[str] = (),
    ) -> Comparison:
        """How a shard's rows would change from one generation to the other, with a sample for people. Values
        of `masked` columns, and of those that are masked in this configuration, are never shown."""
        own, spec = self._config.shard(shard), self._spec(shard)
        sampler = Sampler(own, TXN_NONE, spec.rule.keys, _masked(own, masked), SIDES)
        return compare(old, new, spec, sampler, limit=limit)

    def _spec(self, shard: ShardId) -> StateSpec:
        return spec_of(self._config.shard(shard), f"{self._store.location}/{shard}", self._config.envelope)

    def _recorded(self, binding: Binding) -> tuple[PipelineConfig, Input]:
        """The configuration and the input that the binding recorded (Invariant 6)."""
        config = _recorded_config(binding.configuration, self._config.root)
        return config, input_of(config, binding, today=self._config)

    def _watermark(self, config: PipelineConfig, txn: Txn) -> int | None:
        return self._watermark_before(txn) if _has_lateness(config) else None

    def _run(self, binding: Binding, sink: Sink) -> Staged:
        config, read = self._recorded(binding)
        watermark = self._watermark(config, binding.txn)
        totals = Totals(watermark)
        if read:
            try:
                self._work(config, read, binding.txn, sink, totals)
            except JOB_ERRORS as error:
                raise translated(error, binding.txn, read) from error
        return Staged(
            binding.txn, sink.token, totals.source, totals.shards, self.engine, totals.watermark, watermark
        )

    def _new_columns(self, binding: Binding) -> dict[ShardId, dict[str, str]]:
        """The columns that a refused transaction's records would add to shards."""
        config, read = self._recorded(binding)
        if not read or not growing_shards(config):
            return {}
        try:
            if isinstance(read, FilesInput) and config.source.format == "parquet":
                declared = columns_of_files(config, read, binding.txn)
            else:
                routed, _, _ = self._prepared(config, read, binding.txn, None)
                declared = columns_of_records(config, read, read.form(config), routed, binding.txn)
            new = columns_of(declared, binding.txn)
        except JOB_ERRORS as error:
            raise translated(error, binding.txn, read) from error
        return new if with_new_columns(config, new) != config else {}

    def _prepared(
        self, config: PipelineConfig, read: Input, txn: Txn, watermark: int | None, *, stages: bool = False
    ) -> tuple[DataFrame, dict[str, Rules], int]:
        """The routed records, the rules of each shard, and the number of parts."""
        form = read.form(config)
        # Asked for each transaction: executors come and go.
        cores = cores_of(self._spark)
        count = read.parts(cores=cores)
        spark = self._sessions.many if count else self._sessions.few
        routed = route(read.read(spark, config, form, cores=cores), form, config)
        parts = self._parts_fixed or count
        return routed, {s.name: Rules(s, form, txn, watermark, stages) for s in shards_of(config)}, parts

    def _work(self, config: PipelineConfig, read: Input, txn: Txn, sink: Sink, totals: Totals) -> None:
        stages = sink.store is not None
        routed, rules, parts = self._prepared(config, read, txn, totals.watermark, stages=stages)
        shards = shards_of(config)
        with persisted(routed) if len(shards) > 1 else nullcontext(routed) as shared:
            frames = _by_shard(shared, [shard.name for shard in shards])
            folded = in_parallel(
                lambda name: fold_shard(frames[name], rules[name], sink, parts=parts), list(frames)
            )
            for name, one in zip(frames, folded, strict=True):
                if sink.store is not None:
                    refuse_if_all_ahead(rules[name], one)
                totals.take(ShardId(name), one)
            bad = {name: frames[name] for name in frames if totals.bad[name].count}
            if bad:
                quarantine({name: (bad[name], rules[name]) for name in bad}, sink, totals)


def _by_shard(routed: DataFrame, shards: Sequence[str]) -> dict[str, DataFrame]:
    """The routed records of each shard that has some; the first shard's job also counts records without a
    shard."""
    if len(shards) == 1:
        return {shards[0]: routed}
    touched = {row[SHARD] for row in routed.select(SHARD).distinct().collect()}
    names = [name for name in shards if name in touched] or [shards[0]]
    takes = {name: f"{SHARD} = {literal(name)}" for name in names}
    frames = {name: routed.where(takes[name]) for name in names}
    frames[names[0]] = routed.where(f"{takes[names[0]]} OR {SHARD} IS NULL")
    return frames


def _masked(shard: ShardConfig, also: Collection[str]) -> set[str]:
    """The columns of a shard whose values are never shown."""
    masked = {*shard.masked, *also}
    if masked and shard.error_column is not None:
        # The error column quotes values, and was written with the recorded masks.
        masked.add(shard.error_column)
    return masked


def _has_lateness(config: PipelineConfig) -> bool:
    return any(shard.lateness is not None for shard in shards_of(config))


def _no_watermark(txn: Txn) -> int | None:
    return None


@lru_cache(maxsize=4)
def _recorded_config(configuration: Configuration, root: Path | None) -> PipelineConfig:
    """A configuration that a binding has recorded. Thousands of shards take seconds to check."""
    config = PipelineConfig.from_canonical_json(configuration.text, root=root)
    _check(config)
    return config


def _check(config: PipelineConfig) -> None:
    """Refuse a configuration that this plane doesn't support when the plane is made (Invariant 14)."""
    if config.envelope == "debezium" and config.source.format not in ("json", "avro"):
        raise InvalidUsage(
            f"a debezium envelope in {config.source.format} files can't be read", hint="use format: json"
        )
    if sum(shard.lateness is not None for shard in shards_of(config)) > 1:
        raise InvalidUsage(
            f"pipeline {config.name!r} declares a lateness for more than one shard",
            hint="a transaction has one watermark; use one pipeline for each of these shards",
        )


def engine_of(spark: SparkSession) -> str:
    """The engine and the versions of hashing and decoding; a digest depends on these and on the input."""
    return f"spark {spark.version}, encoding {ENCODING}, rules {RULES}"
