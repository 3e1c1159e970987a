"""One Kafka broker for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka_broker import Broker, running_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka broker, for all tests of a process that ask for one."""
    with running_broker(tmp_path_factory.mktemp("kafka")) as started:
        yield started
