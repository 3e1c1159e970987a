"""Open errors: quarantined records whose key has had no good row since (scenario E2).

Nothing is stored for it. A bad record of a known key stands open until the shard's log has a row of that key
which is later by (transaction, position): the key's last good value is then newer than the error. Keys are
compared as the text that quarantine keeps of them, in which a NULL part is a value like any other (U13).

Known limitations: a record that could not be read at all, or one of whose key parts could not, has no key in
quarantine, and so is never an open error of some key. With `sequence_by`, a good record that comes after the
error but is older by its sequence leaves no row of its own where a newer one of the same transaction does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tidemark.core.ids import QUARANTINE, Txn
from tidemark.core.publish import VERSION_NONE
from tidemark.spark.decode import KEY, REASON
from tidemark.spark.flaws import SHARD
from tidemark.spark.fold import OFFSET, ORDINAL, PARTITION, POSITION, TXN
from tidemark.spark.read import RAW
from tidemark.spark.spec import StateSpec
from tidemark.spark.sql import key_text, literal, quoted
from tidemark.spark.tables import log_files, log_paths, log_rows

_TYPES: Final = {TXN: LongType(), OFFSET: LongType(), ORDINAL: LongType()}
RECORD: Final = StructType(
    [
        StructField(name, _TYPES.get(name, StringType()))
        for name in (TXN, SHARD, KEY, RAW, REASON, PARTITION, OFFSET, ORDINAL)
    ]
)
"""A quarantined record as its log has it."""

_WHEN: Final = f"struct({', '.join((TXN, *POSITION))})"
_LAST: Final = "_last"


@dataclass(frozen=True, slots=True)
class ErrorPins:
    """What is looked at: a version of either log, and the first transaction that is not."""

    quarantine_version: int
    log_version: int
    upper: Txn


def open_errors(spark: SparkSession, spec: StateSpec, quarantine_uri: str, pins: ErrorPins) -> DataFrame:
    """The shard's records in quarantine that are still open, in the columns of the quarantine's log.

    A shard without keys, whose records are all rows, has none."""
    errors = _errors(spark, spec, quarantine_uri, pins)
    lower = errors.agg(F.min(TXN)).collect()[0][0] if errors is not None else None
    if errors is None or lower is None:
        return spark.createDataFrame([], RECORD)
    if pins.log_version == VERSION_NONE:
        return errors
    rows = log_rows(spark, spec, lower=lower, upper=pins.upper, version=pins.log_version)
    key = key_text({name: quoted(name) for name in spec.rule.keys})
    keyed = rows.selectExpr(f"{key} AS {KEY}", f"{_WHEN} AS {_LAST}")
    # The log is as long as it is; only rows of keys that have errors go on from here.
    last = keyed.join(errors.select(KEY), KEY, "left_semi").groupBy(KEY).agg(F.max(_LAST).alias(_LAST))
    still = errors.join(last, KEY, "left").where(f"{_LAST} IS NULL OR {_LAST} < {_WHEN}")
    return still.select(*RECORD.names)


def _errors(spark: SparkSession, spec: StateSpec, uri: str, pins: ErrorPins) -> DataFrame | None:
    """The shard's records in quarantine that have a key; None when there can't be any."""
    if pins.quarantine_version == VERSION_NONE or not spec.rule.keys:
        return None
    log = replace(spec, name=QUARANTINE, uri=uri)
    files = log_files(log, lower=0, upper=pins.upper, version=pins.quarantine_version)
    if not files:
        return None
    records = spark.read.schema(RECORD).parquet(*log_paths(log, files))
    return records.where(
        f"{SHARD} = {literal(spec.name)} AND {KEY} IS NOT NULL AND {TXN} < {literal(int(pins.upper))}"
    )
