"""What the tests share. The fixture is here so that it ends with this folder, and not with the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, running_cluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone Spark cluster of a master and two workers, whose executors have no Python."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started
