"""Pipelines that stay open between two looks, so that a look reads what is new and not the whole history.

A handle on a table follows it forward only: a warehouse that was set back or made anew would be shown as it
was before. So every look compares the chain of the bindings, as a new handle finds it, with that of the kept
one, and begins anew where they differ, where the pipeline file has changed, and once an hour.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidemark.airflow.pages.registry import PipelineDag, environment_of
from tidemark.assemble import Deployment
from tidemark.tasks import open_pipeline

KEPT_MAX: Final = 64
KEPT_SECONDS_MAX: Final = 3_600.0


@dataclass
class Kept:
    """A pipeline that is open. A ledger is for one thread, so one look at a time."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    deployment: Deployment | None = None
    file: tuple[int, int] = (0, 0)
    opened_seconds: float = 0.0


_kept: OrderedDict[tuple[str, str | None], Kept] = OrderedDict()
_kept_lock = threading.Lock()


@contextmanager
def looking(one: PipelineDag) -> Iterator[Deployment]:
    """The pipeline's control plane, for who only looks; nothing here can start a Spark."""
    environment = environment_of(one)
    with _kept_lock:
        kept = _kept.setdefault((one.pipeline_file, environment), Kept())
        _kept.move_to_end((one.pipeline_file, environment))
        while len(_kept) > KEPT_MAX:
            _kept.popitem(last=False)
    with kept.lock:
        found = Path(one.pipeline_file).stat() if Path(one.pipeline_file).is_file() else None
        file = (found.st_mtime_ns, found.st_size) if found is not None else (0, 0)
        if kept.deployment is None or kept.file != file or not _is_current(kept):
            kept.deployment = None
            kept.deployment = open_pipeline(one.pipeline_file, environment)
            kept.file, kept.opened_seconds = file, time.monotonic()
        try:
            yield kept.deployment
        except BaseException:
            kept.deployment = None  # Whatever it was, the next look begins anew.
            raise


def _is_current(kept: Kept) -> bool:
    """Whether the history is still the one that the kept handles have followed, and they are not too old."""
    deployment = kept.deployment
    if deployment is None or time.monotonic() - kept.opened_seconds > KEPT_SECONDS_MAX:
        return False
    before = deployment.unchecked.control.bindings.head()
    now = deployment.fresh_control().bindings.head()
    return now == before or deployment.unchecked.control.bindings.head() == now
