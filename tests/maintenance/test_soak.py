"""Consumers have every change exactly once while writers append and maintenance runs, and each is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.maintenance.soak import delivered, landed, soak

pytestmark = pytest.mark.slow


def test_r3_r4_r5_no_consumer_is_broken_by_writers_maintenance_or_kills(tmp_path: Path) -> None:
    """Invariants 2, 11 and 12 with real processes; `python -m tests.maintenance` does it for minutes."""
    told = soak(tmp_path, seconds=10, seconds_max=900, seed=3, writers=4, consumers=2, keepers=2)
    assert told.errors == []
    # Else it has shown nothing: each was killed, and maintenance merged, truncated and deleted meanwhile.
    assert told.is_enough, told
    assert told.records > 0
    for consumer in ("c0", "c1"):
        assert delivered(tmp_path, consumer) == landed(tmp_path)
    # What nobody holds any more was given back, and nothing lies about that the log doesn't name.
    assert told.bytes_left < told.bytes_peak
    assert told.files_left == told.files_named
