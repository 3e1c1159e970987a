"""Spark sessions: how they are made and configured, and safe counting and persisting in a shared Spark.

Every setting is a conf that callers can override. The choices, and why:

- `spark.jars` is the verified list of jars.lock. Nothing is resolved from a network at start.
- Delta's extension and catalog are on, so SQL and DataFrames recognise Delta tables.
- Times are UTC and ANSI is on: a failed cast is an error in every session, not a NULL in some.
- Shuffles have as many partitions as the master has cores, and `snapshotPartitions` of Delta is 2. With the
  defaults, 200 and 50, a batch of some thousand rows spends most of its time on scheduling tasks.
- The cache of generated code has room for 1000 entries. One transaction and its publishes need more than
  the default of 100, and all would be compiled again for the next transaction.
- A local driver starts from the archive of Spark's classes, if set-up has made one.
- No web interface, no progress bar, warnings only. This includes py4j, which otherwise logs every
  connection to the JVM at debug level.
- Avro's decoder has limits. Bytes that are not Avro may begin with any length, and it would allocate that
  much.

All sessions of one Spark (on a Connect server, those of every client) share two things that make one
client's results depend on another's:

- **The cache.** Spark finds persisted rows by the plan alone, whichever client persisted them, and a plan
  identifies a file by its path. Rows that a killed client left persisted would be returned for a file that
  has changed since, and a replay would call it identical. `persisted` makes the plan of every frame unique.
- **The listener bus.** It delivers observed metrics. A Connect server waits a tenth of a second for them
  and then sends nothing; a busy server takes longer. `counted` counts again in a separate job if nothing
  arrives.

Known limitation: rows that a killed client has persisted stay on its Connect server, on disk if memory is
short, until the server stops.
"""

from __future__ import annotations

import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Observation, SparkSession

from tidemark.core.errors import Determinate
from tidemark.runtime.jars import jar_paths
from tidemark.runtime.machine import archive_file, use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def confs_set(spark: SparkSession, confs: Mapping[str, str]) -> Iterator[None]:
    """Set session confs for the duration of the context, then restore them."""
    before = {name: spark.conf.get(name, None) for name in confs}
    try:
        for name, value in confs.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


T = TypeVar("T")
R = TypeVar("R")

ARCHIVE_QUIETLY: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""A JVM with another Java version or other jars ignores the archive without a word."""
_AT_ONCE_MAX: Final = 4
FILES_AT_ONCE: Final = 16
"""Opening a file is mostly waiting for its store."""


def in_parallel(work: Callable[[T], R], items: Sequence[T], *, at_once: int = _AT_ONCE_MAX) -> list[R]:
    """The results of `work` for each item, in the order of the items.

    Spark plans a small job in one thread, so several threads plan several shards at once. Their jobs share
    the executors. The first error in the items' order is raised after all started work has ended, so that
    its traces can be removed; work that has not started by then is cancelled.
    """
    if len(items) <= 1:
        return [work(item) for item in items]
    pool = ThreadPoolExecutor(min(at_once, len(items)), thread_name_prefix="parallel")
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


OBSERVED_SECONDS_MAX: Final = 30.0
"""The listener bus delivers within milliseconds, unless it is busy or has dropped the event."""


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """Persist a frame that is used more than once; Spark recomputes lost blocks from the pinned input. A
    unique literal makes its plan unique, so that no other frame shares its cache entry."""
    own = frame.where(f"'{uuid4()}' IS NOT NULL")
    own.persist()
    try:
        yield own
    finally:
        own.unpersist()


def counted(
    frame: DataFrame, aggregates: Sequence[Column], run: Callable[[DataFrame], None]
) -> Mapping[str, Any]:
    """Run a job that consumes all rows of a frame, and count each row once on the way. Returns the
    aggregates by name.

    The frame must be deterministic: the counts may come from a second job.
    """
    seen = Observation()
    run(frame.observe(seen, *aggregates))
    if has_arrived(seen) and (found := seen.get):
        return found
    return frame.agg(*aggregates).first().asDict()  # type: ignore[union-attr]


def has_arrived(seen: Observation) -> bool:
    """Whether the observed metrics have arrived, after a bounded wait. A classic session would wait forever
    for an event that the listener bus dropped (Invariant 14); over Connect, the server has waited already.
    A row without a schema means that Spark could not collect the metrics."""
    observed = getattr(seen, "_jo", None)
    if observed is None:
        return True
    deadline = time.monotonic() + OBSERVED_SECONDS_MAX
    # Each `getRowOrEmpty` waits up to a tenth of a second, so this loop needs no sleep.
    while (row := observed.getRowOrEmpty()).isEmpty():
        if time.monotonic() > deadline:
            return False
    return row.get().schema() is not None


_AVRO_LIMITS = (
    "-Dorg.apache.avro.limits.string.maxLength=67108864 -Dorg.apache.avro.limits.bytes.maxLength=67108864"
    " -Dorg.apache.avro.limits.collectionItems.maxLength=5000000"
)
_PARALLELISM = "spark.default.parallelism"
_TRAVEL = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
"""By default, Delta refuses to read a version that is older than the retention of its VACUUM, even if
nothing was removed. A publish may have to start from such a version, and readers check that its files
exist."""
SERVER_GONE: Final = "StatusCode.UNAVAILABLE"
"""Part of the error text of a call that reached no server."""
_RETRIES_MAX = 5
_ERROR_CHARACTERS_MAX = 1_000
_BACKOFF_MILLISECONDS_MAX = 4_000
INTERPRETED: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For a few thousand rows, generating and compiling code is most of a small job's work."""

ROWS_FEW: Final = 5_000
"""Up to this many rows are processed without generated code."""

SHORT_JOBS: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
}
"""For a Spark that runs small jobs only: the second JIT compiler would never pay off. With one compiler,
Java reserves a fifth of the usual code cache; Spark fills that in minutes and then compiles everything
again."""

_SHUFFLE_PARTITIONS_ELSEWHERE = 32
"""For a master whose number of cores is unknown here; adaptive execution merges small partitions."""


def build_session(
    app_name: str,
    *,
    master: str = "local[*]",
    scratch_folder: Path | None = None,
    log_file: Path | None = None,
    confs: Mapping[str, str] | None = None,
) -> SparkSession:
    """Create a Spark session with Delta, or return the one that this process already has.

    `scratch_folder` is for Spark's temporary files. With a `log_file`, Spark's messages go there and not to
    the terminal. `confs` override all others. A process has one JVM: confs that are read at its start (jars,
    memory, catalog) do not affect a session that already exists.

    Raises `InvalidUsage` with a remedy if Java or a jar is missing.
    """
    from pyspark.sql import SparkSession

    use_java()
    talk = logging.getLogger("py4j")
    if talk.level == logging.NOTSET:
        talk.setLevel(logging.WARNING)
    # On a machine whose host name resolves to a loopback address, Spark warns and picks an interface.
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    merged = {
        **session_confs(master=master, jars=jar_paths(), scratch_folder=scratch_folder),
        **(_log_confs(log_file) if log_file is not None else {}),
        **(confs or {}),
    }
    if log_file is not None:
        _start_quietly({**merged, "spark.app.name": app_name, "spark.master": master}, log_file)
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in merged.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if log_file is None:
        session.sparkContext.setLogLevel("ERROR")
    return session


def _start_quietly(confs: Mapping[str, str], log_file: Path) -> None:
    """Start this process's JVM, if it has none, with its output in the log. Otherwise messages that Java
    and Spark's scripts write before the logger exists would go to the terminal."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    start = log_file.stat().st_size if log_file.exists() else 0
    with log_file.open("ab") as log:
        given = SparkConf(loadDefaults=False).setAll(list(confs.items()))
        try:
            gateway = launch_gateway(given, {"stdout": log, "stderr": log})
        except PySparkRuntimeError as error:
            output = log_file.read_bytes()[start:].decode(errors="replace").strip()[-_ERROR_CHARACTERS_MAX:]
            raise Determinate(
                f"Spark's Java ended before it was ready: {output or error}",
                hint=f"see {log_file}; then retry",
            ) from error
    SparkContext._ensure_initialized(gateway=gateway)


def connect_session(url: str, *, token: str | None = None) -> SparkSession:
    """A session on a Spark Connect server, such as `sc://localhost:15002`.

    The server provides Delta's extension and jars. Without a `token`, the one in
    `SPARK_CONNECT_AUTHENTICATE_TOKEN` is used; with a token, the host must be `localhost`. A process has
    either Connect sessions or those of `build_session`, never both. Raises `Determinate` if no server
    answers.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    _silence_client()
    address = connect_address(url, token)
    session: SparkSession = _impatient(SparkSession.builder.remote(address).getOrCreate())
    try:
        session.conf.set(_TRAVEL, "false")
    except PySparkException as error:
        if SERVER_GONE not in str(error):
            raise
        place = url.partition("/;")[0]
        raise Determinate(
            f"no Spark Connect server answers at {place}", hint="start it, then retry"
        ) from None
    return session


def connect_address(url: str, token: str | None) -> str:
    """The URL with the escaped token. Escaping is necessary: PySpark's error for a malformed URL quotes the
    URL, and with it the token."""
    if token is None:
        return url
    joint = ";" if "/;" in url else "/;"
    return f"{url.rstrip('/')}{joint}token={quote(token, safe='')}"


def _silence_client() -> None:
    """Stop PySpark's client from logging every failed call with its stack trace: each call raises an
    exception anyway, and a server that goes away causes hundreds. The client is silent by default until
    logging is configured anew, as in Airflow's tasks."""
    from pyspark.sql.connect.logging import logger

    if "SPARK_CONNECT_LOG_LEVEL" not in os.environ:
        logger.setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")


def _impatient(session: Any) -> Any:
    """Shorten the retries. By default a client waits ten minutes for a dead server; Tidemark's callers
    retry anyway."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    policy = DefaultPolicy(max_retries=_RETRIES_MAX, max_backoff=_BACKOFF_MILLISECONDS_MAX)
    session.client.set_retry_policies([policy])
    return session


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is on a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def child_session(spark: SparkSession) -> SparkSession:
    """A session with its own confs in the same Spark."""
    if is_connect(spark):
        _ = spark.version  # The server creates a session on the first request.
        clone = _impatient(spark.cloneSession())  # type: ignore[attr-defined]
        # PySpark does not set this on a clone, and can't close the clone without it.
        clone.release_session_on_close = True
        found: SparkSession = clone
        return found
    return spark.newSession()


class Sessions:
    """Sessions with their own confs in one Spark, each created on first use: `many` for any number of rows,
    `few` for few rows, without generated code."""

    def __init__(self, spark: SparkSession, confs: Mapping[str, str]) -> None:
        self._spark = spark
        self._confs = dict(confs)

    @cached_property
    def many(self) -> SparkSession:
        return self._made(self._confs)

    @cached_property
    def few(self) -> SparkSession:
        return self._made({**INTERPRETED, **self._confs})

    def close(self) -> None:
        """Close the sessions. A Spark Connect server would keep them for an hour; classic ones need no
        closing."""
        made = [self.__dict__.pop(name) for name in ("many", "few") if name in self.__dict__]
        for session in filter(is_connect, made):
            session.stop()

    def _made(self, confs: Mapping[str, str]) -> SparkSession:
        session = child_session(self._spark)
        for name, value in confs.items():
            # Spark warns about some confs even if they are set to their current value. With a default
            # argument, Connect returns that default instead of Spark's own.
            if session.conf.get(name) != value:
                session.conf.set(name, value)
        return session


def cores_of(spark: SparkSession) -> int:
    """How many tasks run at once. If a Connect server has no setting for it, a small job counts its
    partitions."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    if cores := spark.conf.get(_PARALLELISM, None):
        return int(cores)
    cut = "SELECT spark_partition_id() AS part FROM range(65536)"
    (row,) = spark.sql(f"SELECT count(DISTINCT part) FROM ({cut})").collect()
    return max(1, int(row[0]))


def _log_confs(log_file: Path) -> dict[str, str]:
    log_file.parent.mkdir(parents=True, exist_ok=True)
    settings = Path(__file__).with_name("log4j2.properties")
    # Spark splits the options at spaces outside quotes; inside quotes, a backslash escapes the next
    # character.
    place = str(log_file).replace("\\", r"\\").replace('"', r"\"")
    options = f'-Dlog4j2.configurationFile={settings.as_uri()} "-Dtidemark.spark.log={place}"'
    return {"spark.driver.extraJavaOptions": options}


def quiet_options() -> str:
    """Java options for a Spark that writes into another program's log: errors only, from the start."""
    return f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2-errors.properties').as_uri()}"


def session_confs(*, master: str, jars: list[Path], scratch_folder: Path | None = None) -> dict[str, str]:
    """The confs of `build_session`, for other ways to start Spark (`spark-submit`, a Connect server)."""
    partitions = str(_shuffle_partitions(master))
    confs = {
        "spark.jars": ",".join(str(path) for path in jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": partitions,
        "spark.databricks.delta.snapshotPartitions": "2",
        _TRAVEL: "false",
        "spark.sql.codegen.cache.maxEntries": "1000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # These are the default options: `spark.driver.extraJavaOptions` stays free for the caller.
        "spark.driver.defaultJavaOptions": _AVRO_LIMITS,
        "spark.executor.defaultJavaOptions": _AVRO_LIMITS,
    }
    if master.startswith("local"):
        # Spark's own default, but as a conf it is visible to a Spark Connect client.
        confs[_PARALLELISM] = partitions
        # Only a local driver has the archive file.
        confs["spark.driver.defaultJavaOptions"] = f"{_AVRO_LIMITS} {archive_options()}".strip()
    if scratch_folder is not None:
        confs["spark.local.dir"] = str(scratch_folder)
        confs["spark.sql.warehouse.dir"] = str(scratch_folder / "spark-warehouse")
    return confs


def archive_options() -> str:
    """The JVM options to start from the archive; empty if there is no archive."""
    file = archive_file()
    if not file.is_file() or " " in str(file):
        return ""
    return f"-XX:SharedArchiveFile={file} {ARCHIVE_QUIETLY}"


def _shuffle_partitions(master: str) -> int:
    """The cores of a local master; a fixed number for any other."""
    if master == "local":
        return 1
    local = re.fullmatch(r"local\[(\*|\d+)(?:,\s*\d+)?\]", master)
    if local is None:
        return _SHUFFLE_PARTITIONS_ELSEWHERE
    return (os.cpu_count() or 1) if local[1] == "*" else int(local[1])
