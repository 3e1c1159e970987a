"""A `Consumer` in a process of its own that is told to end: `python -m tests.reading.terminated FOLDER HOW`.

It is the product's own loop, with a signal handler as docs/reading.md has it; only the DataFrame is left out,
so that no JVM is needed. In the middle of its first effect it leaves a mark, and waits for the signal.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tests.reading.campaign import WAIT_SECONDS_MAX
from tests.support.shelf import SHARD, deployed
from tidemark.app.consume import Batch, Consumer
from tidemark.core.log import Limits
from tidemark.spark import views

STOPS, RAISES = "stops", "raises"
MARK = "in the middle"


def effect(out: Path, batch: Batch, told: threading.Event) -> None:
    """One file per batch, there whole or not at all."""
    hidden = out / f".{batch.lower}-{batch.upper}"
    hidden.touch()
    if batch.lower == 1 and not told.is_set():
        (out / MARK).touch()
        told.wait(WAIT_SECONDS_MAX)
    hidden.rename(out / f"{batch.lower}-{batch.upper}")


def main(root: str, how: str) -> None:
    out = Path(root) / "out"
    out.mkdir(exist_ok=True)
    told = threading.Event()
    views.log_changes = lambda *given, **more: None  # type: ignore[assignment]
    Consumer._spec = None  # type: ignore[assignment]
    works = deployed(Path(root), lambda: None)  # type: ignore[arg-type, return-value]
    with Consumer(works, SHARD, "billing", limits=Limits(txns_max=1), ttl_seconds=60) as billing:

        def end(*_: Any) -> None:
            told.set()
            if how == RAISES:
                raise SystemExit(0)
            billing.stop()

        signal.signal(signal.SIGTERM, end)
        for batch in billing.listen(follow=True, poll_seconds=0.1):
            effect(out, batch, told)


if __name__ == "__main__":
    main(*sys.argv[1:])
