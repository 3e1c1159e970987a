"""The four families of errors; the family says what a caller may do next.

=====================  ========================================  ==============================
family                 meaning                                   what to do
=====================  ========================================  ==============================
`Determinate`          it did not happen                         retry
`Indeterminate`        it may have happened                      read back first, then decide
`InvalidUsage`         the caller or the input is wrong          mend that; a retry won't help
`InvariantViolation`   a promise of the system is broken         stop, and look
=====================  ========================================  ==============================

A lost race is none of these: it is a value that a function returns (`UpperMismatch`, `Lost`).
A message is a lowercase fact with its values; the hint says what to do.
"""

from __future__ import annotations


class TidemarkError(Exception):
    """The common root. `fact` says what is so, `hint` what to do about it; `kept` is the fact as it may go on
    record, without values of rows."""

    def __init__(self, fact: str, *, hint: str = "") -> None:
        super().__init__(f"{fact}: {hint}" if hint else fact)
        self.fact = fact
        self.hint = hint
        self.kept = fact

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
    """What the system promises does not hold. Nothing more is written until someone has looked."""


def _rebuilt(kind: type[TidemarkError], fact: str, hint: str, fields: dict[str, object]) -> TidemarkError:
    error = kind.__new__(kind)
    TidemarkError.__init__(error, fact, hint=hint)
    error.__dict__.update(fields)
    return error
