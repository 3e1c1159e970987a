"""What the stories share. The fixture is here so that it ends with this folder, and not with the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.airflow import Stack, running_stack
from tests.support.kafka import Broker


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[Stack]:
    """A whole Airflow with a pipeline per story."""
    with running_stack(tmp_path_factory.mktemp("e2e"), broker) as started:
        yield started
