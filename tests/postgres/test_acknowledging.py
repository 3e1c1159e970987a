"""How far a real slot is let go: to what is durable for every shard, whole commits, and no further."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.postgres.rig import PAIRS, PAIRS_SCHEMA, Kept, Rig

pytestmark = pytest.mark.server
MakeRig = Callable[..., Rig]


@pytest.fixture
def kept(rig: MakeRig) -> Kept:
    return Kept(rig(pairs=(PAIRS_SCHEMA, ["id"])))


def with_notes(kept: Kept) -> Rig:
    """Take in a second table, `notes`, and be done with its first reading."""
    works = kept.works
    works.sql(PAIRS.format("notes"), "ALTER TABLE notes REPLICA IDENTITY FULL")
    works.sql("ALTER PUBLICATION p ADD TABLE notes")
    works.schemas["notes"] = (PAIRS_SCHEMA, ["id"])
    kept.write(works.config())
    kept.run()
    return works


def test_f8_f9_a_table_that_is_taken_out_holds_no_log_however_busy_it_is(kept: Kept) -> None:
    works = with_notes(kept)
    del works.schemas["notes"]
    kept.write(works.config(generation=1))
    works.sql(*[f"INSERT INTO notes VALUES ({n}, 'n')" for n in range(5)])
    busy = works.log_end()
    kept.run()
    assert works.slot()[0] >= busy
    # It is said once: traffic of a table that is out binds nothing more, and holds nothing back.
    bound = len(kept.bound())
    works.sql("INSERT INTO notes VALUES (9, 'n')")
    busy = works.log_end()
    kept.run()
    assert (len(kept.bound()), works.slot()[0] >= busy) == (bound, True)
    works.sql("INSERT INTO pairs VALUES (4, 'd')")
    kept.run()
    kept.check()
