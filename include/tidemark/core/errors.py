"""The four error families. The family determines what a caller may do next.

=====================  ========================================  ==============================
family                 meaning                                   what to do
=====================  ========================================  ==============================
`Determinate`          it did not happen                         retry
`Indeterminate`        it may have happened                      read back first, then decide
`InvalidUsage`         the caller or the input is wrong          correct it; a retry won't help
`InvariantViolation`   a promise of the system is broken         stop and investigate
=====================  ========================================  ==============================

A lost race is not an error: it is a returned value (`UpperMismatch`, `Lost`). A message is a lowercase fact
with its values; the hint is the remedy.

The base of the package reads pipeline files and control tables. Code that needs an optional library calls
`require` before it imports anything, so that the error names the extra to install.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final


class TidemarkError(Exception):
    """The base class. `fact` is the fact, `hint` the remedy; `recordable` is the fact without values of rows,
    for records."""

    def __init__(self, fact: str, *, hint: str = "") -> None:
        super().__init__(f"{fact}: {hint}" if hint else fact)
        self.fact = fact
        self.hint = hint
        self.recordable = fact

    def __reduce__(self) -> tuple[object, ...]:
        # Airflow and multiprocessing pickle exceptions; keyword-only fields don't survive that.
        return (_rebuilt, (type(self), self.fact, self.hint, self.__dict__))


class Determinate(TidemarkError):
    """The effect did not happen. The same call may be made again."""


class Indeterminate(TidemarkError):
    """The effect may or may not have happened. Read back before deciding anything."""


class InvalidUsage(TidemarkError):
    """The request or the input is wrong, and will be wrong again on a retry."""


class InvariantViolation(TidemarkError):
    """A promise of the system does not hold. Nothing more is written until a person has investigated."""


def _rebuilt(kind: type[TidemarkError], fact: str, hint: str, fields: dict[str, object]) -> TidemarkError:
    error = kind.__new__(kind)
    TidemarkError.__init__(error, fact, hint=hint)
    error.__dict__.update(fields)
    return error


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
