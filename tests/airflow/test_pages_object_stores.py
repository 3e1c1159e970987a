"""Which sources the pages ask: the API server has no credentials of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidemark.airflow.pages.answers import is_asked

pytestmark = pytest.mark.airflow


@pytest.mark.parametrize(
    ("kind", "place", "asked"),
    [
        ("files", "/landing", True),
        ("files", "s3a://lake/landing", False),
        ("postgres", "/wh/captured", False),
    ],
)
def test_only_a_folder_of_files_is_asked(kind: str, place: str, asked: bool) -> None:
    config: Any = SimpleNamespace(source=SimpleNamespace(type=kind), source_location=place)
    deployment: Any = SimpleNamespace(config=config)
    assert is_asked(deployment) is asked
