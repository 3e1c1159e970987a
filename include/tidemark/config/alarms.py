"""The `alarms` section of a pipeline file: from where on something needs somebody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator

from tidemark.config.base import Model, checked
from tidemark.core.alarms import BEHIND, QUARANTINE, REPLAYABLE, STALLED, WAL, Limits, limit


def _limit(kind: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        limit(kind, value)
        return value

    return checked(check)


class Alarms(Model):
    """Limits as they are written: lengths of time, a size, a share of records. null for what is no alarm."""

    stalled: Annotated[str, AfterValidator(_limit(STALLED))] = "15m"
    behind: Annotated[str, AfterValidator(_limit(BEHIND))] | None = "2d"
    wal: Annotated[str, AfterValidator(_limit(WAL))] | None = "10GB"
    replayable: Annotated[str, AfterValidator(_limit(REPLAYABLE))] | None = "2d"
    quarantine: Annotated[str, AfterValidator(_limit(QUARANTINE))] | None = "5%"

    @property
    def limits(self) -> Limits:
        given: dict[str, Any] = {}
        for kind in type(self).model_fields:
            value = getattr(self, kind)
            given |= limit(kind, value) if value is not None else {}
        return Limits(**given)
