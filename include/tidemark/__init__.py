"""Tidemark upserts change streams into Delta Lake on Spark, and proves what it wrote.

`tidemark.run`, `tidemark.publish` and `tidemark.quarantine` do what the commands of these names do
(`tidemark.app.api`).

Importing this package is cheap: engines (Spark, Airflow, delta-rs) load with the subpackage that needs them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.app.api import publish, quarantine, run

__version__ = "0.1.0"
__all__ = ["__version__", "publish", "quarantine", "run"]


def __getattr__(name: str) -> Any:
    """The verbs, loaded when they are first asked for."""
    if name in ("publish", "quarantine", "run"):
        return getattr(import_module("tidemark.app.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
