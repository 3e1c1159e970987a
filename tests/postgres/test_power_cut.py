"""A power cut, and a real PostgreSQL whose slot has let go of the rows: they are not lost unseen."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.postgres.worker import pipeline_at
from tests.simulation.disk import Disk, Killed, PowerCut
from tests.support.light import SyncingPlane, captured_records
from tests.support.postgres_pipeline import PAIRS_SCHEMA, Kept, Rig, attempt
from tidemark.core.errors import Determinate, Indeterminate, InvariantViolation
from tidemark.delta.head import damaged_entries, set_aside
from tidemark.pipeline.recover import Recovered, recover
from tidemark.pipeline.run import run
from tidemark.sources.postgres.slot import SlotLost

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.server
POWER_CUTS = 16


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
    # The newest commit of the history was a seal: the captured files are bound, and nothing is lost.
    assert recovered(works).lost == {}
    kept.run()
    kept.check()


def test_w5_a_power_cut_at_any_call_loses_no_change_of_the_slot(rig: Callable[..., Rig]) -> None:
    """The disk keeps what was synced, some of the rest, and fails at times; the slot keeps what was not
    acknowledged. Nobody has to recover."""
    kept = Kept(rig(pairs=(PAIRS_SCHEMA, ["id"])))
    works, cut, lost = kept.works, 0, 0

    def synced_run() -> None:
        plane = SyncingPlane(works.root / "wh" / "p", Path(works.config().source_location), captured_records)
        run(replace(pipeline_at(works.root), plane=plane), attempt())

    for seed in range(POWER_CUTS):
        rng = random.Random(seed)
        works.sql(f"INSERT INTO pairs VALUES ({10 + seed}, 'n')", f"UPDATE pairs SET value = '{seed}'")
        fails, dies = rng.choice((0.0, 0.05)), rng.choice((0, rng.randint(1, 60)))
        disk = Disk(
            works.root / "wh", works.root / f"disk-{seed}", rng, cut_at=rng.randint(1, 100), fails=fails,
            kill_at=dies,
        )  # fmt: skip
        with disk.watched(), suppress(PowerCut):
            for _ in range(2):
                with suppress(Determinate, Indeterminate, Killed):
                    synced_run()
                disk.start_again()
            disk.cut()
        disk.restart()
        cut, lost = cut + (disk.calls == disk.cut_at), lost + disk.lost
        synced_run()
        kept.check()
    assert cut > POWER_CUTS / 3
    assert lost > POWER_CUTS / 4


def test_w3_a_slot_that_is_ahead_of_a_warehouse_that_was_put_back_is_named(rig: Callable[..., Rig]) -> None:
    """Everything else agrees with itself, and the captured rows are in no slot any more."""
    kept = Kept(rig(pairs=(PAIRS_SCHEMA, ["id"])))
    works, home = kept.works, kept.works.root / "wh" / "p"
    aside = works.root / "copy"
    for table in ("_control", "pairs"):
        shutil.copytree(home / table, aside / table)
    works.sql("INSERT INTO pairs VALUES (4, 'd')", "DELETE FROM pairs WHERE id = 2")
    kept.run()
    for table in ("_control", "pairs"):
        shutil.rmtree(home / table)
        shutil.copytree(aside / table, home / table)
    works.sql("INSERT INTO pairs VALUES (5, 'e')")
    with pytest.raises(SlotLost, match=r"captured changes .* are in no binding"):
        kept.run()
    recovered(works, restored=True)
    with pytest.raises(SlotLost, match="captured changes"):
        kept.run()
    works.source().ask_again("public.pairs")
    kept.run()
    kept.check()


def test_w2_tables_whose_bindings_are_lost_are_read_anew(rig: Callable[..., Rig]) -> None:
    kept = Kept(rig(pairs=(PAIRS_SCHEMA, ["id"])))
    works = kept.works
    works.sql("INSERT INTO pairs VALUES (4, 'd')", "DELETE FROM pairs WHERE id = 2")
    kept.run()
    log = works.root / "wh" / "p" / "_control/history" / "_delta_log"
    for _ in range(2):
        max(log.glob("*.json")).unlink()
    works.sql("INSERT INTO pairs VALUES (5, 'e')")
    with pytest.raises(InvariantViolation, match="newest commits are lost"):
        kept.run()
    assert list(recovered(works).lost) == [2]
    kept.run()
    kept.check()


def recovered(works: Rig, *, restored: bool = False) -> Recovered:
    home = str(works.root / "wh" / "p")
    set_aside(home, damaged_entries(home))
    return recover(pipeline_at(works.root), attempt(), restored=restored)
