"""A power cut, and a real PostgreSQL whose slot has let go of the rows: they are not lost unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.postgres_pipeline import PAIRS_SCHEMA, Kept, Rig
from tidemark.core.errors import InvariantViolation

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.server


def test_w1_emptied_entries_stop_the_next_runs_and_the_slot_stays(rig: Callable[..., Rig]) -> None:
    """Once, two green runs went on above them; the row was missing for good, and a replay was identical."""
    kept = Kept(rig(pairs=(PAIRS_SCHEMA, ["id"])))
    works = kept.works
    works.sql("INSERT INTO pairs VALUES (4, 'd')")
    kept.run()
    kept.check()
    home = works.root / "wh" / "p"
    for table in ("_control/history", "_control/checkpoints", "pairs/log"):
        max((home / table / "_delta_log").glob("*.json")).write_bytes(b"")
    works.sql("INSERT INTO pairs VALUES (5, 'e')")
    stood = works.slot()
    for _ in range(2):
        with pytest.raises(InvariantViolation, match=r"entry \d+ of the log of .* is lost: it is empty"):
            kept.run()
    assert works.slot() == stood
