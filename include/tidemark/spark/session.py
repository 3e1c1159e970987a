"""Session settings that are changed for a while.

Several pieces of work at once: shards, whose small jobs are mostly planning, which one thread does alone,
and files, whose store answers many requests in the time of one.

Jobs of several threads share the executors; how many tasks run at once stays what it was.

Counting and persisting in a Spark that others use too.

All sessions of a Spark, on a Connect server those of every client, have two things in common that make one
client's results depend on another's:

- **The cache.** Spark looks for persisted rows by the plan alone, whoever persisted them, and a file is part
  of a plan by its path. The rows that a killed client has left persisted would answer for a file that has
  changed since, and a replay would call it identical. `persisted` gives every frame a plan of its own.
- **The listener bus.** What is observed reaches the observer by it. A Connect server waits a tenth of a
  second for that and then sends nothing; a server that is busy with others takes longer. `counted` counts
  again what has not come, in a job of its own.

Known limitation: what a killed client has persisted stays on its Connect server, on disk where memory is
short, until the server is stopped.

One way to make a Spark session: Delta's catalog, the cached jars, and defaults for small batches.

Everything here is a conf that can be overridden; what is chosen, and why:

- `spark.jars` is the checked list of jars.lock. Nothing is resolved from a network at start.
- Delta's extension and catalog are on, so that SQL and DataFrames see Delta tables as such.
- Times are UTC and ANSI is on: a cast that fails is an error in every session, not a NULL in some.
- Shuffles have as many partitions as the master has cores, and Delta's snapshots few: the defaults, 200 and
  50, are tasks that a batch of some thousand rows spends most of its time scheduling.
- Compiled code is kept: one transaction and its publishes have more than the hundred pieces of the default,
  which would all be compiled again for the next one.
- A local driver starts from the archive of Spark's classes, where set-up has made one.
- No web interface, no progress bar, warnings only; from Python's side of it too, which otherwise tells a log
  that takes all messages of every connection to the JVM.
- Avro's decoder has limits. Bytes that are none may begin with any length, and it would make room for it.
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
from tidemark.runtime.java import use_java
from tidemark.spark.class_archive import archive_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def confs_set(spark: SparkSession, confs: Mapping[str, str]) -> Iterator[None]:
    """Session settings for a while; afterwards they are as they were."""
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

_AT_ONCE_MAX: Final = 4
FILES_AT_ONCE: Final = 16
"""Opening a file is waiting for its store."""


def in_parallel(work: Callable[[T], R], items: Sequence[T], *, at_once: int = _AT_ONCE_MAX) -> list[R]:
    """What `work` gives for each item, in the items' order.

    The first error in that order is raised when everything that had begun has ended, so that its traces can
    be removed; what had not begun then never does."""
    if len(items) <= 1:
        return [work(item) for item in items]
    pool = ThreadPoolExecutor(min(at_once, len(items)), thread_name_prefix="abreast")
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


OBSERVED_SECONDS_MAX: Final = 30.0
"""The listener bus delivers within milliseconds, unless it is busy or has dropped the event."""


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """A frame that is used more than once; computed again, from its pinned input, if it gets lost. Nobody
    else's frame has its plan: a literal is part of a plan, and this one is never used twice."""
    own = frame.where(f"'{uuid4()}' IS NOT NULL")
    own.persist()
    try:
        yield own
    finally:
        own.unpersist()


def counted(
    frame: DataFrame, aggregates: Sequence[Column], run: Callable[[DataFrame], None]
) -> Mapping[str, Any]:
    """Run a job that takes in all rows of a frame, and count them as they pass, each once; the aggregates by
    their names.

    The frame has to give the same rows when it is computed again: the counts may be those of a second job.
    """
    seen = Observation()
    run(frame.observe(seen, *aggregates))
    if has_arrived(seen) and (found := seen.get):
        return found
    return frame.agg(*aggregates).first().asDict()  # type: ignore[union-attr]


def has_arrived(seen: Observation) -> bool:
    """Whether what was observed has come, or came in time. A classic session would wait for ever for an event
    that the listener bus has dropped (Invariant 14); over Connect the server has waited already. An empty row
    without a schema says that Spark could not collect it."""
    observed = getattr(seen, "_jo", None)
    if observed is None:
        return True
    deadline = time.monotonic() + OBSERVED_SECONDS_MAX
    # `getOrEmpty` fails where nothing has come within its tenth of a second; this waits as long.
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
"""Delta refuses to read a version that is older than what its VACUUM may take, whether or not it has taken
any of it. A publish may have to start from such a version, and readers look whether its files are there."""
SERVER_GONE: Final = "StatusCode.UNAVAILABLE"
"""What the error of a call has in it that reached no server."""
_RETRIES_MAX = 5
_SAID_CHARACTERS_MAX = 1_000
_BACKOFF_MILLISECONDS_MAX = 4_000
INTERPRETED: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For a few thousand rows: to write code for them and to compile it is most of a small job's work."""

ROWS_FEW: Final = 5_000
"""Up to so many rows are worked on without code of their own."""

SHORT_JOBS: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
}
"""For a Spark that has small jobs only: the second compiler would never earn its work back. With one compiler
Java keeps a fifth of the usual room for code, which Spark fills in minutes and then compiles all again."""

_SHUFFLE_PARTITIONS_ELSEWHERE = 32
"""For a master whose cores can't be known from here; adaptive execution merges what is too small."""


def build_session(
    app_name: str,
    *,
    master: str = "local[*]",
    jars_folder: Path | None = None,
    scratch_folder: Path | None = None,
    log_file: Path | None = None,
    confs: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session fit for Delta, made or, where this process already has one, found.

    `jars_folder` is where the jars of jars.lock lie, `scratch_folder` where Spark may write temporary files;
    both have defaults. With a `log_file`, Spark's messages go there and not to the terminal. `confs` come
    last and win. A process has one JVM: confs that are read at its start (jars, memory, catalog) do nothing
    to a session that already exists.

    Raises `InvalidUsage` where Java or a jar is missing, with what to do about it.
    """
    from pyspark.sql import SparkSession

    use_java()
    talk = logging.getLogger("py4j")
    if talk.level == logging.NOTSET:
        talk.setLevel(logging.WARNING)
    # Spark warns, and picks an interface, on machines whose own name is a loopback address.
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    merged = {
        **session_confs(master=master, jars=jar_paths(jars_folder), scratch_folder=scratch_folder),
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
    """Start this process's JVM, if it has none, with its own output in the log: what Java and Spark's scripts
    say before there is a logger would go to the terminal."""
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
            said = log_file.read_bytes()[start:].decode(errors="replace").strip()[-_SAID_CHARACTERS_MAX:]
            raise Determinate(
                f"Spark's Java ended before it was ready: {said or error}", hint=f"see {log_file}; then retry"
            ) from error
    SparkContext._ensure_initialized(gateway=gateway)


def connect_session(url: str, *, token: str | None = None) -> SparkSession:
    """A session on a Spark Connect server, such as `sc://localhost:15002`.

    Delta's extension and jars are the server's affair. Without a `token` the one in
    `SPARK_CONNECT_AUTHENTICATE_TOKEN` is used; with one, the host has to be `localhost`. A process has either
    sessions like this one or those of `build_session`, never both. `Determinate` where no server answers.
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
        raise Determinate(f"no Spark server answers at {place}", hint="start it, and retry") from None
    return session


def connect_address(url: str, token: str | None) -> str:
    """The URL with the token in it, whatever its characters: PySpark quotes a URL that it can't read in its
    error, and the token with it."""
    if token is None:
        return url
    joint = ";" if "/;" in url else "/;"
    return f"{url.rstrip('/')}{joint}token={quote(token, safe='')}"


def _silence_client() -> None:
    """Keep PySpark's client from logging every call that fails, with its stack: each is an exception anyway,
    and of a server that goes away there are hundreds. The client is silent by itself until something sets
    logging up anew, as Airflow does in its tasks."""
    from pyspark.sql.connect.logging import logger

    if "SPARK_CONNECT_LOG_LEVEL" not in os.environ:
        logger.setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")


def _impatient(session: Any) -> Any:
    """By default a client waits ten minutes for a server that died; whoever runs us retries anyway."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    policy = DefaultPolicy(max_retries=_RETRIES_MAX, max_backoff=_BACKOFF_MILLISECONDS_MAX)
    session.client.set_retry_policies([policy])
    return session


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one on a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def child_session(spark: SparkSession) -> SparkSession:
    """A session with confs of its own, in the same Spark."""
    if is_connect(spark):
        _ = spark.version  # The server makes a session when it is first asked something.
        clone = _impatient(spark.cloneSession())  # type: ignore[attr-defined]
        # PySpark leaves this out of a clone, and can't end it without.
        clone.release_session_on_close = True
        found: SparkSession = clone
        return found
    return spark.newSession()


class Sessions:
    """Sessions with confs of their own in one Spark, each made when it is first needed: `many` for any number
    of rows, `few` for so few that no code is generated for them."""

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
        """End them. A Spark Connect server would keep them for an hour; classic ones go by themselves."""
        made = [self.__dict__.pop(name) for name in ("many", "few") if name in self.__dict__]
        for session in filter(is_connect, made):
            session.stop()

    def _made(self, confs: Mapping[str, str]) -> SparkSession:
        session = child_session(self._spark)
        for name, value in confs.items():
            # Spark warns of some when they are set, even to what they are. Asked with a default, Connect
            # gives that instead of Spark's own.
            if session.conf.get(name) != value:
                session.conf.set(name, value)
        return session


def cores_of(spark: SparkSession) -> int:
    """How many tasks run at once; a Connect server that doesn't say is asked by a job of as many tasks."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    if said := spark.conf.get(_PARALLELISM, None):
        return int(said)
    cut = "SELECT spark_partition_id() AS part FROM range(65536)"
    (row,) = spark.sql(f"SELECT count(DISTINCT part) FROM ({cut})").collect()
    return max(1, int(row[0]))


def _log_confs(log_file: Path) -> dict[str, str]:
    log_file.parent.mkdir(parents=True, exist_ok=True)
    settings = Path(__file__).with_name("log4j2.properties")
    # Spark splits the options at spaces, except between quotes, where a backslash spares the next character.
    place = str(log_file).replace("\\", r"\\").replace('"', r"\"")
    options = f'-Dlog4j2.configurationFile={settings.as_uri()} "-Dtidemark.spark.log={place}"'
    return {"spark.driver.extraJavaOptions": options}


def quiet_options() -> str:
    """Java options for a Spark that writes to somebody else's log: errors only, from its start."""
    return f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2-errors.properties').as_uri()}"


def session_confs(*, master: str, jars: list[Path], scratch_folder: Path | None = None) -> dict[str, str]:
    """The confs of `build_session`, for who starts Spark otherwise (`spark-submit`, a Connect server)."""
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
        # The default options: `spark.driver.extraJavaOptions` stays for who calls.
        "spark.driver.defaultJavaOptions": _AVRO_LIMITS,
        "spark.executor.defaultJavaOptions": _AVRO_LIMITS,
    }
    if master.startswith("local"):
        # What it is by itself, where a client over Spark Connect can see it.
        confs[_PARALLELISM] = partitions
        # A driver that is elsewhere has no such file.
        confs["spark.driver.defaultJavaOptions"] = f"{_AVRO_LIMITS} {archive_options()}".strip()
    if scratch_folder is not None:
        confs["spark.local.dir"] = str(scratch_folder)
        confs["spark.sql.warehouse.dir"] = str(scratch_folder / "spark-warehouse")
    return confs


def _shuffle_partitions(master: str) -> int:
    """The cores of a local master; a fixed middle number for any other."""
    if master == "local":
        return 1
    local = re.fullmatch(r"local\[(\*|\d+)(?:,\s*\d+)?\]", master)
    if local is None:
        return _SHUFFLE_PARTITIONS_ELSEWHERE
    return (os.cpu_count() or 1) if local[1] == "*" else int(local[1])
