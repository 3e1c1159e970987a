"""Session settings that are changed for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

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
