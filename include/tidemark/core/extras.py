"""The parts of Tidemark that are installed by name: `pip install 'tidemark[spark]'`.

The base reads pipeline files and control tables. Whatever needs more asks for it here, before it imports
anything, so that a missing library is told with the extra that brings it.
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
    """Raise `MissingExtra` unless all that an extra brings can be imported; nothing is imported."""
    for module in EXTRAS[extra]:
        if find_spec(module) is None:
            raise MissingExtra(
                f"{module} is not installed", hint=f"install the extra: pip install 'tidemark[{extra}]'"
            )
