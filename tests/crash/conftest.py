"""One bench, with its warm JVM, for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.campaign import Bench, bench_at


@pytest.fixture(scope="package")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_at(tmp_path_factory.mktemp("bench")) as opened:
        yield opened
