"""What Airflow's list of providers says of this package."""

from __future__ import annotations

from typing import Any

from tidemark import __version__


def get_provider_info() -> dict[str, Any]:
    """The package in Airflow's terms. It has no connection types of its own: it uses those of Spark, Kafka
    and Postgres."""
    return {
        "package-name": "tidemark",
        "name": "Tidemark",
        "description": "Upserts change streams into Delta Lake on Spark, and proves what it wrote.",
        "versions": [__version__],
    }
