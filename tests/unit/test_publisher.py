"""One publisher of a state at a time, by the means of the store that it lies on."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.waiting import SECONDS_MAX
from tidemark.core.errors import InvalidUsage
from tidemark.core.publish import BeingPublished
from tidemark.spark.publisher import sole_publisher


def session(**log_stores: str) -> Any:
    """A session with these log stores by scheme, and otherwise Delta's own."""
    confs = {f"spark.delta.logStore.{scheme}.impl": store for scheme, store in log_stores.items()}
    return SimpleNamespace(conf=confs)


def _try(uri: str, answers: multiprocessing.Queue[str]) -> None:
    try:
        with sole_publisher(session(), uri):
            answers.put("published")
    except BeingPublished as error:
        answers.put(error.fact)


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_invariant_14_one_publisher_at_a_time_and_nobody_waits(tmp_path: Path, prefix: str) -> None:
    """Invariant 14: the second process is told at once, and the lock goes with its holder."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    uri = f"{prefix}{tmp_path}/shard"
    with sole_publisher(session(), uri):
        other = context.Process(target=_try, args=(uri, answers))
        other.start()
        assert "another process is publishing" in answers.get(timeout=SECONDS_MAX)
        other.join()
    with sole_publisher(session(), uri):
        pass


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
@pytest.mark.parametrize("chosen", [{}, {"s3": "", "s3a": "io.delta.storage.S3SingleDriverLogStore"}])
def test_invariant_14_a_store_without_conditional_commits_is_refused(
    scheme: str, chosen: dict[str, str]
) -> None:
    """Invariant 14: a mode that isn't supported fails loudly."""
    with (
        pytest.raises(InvalidUsage, match="not on a local disk") as refused,
        sole_publisher(session(**chosen), f"{scheme}://bucket/p/t"),
    ):
        pass
    assert f"spark.delta.logStore.{scheme}.impl" in refused.value.hint


@pytest.mark.parametrize("uri", ["s3a://bucket/p/t", "gs://bucket/p/t", "abfss://box@account/p/t"])
def test_stores_whose_commits_are_conditional_need_no_lock(uri: str) -> None:
    chosen = session(s3a="io.delta.storage.S3DynamoDBLogStore")
    published = []
    with sole_publisher(chosen, uri):
        published.append("one")
        with sole_publisher(chosen, uri):
            published.append("another, meanwhile")
    assert len(published) == 2
