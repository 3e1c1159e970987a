"""`tidemark status --fail-if …`: which of the things that status shows are an alarm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidemark.cli.shared import seconds_in
from tidemark.core.errors import InvalidUsage
from tidemark.core.text import span

if TYPE_CHECKING:
    from tidemark.status import Status

EXIT_ALARM_TEXT: Final = "4 what --fail-if names is so."
_BARE: Final = ("blocked", "stalled")
_HINT: Final = "there are: blocked, stalled, behind=10m, quarantine, quarantine=24h"


def alarms_in(text: str) -> Mapping[str, float | None]:
    """The alarms that are asked for, each with its length of time where it has one."""
    asked: dict[str, float | None] = {}
    for one in filter(None, (word.strip() for word in text.split(","))):
        name, given, length = one.partition("=")
        known = name in (*_BARE, "behind", "quarantine")
        if not known or (given and name in _BARE) or (name == "behind" and not given):
            raise InvalidUsage(f"{one!r} is no alarm", hint=_HINT)
        asked[name] = seconds_in(length) if given else None
    return asked


def alarms_of(found: Status, asked: Mapping[str, float | None], *, now_seconds: float) -> tuple[str, ...]:
    """Those of the alarms that ring, in words. What can't be known rings too, or is refused."""
    rung: list[str] = []
    if "blocked" in asked:
        rung += [f"blocked: {one.what}: {one.why}" for one in found.blocked]
    if "stalled" in asked:
        rung += [f"stalled: {what}" for what in found.stalled]
    if "behind" in asked:
        rung += _behind(found, asked["behind"] or 0.0, now_seconds)
    if "quarantine" in asked:
        rung += _quarantine(found, asked["quarantine"], now_seconds)
    return tuple(rung)


def _behind(found: Status, seconds_max: float, now_seconds: float) -> list[str]:
    if found.waiting.trouble:
        return [f"behind: {found.waiting.trouble}"]
    if not found.waiting.known:
        raise InvalidUsage(
            f"the source of {found.pipeline} does not say since when its input waits",
            hint="use --fail-if stalled here, and watch the source's own lag, which status shows",
        )
    oldest = {f"{found.waiting.pieces:,} {found.waiting.unit} wait": found.waiting.oldest}
    if found.open:
        oldest[f"transaction {found.open[0]} is bound and not sealed"] = found.open_since
    ages = {what: now_seconds - at.timestamp() for what, at in oldest.items() if at is not None}
    return [f"behind: {what}, for {span(age)}" for what, age in ages.items() if age > seconds_max]


def _quarantine(found: Status, within: float | None, now_seconds: float) -> list[str]:
    last = found.quarantined.last
    recent = within is None or last is None or now_seconds - last.timestamp() <= within
    if not found.quarantined.records or not recent:
        return []
    return [f"quarantine: {found.quarantined.records:,} records are quarantined"]
