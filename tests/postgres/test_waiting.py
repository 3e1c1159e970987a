"""Since when changes of a database wait: the commit time of the first one that no transaction has."""

from __future__ import annotations

import json
from collections.abc import Callable

import psycopg
import pytest

from tests.support.postgres_pipeline import PAIRS, PAIRS_SCHEMA, Kept, Rig, file_of, told
from tests.support.waiting import SECONDS_MAX
from tidemark.pipeline.context import last_binding
from tidemark.ports.source import Waiting
from tidemark.sources.postgres import slot as slots
from tidemark.sources.postgres import source

pytestmark = pytest.mark.server
MakeRig = Callable[..., Rig]


@pytest.fixture
def kept(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setattr(source, "LOOK_SECONDS_MAX", int(SECONDS_MAX))
    return Kept(rig(pairs=(PAIRS_SCHEMA, ["id"])))


def waiting(works: Rig) -> Waiting:
    pipeline = works.begun().pipeline
    return works.source().waiting(last_binding(pipeline, pipeline.control.bindings.head()))


def committed(works: Rig, *statements: str) -> tuple[float, float]:
    """Make a transaction, and tell between which times the server committed it."""
    now = "SELECT extract(epoch FROM clock_timestamp())::float8"
    ((before,),) = works.sql(now)
    works.transaction(*statements)
    ((after,),) = works.sql(now)
    return before, after


def test_the_first_commit_that_is_not_bound_counts_and_the_slot_stays(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = kept.works
    nothing = Waiting(unit="or more source transactions")
    assert waiting(works) == nothing
    # What the pipeline does not take is nothing that waits for it.
    works.sql(PAIRS.format("others"), "ALTER PUBLICATION p ADD TABLE others", "INSERT INTO others VALUES (1)")
    assert waiting(works) == nothing
    before, after = committed(works, "INSERT INTO pairs VALUES (4, 'd')", "INSERT INTO pairs VALUES (5, 'e')")
    committed(works, "INSERT INTO pairs VALUES (6, 'f')")
    slot = works.slot()
    found = waiting(works)
    assert (found.pieces, found.trouble, works.slot()) == (1, "", slot)
    assert found.oldest_seconds is not None
    assert before <= found.oldest_seconds <= after
    # What is bound does not wait, though the slot still has it.
    works.bind()
    assert (waiting(works), works.slot()) == (nothing, slot)
    before, after = committed(works, "DELETE FROM pairs WHERE id = 4")
    monkeypatch.setenv("TIDEMARK_ROOT", str(works.root))
    file = str(file_of(works))
    code, output = told("status", file, "--fail-if", "behind=0s", "--json")
    alarms = json.loads(output)["alarms"]
    assert (code, len(alarms)) == (4, 2), output
    assert alarms[0]["fact"].startswith("1 or more source transactions wait, for ")
    assert "waiting: 1 or more source transactions, the oldest from " in told("status", file)[1]
    assert told("status", file, "--fail-if", "behind=1d")[0] == 0
    found = waiting(works)
    assert found.oldest_seconds is not None
    assert before <= found.oldest_seconds <= after
    kept.run()
    assert waiting(works) == nothing
    kept.check()


def test_what_can_not_be_told_is_trouble(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    works = kept.works
    assert works.source().waiting(None).trouble.startswith("nothing is bound yet")
    committed(works, *[f"INSERT INTO pairs VALUES ({number}, 'x')" for number in range(10, 20)])
    works.bind()
    committed(works, "INSERT INTO pairs VALUES (20, 'x')")
    assert waiting(works).pieces == 1
    with monkeypatch.context() as patched:
        patched.setattr(source, "LOOK_CHANGES_MAX", 3)
        assert (
            waiting(works).trouble
            == "the first 3 changes in the slot are bound already, or belong to other tables"
        )
        patched.setattr(source, "LOOK_SECONDS_MAX", 1)
        with psycopg.connect(works.postgres.conninfo(works.database)) as db:
            slots.lock(db, works.database)
            assert "could not be looked into in 1 s" in waiting(works).trouble
    works.source().ask_again("public.pairs")
    assert waiting(works).trouble == "tables wait for a snapshot: public.pairs"
    works.sql(f"SELECT pg_drop_replication_slot('{works.database}')")
    kept.works.schemas["notes"] = (PAIRS_SCHEMA, ["id"])
    assert waiting(works).trouble == "tables wait for a snapshot: public.notes, public.pairs"
