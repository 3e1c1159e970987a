"""Translation of failed Spark jobs into errors of the four families: refused input, lost input, or retry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, PySparkException

from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError
from tidemark.core.ids import Txn
from tidemark.core.replay import InputGone
from tidemark.spark.decode import FOUND, REFUSAL_MARK, TOO_FAR_AHEAD
from tidemark.spark.inputs import Input
from tidemark.spark.read import is_missing_path
from tidemark.spark.session import SERVER_GONE

# With Spark Connect alone, py4j need not be installed.
try:
    from py4j.protocol import Py4JJavaError

    JOB_ERRORS: tuple[type[Exception], ...] = (PySparkException, Py4JJavaError)
except ImportError:
    JOB_ERRORS = (PySparkException,)
"""The exceptions of a failed job, classic or over Spark Connect."""

_REFUSAL = re.compile(rf"\[\[{REFUSAL_MARK} (\S+) (\d+) (\d+) (.*?)\]\]", re.DOTALL)
_LOST_OFFSETS = re.compile(
    r"KAFKA_DATA_LOSS|OffsetOutOfRangeException|Cannot fetch offset|data may have been lost"
)
_MISSING_FILE = re.compile(r"FAILED_READ_FILE\.FILE_NOT_EXIST|FileNotFoundException")
_DENIED = re.compile(r"(Sasl|Ssl)AuthenticationException: ([^\n]+)")
_PARQUET_TYPE = re.compile(r"column: \[(.+?)\], physicalType: (\w+), logicalType: ([^\n]+)")
_PARQUET_FILE = re.compile(r"reading file \S*/([^/\s]+?)\.?\s")
_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_MESSAGE_CHARACTERS_MAX = 500
_REMEDY = (
    "correct the pipeline file (for example, declare a column) and retry, or skip the transaction with a"
    " reason and land its records again"
)
_AHEAD = (
    "set max_advance of the shard: if the record is right, high enough to include it; if it is wrong, to"
    " the most"
    " that one transaction may advance, which quarantines the record"
)


class Refused(InvalidUsage):
    """A record stopped its whole transaction; nothing was written."""

    def __init__(self, txn: Txn, *, place: str, record: int, fact: str) -> None:
        super().__init__(
            f"transaction {txn} is refused at {place}: {fact}",
            hint=_AHEAD if fact.startswith(TOO_FAR_AHEAD) else _REMEDY,
        )
        self.recordable = f"transaction {txn} is refused at {place}: {fact.partition(FOUND)[0]}"
        self.txn = txn
        self.place = place
        self.record = record


def translated(error: Exception, txn: Txn, read: Input) -> TidemarkError:
    """The error of one of the four families for a job's failure."""
    text = str(error)
    refusal = _REFUSAL.search(text)
    if refusal is not None:
        partition, offset, record, fact = refusal[1], int(refusal[2]), int(refusal[3]), refusal[4]
        return Refused(txn, place=read.place(partition, offset, record), record=record, fact=fact)
    missing = isinstance(error, AnalysisException) and is_missing_path(error)
    # Java also reports "not found" for files that it may not open or has no space for, and Spark has files
    # of its own.
    missing = missing or (_MISSING_FILE.search(text) is not None and read.is_gone())
    if missing or _LOST_OFFSETS.search(text):
        return InputGone(txn, what=text[:_MESSAGE_CHARACTERS_MAX])
    denied = _DENIED.search(text)
    if denied is not None:
        return _denied(txn, by_tls=denied[1] == "Ssl", message=denied[2].strip(), cause=cause_in(text))
    other_type = _PARQUET_TYPE.search(text)
    if other_type is not None:
        return _other_type(txn, *other_type.groups(), file=_PARQUET_FILE.search(text))
    damage = read.damage(text)
    if damage:
        return InvalidUsage(
            f"transaction {txn} is refused: {damage}",
            hint="the file was damaged before it was bound; skip the transaction with a reason, and land"
            " its records again in a new file",
        )
    return Determinate(
        f"the job of transaction {txn} failed: {cause_in(text)}", hint="retry; its parts were deleted"
    )


def _denied(txn: Txn, *, by_tls: bool, message: str, cause: str) -> InvalidUsage:
    """The error for a failed authentication of Spark's reader, by credentials or TLS; a retry can't help."""
    if not by_tls:
        fact = f"kafka refuses the credentials of Spark's reader in transaction {txn}: {message}"
        return InvalidUsage(fact, hint="check user, password and security settings of the connection")
    fact = f"Spark's reader and kafka do not trust each other in transaction {txn}: {message} ({cause})"
    hint = "set ssl.ca.location of the connection to the CA of the servers' certificates: Java does not"
    hint += " use the certificates that the system trusts"
    return InvalidUsage(fact, hint=hint)


def _other_type(
    txn: Txn, column: str, found: str, declared: str, *, file: re.Match[str] | None
) -> InvalidUsage:
    """The error for a Parquet column that does not fit its declared type; a retry can't help."""
    where = f"file {file[1]!r}" if file is not None else "a file"
    types = f"as {found}, declared is {declared.strip()}"
    return InvalidUsage(
        f"transaction {txn} is refused: {where} has column {column!r} {types}",
        hint="declare the type that the files have (BIGINT for INT64) and retry, or skip the transaction with"
        " a reason and land its records again",
    )


@contextmanager
def shard_job_errors(shard: str) -> Iterator[None]:
    """Turn a failed job into an error that names the shard and the remedy for a damaged part."""
    try:
        yield
    except JOB_ERRORS as error:
        raise Determinate(
            f"the rows of {shard} can't be computed: {cause_in(str(error))}",
            hint="nothing was changed; `tidemark replay PIPELINE` names a damaged part, and `--mode"
            " repair` restores it",
        ) from error


def cause_in(text: str) -> str:
    """The innermost cause in a Java error, without the stack trace."""
    if SERVER_GONE in text:
        return "the Spark server has gone away"
    bottom = _CAUSE.findall(text)
    plain = " ".join(line.strip() for line in text.splitlines() if not line.startswith("\t"))
    return (bottom[-1] if bottom else plain)[:_MESSAGE_CHARACTERS_MAX]
