"""One publisher of a state at a time, whatever the state lies on (Invariant 14).

Spark commits a state, and on a local disk its commits are safe within one JVM only. So a publisher there
holds the kernel's lock on a file beside the state; it goes when its process does, and a process that was
stopped and goes on still has it. Elsewhere the commits themselves must be conditional, so that of two only
one goes through. Delta's log stores for Azure and Google are; its default for S3 is not, and is refused.

Known limitation: a lock of the kernel is one machine's. A folder that several machines share through a
network needs one machine to publish.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemark.core.errors import InvalidUsage
from tidemark.core.publish import BeingPublished

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK_FILE: Final = "publish.lock"
_ONE_DRIVER: Final = "io.delta.storage.S3SingleDriverLogStore"


@contextmanager
def sole_publisher(spark: SparkSession, uri: str) -> Iterator[None]:
    """Be the one publisher of the shard in this folder, or raise at once; nobody waits here."""
    place = uri.removeprefix("file://")
    if "://" not in place:
        with _locked(Path(place)):
            yield
        return
    check_log_store(spark, uri)
    yield


def check_log_store(spark: SparkSession, uri: str) -> None:
    """Refuse a store on which Spark's commits are not conditional."""
    scheme = uri.partition("://")[0]
    chosen = f"spark.delta.logStore.{scheme}.impl"
    if scheme.startswith("s3") and (spark.conf.get(chosen, "") or _ONE_DRIVER) == _ONE_DRIVER:
        raise InvalidUsage(
            f"{uri} is not on a local disk, and Spark's commits there are not conditional",
            hint=f"give Spark a log store that makes them so: {chosen}=io.delta.storage.S3DynamoDBLogStore",
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BeingPublished(
                f"another process is publishing {folder}", hint="retry when it is through"
            ) from None
        yield
    finally:
        # The file stays: removing it would let two processes lock two files of one name.
        os.close(handle)
