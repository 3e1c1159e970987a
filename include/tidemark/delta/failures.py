"""What delta-rs raises, in our words."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.core.errors import Determinate, InvariantViolation, TidemarkError

logger = logging.getLogger(__name__)


@contextmanager
def housekeeping(table: str) -> Iterator[None]:
    """Work that a commit does for the next ones: the commit stands, whatever becomes of it."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not panicked(error):
            raise
        logger.warning("housekeeping of %s is left for the next commit: %s", table, error)


def panicked(error: BaseException) -> bool:
    """delta-rs met something that it has no error for; its class can't be imported."""
    return type(error).__name__ == "PanicException"


@contextmanager
def reading(table: str) -> Iterator[None]:
    """Loading a table's log: a store that doesn't answer may be asked again, a damaged log may not."""
    try:
        yield
    except (TidemarkError, TableNotFoundError):
        raise
    except OSError as error:
        raise Determinate(f"{table} can't be read: {error}", hint="check the store, then retry") from error
    except BaseException as error:
        if not isinstance(error, (DeltaError, ValueError)) and not panicked(error):
            raise
        raise InvariantViolation(
            f"the log of {table} can't be read: {error}", hint="restore it from a backup"
        ) from error
