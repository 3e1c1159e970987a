"""The fold: for each key, the last row by (`sequence_by`, txn, position); and one transaction of a shard.

Ingest, publish, the fresh read and the rebuild all use this rule. It is associative and commutative, so the
result depends neither on how records were grouped into transactions nor on when a state was published:

- Keys are compared null-safe, as in GROUP BY: a NULL part is a value like any other.
- A NULL sequence is older than any other, as in Spark's struct order. Decoding passes no such row on.
- Deletes take part like upserts. Filter `_op` afterwards to get live rows only.
- A row without an offset is a *correction*, a record of a promotion (`core.generation`). It says what its
  key's row is at its transaction, so it voids the earlier rows of its key (`with_since`); later ones compete
  with it as usual.
- If one transaction has a key in two partitions, and there is no sequence, the partition's name decides, then
  the offset. That is arbitrary but fixed, and the same on every replay (scenario U12).

With a `sequence_by`, a deleted key leaves a tombstone, so that a late older record can't restore it. How long
it must stay follows from the declared lateness and from the records alone: a record whose sequence is more
than `lateness` below the watermark (the highest sequence in earlier transactions) is *too late*, whatever the
state contains, and is set aside. So a tombstone below that line is never needed again and may be removed.

Publish, fresh read and rebuild call `fold`; ingest, which also counts the losing rows, marks the winners with
`is_last`.

The fold is a window function, which moves rows as they are; an aggregation would build a struct of each row
and sort twice. In `fold`, each task drops the losers among its own rows before the shuffle: a million
updates of one key become one row.

Rows must have the position columns.

Of one transaction and shard, a job folds, counts and writes the rows, and quarantines bad records.
All counting happens in the last stage of the job that writes, so a stage that runs twice counts once
(Invariant 7): every record, winner or loser, reaches that stage with its hash, and the losers are dropped
there. If Spark doesn't deliver the counts, they are counted again (`session.counted`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from tidemark.core.checksum import Digest
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import QUARANTINE, ShardId, Txn, WriterToken
from tidemark.core.seal import Part, ShardParts
from tidemark.core.text import sequence_text
from tidemark.delta.state_files import DIGEST
from tidemark.delta.state_files import KEY as KEY_HASH
from tidemark.spark.columns import (
    DELETE,
    OFFSET,
    OP,
    ORDINAL,
    POSITION,
    SINCE,
    TXN,
    lateness_number,
    log_schema,
    opaque,
    quoted,
)
from tidemark.spark.decode import (
    BAD,
    CHANGES,
    KEY,
    REASON,
    SEQUENCE,
    SHARD,
    SLOT,
    Rules,
    decode,
    hashed_columns,
)
from tidemark.spark.digest import digest_of, key_hash_sql, partials, row_hash, row_hash_sql
from tidemark.spark.documents import declared_schema
from tidemark.spark.parts import PartStore, attempt_folder
from tidemark.spark.read import HASH, RAW
from tidemark.spark.session import counted

_RANK: Final = "_tidemark_rank"


@dataclass(frozen=True, slots=True)
class FoldRule:
    """The key columns that identify a row, and the column that orders the rows of a key."""

    keys: tuple[str, ...]
    sequence_by: str | None = None


def is_last(rule: FoldRule) -> str:
    """SQL for whether a row of one transaction is the last of its key; the losing rows stay.

    It shuffles all rows of a key together and leaves them in key order.
    """
    return f"{_rank(rule, POSITION)} = 1"


def fold(frame: DataFrame, rule: FoldRule, *, place: tuple[str, ...] = (TXN, *POSITION)) -> DataFrame:
    """The last row of each key, deletes included, with the frame's columns.

    `place` orders the rows of one key and one sequence.
    """
    ranked = frame.selectExpr("*", f"{_rank(rule, place)} AS {_RANK}")
    return ranked.where(f"{_RANK} = 1").drop(_RANK)


def with_since(frame: DataFrame, rule: FoldRule, *, corrects: bool, of_one_txn: bool) -> DataFrame:
    """The rows that no later correction of their key voids, with the last correction's transaction as
    `SINCE`; NULL for none. `corrects` is whether there may be corrections at all."""
    own = f"CASE WHEN isnull({OFFSET}) THEN {TXN} END" if corrects else "cast(NULL AS bigint)"
    if not corrects or of_one_txn:
        return frame.selectExpr("*", f"{own} AS {SINCE}")
    last = f"max({own}) OVER (PARTITION BY {', '.join(map(quoted, rule.keys))})"
    return frame.selectExpr("*", f"{last} AS {SINCE}").where(f"isnull({SINCE}) OR {TXN} >= {SINCE}")


def _rank(rule: FoldRule, place: tuple[str, ...]) -> str:
    """A row's rank among the rows of its key; the last row has rank 1."""
    order = place if rule.sequence_by is None else (rule.sequence_by, *place)
    latest = ", ".join(f"{quoted(name)} DESC NULLS LAST" for name in order)
    return f"row_number() OVER (PARTITION BY {', '.join(map(quoted, rule.keys))} ORDER BY {latest})"


QUARANTINE_COLUMNS: Final = StructType(
    [StructField(name, StringType()) for name in (SHARD, KEY, RAW, REASON)]
)
"""The columns that a quarantined record's output hash covers."""

_OUT: Final = "_out"
_AT: Final = "_at"
_FILTER_BARRIER: Final = f"monotonically_increasing_id() AS {_AT}"
"""Spark would push a filter below the decoding, into one expression that repeats each rule many times, and
plan for minutes. A filter is never pushed below `monotonically_increasing_id`."""
_IN_PREFIX, _OUT_PREFIX, _BAD_PREFIX = "in_", "out_", "bad_"
WRITE_CONFS: Final = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""Timestamps as INT64 microseconds: the footer has their bounds, and other readers recognise them. INT96,
Spark's older format, has neither bounds nor a time zone."""
WRITE_OPTIONS: Final = {
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # Hashes don't repeat, so a dictionary is useless.
    f"parquet.enable.dictionary#{KEY_HASH}": "false",
    f"parquet.enable.dictionary#{DIGEST}": "false",
}


@dataclass(frozen=True, slots=True)
class Sink:
    """The destination of an attempt's rows: its part files or, without a store, none."""

    store: PartStore | None
    txn: Txn
    token: WriterToken

    def take(self, shard: ShardId, frame: DataFrame) -> None:
        """Run the job that ends in this frame."""
        if self.store is None:
            frame.write.format("noop").mode("overwrite").save()
            return
        folder = f"{self.store.log_root(shard)}/{attempt_folder(self.txn, self.token)}"
        frame.write.options(**WRITE_OPTIONS).mode("error").parquet(folder)

    def parts(self, shard: ShardId, count: int) -> tuple[Part, ...]:
        """The parts that were written; without a store, one nameless part with the row count."""
        if self.store is None:
            return (Part("", count, 0),) if count else ()
        return self.store.parts(shard, self.txn, self.token)


@dataclass(slots=True)
class Totals:
    """The running totals of a transaction."""

    watermark: int | None = None
    source: Digest = field(default_factory=Digest)
    shards: dict[ShardId, ShardParts] = field(default_factory=dict)
    bad: dict[str, Digest] = field(default_factory=dict)

    def add(
        self, shard: ShardId, parts: tuple[Part, ...], digest: Digest, *, deletes: int | None = None
    ) -> None:
        if parts:
            self.shards[shard] = ShardParts(parts, digest, deletes=deletes)

    def take(self, shard: ShardId, folded: Folded) -> None:
        """Add one shard's result."""
        self.source = self.source.merge(folded.source)
        self.bad[shard] = folded.bad
        self.add(shard, folded.parts, folded.digest, deletes=folded.deletes)
        known = [number for number in (self.watermark, folded.highest) if number is not None]
        self.watermark = max(known, default=None)


@dataclass(frozen=True, slots=True)
class Folded:
    """The result of one shard: digests of the records read, of the bad ones and of the rows written, the
    highest sequence of the changes, and the highest of the records that are too far ahead."""

    source: Digest
    bad: Digest
    parts: tuple[Part, ...]
    digest: Digest
    deletes: int
    highest: int | None
    ahead: int | None = None


def fold_shard(frame: DataFrame, rules: Rules, sink: Sink, *, parts: int) -> Folded:
    """Decode, fold, count and write one shard's records in one job, into `parts` parts.

    With 0 parts, one task does it all and writes one part.
    """
    shard = ShardId(rules.shard.name)
    columns = _log_columns(rules)
    is_bad = f"{SLOT} = {BAD}"
    reduced, wins = _reduced(frame, rules, parts=parts)
    out = f"CASE WHEN {wins} THEN {row_hash_sql(hashed_columns(rules.shard))} END AS {_OUT}"
    beside = [f"{_OUT} AS {DIGEST}"]
    if not rules.keeps_all:
        beside.append(f"{key_hash_sql(_keys_of(rules))} AS {KEY_HASH}")
    found = counted(
        reduced.selectExpr("*", out),
        [
            *partials(HASH, prefix=_IN_PREFIX),
            *partials(f"CASE WHEN {is_bad} THEN {HASH} END", prefix=_BAD_PREFIX),
            *partials(_OUT, prefix=_OUT_PREFIX),
            F.expr(f"count(CASE WHEN {OP} = '{DELETE}' THEN {_OUT} END) AS deletes"),
            F.expr(f"max(CASE WHEN {SLOT} = {CHANGES} THEN {SEQUENCE} END) AS watermark"),
            F.expr(f"max(CASE WHEN {is_bad} THEN {SEQUENCE} END) AS ahead"),
        ],
        lambda rows: sink.take(shard, rows.where(f"{_OUT} IS NOT NULL").selectExpr(*columns, *beside)),
    )
    digest = digest_of(found, prefix=_OUT_PREFIX)
    return Folded(
        source=digest_of(found, prefix=_IN_PREFIX),
        bad=digest_of(found, prefix=_BAD_PREFIX),
        parts=sink.parts(shard, digest.count),
        digest=digest,
        deletes=int(found["deletes"]),
        highest=found.get("watermark"),
        ahead=found.get("ahead"),
    )


def refuse_if_all_ahead(rules: Rules, folded: Folded) -> None:
    """Raise `InvalidUsage` if all records are too far ahead: to quarantine them would quarantine all later
    records too."""
    kind, ahead, unit = rules.sequence_type, folded.ahead, rules.shard.lateness_unit
    if ahead is None or folded.digest.count or kind is None or rules.watermark is None:
        return
    least = -(-(ahead - rules.watermark) // lateness_number(1, kind))
    raise InvalidUsage(
        f"all records of transaction {rules.txn} for shard {rules.shard.name!r} are far above the watermark"
        f" {sequence_text(rules.watermark, unit=unit)}: the highest is {sequence_text(ahead, unit=unit)}, and"
        f" max_advance is {rules.shard.advance_max}",
        hint=f"set max_advance to at least {least} if the records are right, or skip the transaction"
        " with a reason",
    )


def _reduced(frame: DataFrame, rules: Rules, *, parts: int) -> tuple[DataFrame, str]:
    """The decoded records with those of one key together, and SQL for which of them win."""
    is_change = f"{SLOT} = {CHANGES}"
    decoded = decode(frame, rules, explain=False)
    if rules.keeps_all:
        return decoded.coalesce(parts or 1).sortWithinPartitions(*POSITION), is_change
    # The winner of a key is known only after the shuffle, and only there may the input be counted.
    keys = [quoted(key) for key in rules.shard.keys]
    last = is_last(FoldRule((*rules.shard.keys, SLOT), rules.shard.sequence_by))
    reduced = decoded.repartition(parts, *keys) if parts else decoded.coalesce(1)
    return reduced, f"{is_change} AND {last}"


def folded_rows(frame: DataFrame, rules: Rules, *, parts: int) -> DataFrame:
    """The rows that one shard's records give, without counting."""
    reduced, wins = _reduced(frame, rules, parts=parts)
    marked = reduced.selectExpr("*", f"{wins} AS {_OUT}", _FILTER_BARRIER).where(f"{_OUT} AND {_AT} >= 0")
    return marked.select(*map(quoted, hashed_columns(rules.shard).names))


def _log_columns(rules: Rules) -> list[str]:
    """The log's columns in their order."""
    txn = _txn_column(rules.txn)
    return [txn if name == TXN else quoted(name) for name in log_schema(declared_schema(rules.shard)).names]


def _keys_of(rules: Rules) -> StructType:
    declared = declared_schema(rules.shard)
    return StructType([declared[key] for key in rules.shard.keys])


def _txn_column(txn: Txn) -> str:
    return f"{opaque(txn, beside=ORDINAL)} AS {TXN}"


def quarantine(bad: Mapping[str, tuple[DataFrame, Rules]], sink: Sink, totals: Totals) -> None:
    """Write the bad records of all shards in one more job. They must be exactly the records that were
    counted."""
    expected = Digest()
    union: DataFrame | None = None
    for name, (frame, rules) in bad.items():
        expected = expected.merge(totals.bad[name])
        decoded = decode(frame, rules, explain=True).selectExpr("*", _FILTER_BARRIER)
        records = decoded.where(f"{SLOT} = {BAD} AND {_AT} >= 0")
        chosen = records.selectExpr(_txn_column(sink.txn), SHARD, KEY, RAW, REASON, *POSITION, HASH)
        union = chosen if union is None else union.unionAll(chosen)
    if union is None:
        return
    hashed = union.coalesce(1).withColumn(_OUT, row_hash(QUARANTINE_COLUMNS))
    found = counted(
        hashed,
        [*partials(HASH, prefix=_IN_PREFIX), *partials(_OUT, prefix=_OUT_PREFIX)],
        lambda rows: sink.take(QUARANTINE, rows.drop(HASH, _OUT)),
    )
    again = digest_of(found, prefix=_IN_PREFIX)
    if again != expected:
        raise InvariantViolation(
            f"transaction {sink.txn} counted {expected.count} bad records with digest {expected},"
            f" and {again.count} with digest {again} when they were written",
            hint="the input changed while it was read; restore it and retry",
        )
    digest = digest_of(found, prefix=_OUT_PREFIX)
    totals.add(QUARANTINE, sink.parts(QUARANTINE, digest.count), digest)
