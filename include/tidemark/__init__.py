"""Tidemark upserts change streams into Delta Lake on Spark, and proves what it wrote.

This is the public interface; everything else may change from one version to the next.

    import tidemark

    shop = tidemark.load_pipeline("pipelines/shop.yaml")
    orders = tidemark.read(shop, "orders")  # a Spark DataFrame, exact now
    with tidemark.Consumer(shop, "orders", "billing") as billing:
        for batch in billing.listen():  # whole transactions, in order, each once
            batch.frame.write.format("delta").options(**batch.once).mode("append").save("/lake/bills")

`run`, `publish` and `quarantine` do what the commands of these names do. Errors are of four families, each of
which says what a caller may do next: `Determinate`, `Indeterminate`, `InvalidUsage`, `InvariantViolation`.
`tidemark.airflow` has the operators, sensors and DAGs.

Importing this package is cheap: engines (Spark, Airflow, delta-rs) load with the name that needs them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tidemark.app.api import publish, quarantine, run
    from tidemark.app.consume import Batch, Consumer
    from tidemark.app.publish import RunResult
    from tidemark.app.views import Together, View, open_errors, read, read_together
    from tidemark.app.workspace import load_pipeline
    from tidemark.config import ConfigInvalid, PipelineConfig, Problem
    from tidemark.core.errors import (
        Determinate,
        Indeterminate,
        InvalidUsage,
        InvariantViolation,
        TidemarkError,
    )
    from tidemark.core.lease import LeaseLost
    from tidemark.core.log import BeforeReplacement, Limits, Truncated
    from tidemark.core.reading import Frozen, ShardReplaced

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "BeforeReplacement",
    "ConfigInvalid",
    "Consumer",
    "Determinate",
    "Frozen",
    "Indeterminate",
    "InvalidUsage",
    "InvariantViolation",
    "LeaseLost",
    "Limits",
    "PipelineConfig",
    "Problem",
    "RunResult",
    "ShardReplaced",
    "TidemarkError",
    "Together",
    "Truncated",
    "View",
    "__version__",
    "load_pipeline",
    "open_errors",
    "publish",
    "quarantine",
    "read",
    "read_together",
    "run",
]

_MODULES: Final = {
    "Batch": "tidemark.app.consume",
    "BeforeReplacement": "tidemark.core.log",
    "ConfigInvalid": "tidemark.config",
    "Consumer": "tidemark.app.consume",
    "Determinate": "tidemark.core.errors",
    "Frozen": "tidemark.core.reading",
    "Indeterminate": "tidemark.core.errors",
    "InvalidUsage": "tidemark.core.errors",
    "InvariantViolation": "tidemark.core.errors",
    "LeaseLost": "tidemark.core.lease",
    "Limits": "tidemark.core.log",
    "PipelineConfig": "tidemark.config",
    "Problem": "tidemark.config",
    "RunResult": "tidemark.app.publish",
    "ShardReplaced": "tidemark.core.reading",
    "TidemarkError": "tidemark.core.errors",
    "Together": "tidemark.app.views",
    "Truncated": "tidemark.core.log",
    "View": "tidemark.app.views",
    "load_pipeline": "tidemark.app.workspace",
    "open_errors": "tidemark.app.views",
    "publish": "tidemark.app.api",
    "quarantine": "tidemark.app.api",
    "read": "tidemark.app.views",
    "read_together": "tidemark.app.views",
    "run": "tidemark.app.api",
}


def __getattr__(name: str) -> Any:
    """A public name, loaded when it is first used."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
