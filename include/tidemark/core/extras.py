"""The optional parts of Tidemark, installed by name: `pip install 'tidemark[spark]'`.

The base reads pipeline files and control tables. Code that needs more calls `require` before it imports
anything, so that the error for a missing library names the extra to install.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from tidemark.core.errors import InvalidUsage

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "airflow": ("airflow",),
    "kafka": ("confluent_kafka",),
    "postgres": ("psycopg",),
    "quality": ("great_expectations",),
    "s3": ("obstore",),
    "spark": ("pyspark",),
}
"""The modules that each extra has to bring; pyproject.toml has the packages."""


class MissingExtra(InvalidUsage, ImportError):
    """A library that is not part of the base is not installed."""


def require(extra: str) -> None:
    """Raise `MissingExtra` unless every module of an extra can be imported. Imports nothing."""
    for module in EXTRAS[extra]:
        if find_spec(module) is None:
            raise MissingExtra(
                f"{module} is not installed", hint=f"install the extra: pip install 'tidemark[{extra}]'"
            )
