"""The entry of this package in Airflow's list of providers."""

from __future__ import annotations

from typing import Any

from tidemark import __version__


def get_provider_info() -> dict[str, Any]:
    """The provider's description. The package has no connection types of its own: it uses those of the Spark,
    Kafka and Postgres providers."""
    return {
        "package-name": "tidemark",
        "name": "Tidemark",
        "description": "Upserts change streams into Delta Lake on Spark, and proves what it wrote.",
        "versions": [__version__],
    }
