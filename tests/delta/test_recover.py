"""A power cut, then `recover`, on real tables and files: the tables are right in the end (W2, W5)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from tests.crash.race import pipeline_at
from tests.delta.test_power_cut import TABLES, newest, work
from tests.support.light import SHARD
from tests.support.tables import rows_of
from tidemark.app.deployment import new_token
from tidemark.core.binding import Owner
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import Txn
from tidemark.core.replay import Verdict
from tidemark.delta.head import SET_ASIDE, damaged_entries, set_aside
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.history import losses
from tidemark.pipeline.recover import Recovered, plan, recover
from tidemark.pipeline.run import replay

LOSSES = [
    *(("emptied", lost) for count in (1, 2, 3) for lost in combinations(TABLES, count)),
    *(("gone", (table,)) for table in TABLES),
    ("cut", TABLES),
]


def recovered(root: Path) -> Recovered:
    home = str(root / "wh" / "race")
    set_aside(home, damaged_entries(home))
    return recover(pipeline_at(root), Attempt(Owner("recover"), new_token()))


def state(root: Path) -> dict[int, str]:
    """The newest value of each key, by the log."""
    rows = rows_of(root / "wh" / "race" / SHARD / "log", ["_txn", "_offset", "_ordinal", "id", "value"])
    return {key: value for *_, key, value in sorted(rows)}


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The state after three rounds of a pipeline that nothing happened to."""
    root = tmp_path_factory.mktemp("whole")
    for number in (1, 2, 3):
        work(root, number)
    return state(root)


def entries(root: Path) -> Iterator[Path]:
    return (root / "wh").rglob("_delta_log/*.json")


@pytest.mark.parametrize(("damage", "lost"), LOSSES)
def test_w2_after_a_recovery_the_tables_are_right_and_a_replay_says_the_truth(
    tmp_path: Path, wanted: dict[int, str], lost: tuple[str, ...], damage: str
) -> None:
    for number in (1, 2):
        work(tmp_path, number)
    for table in lost:
        entry = newest(tmp_path, table)
        if damage == "gone":
            entry.unlink()
        else:
            entry.write_bytes(entry.read_bytes()[:40] if damage == "cut" else b"")
    done = recovered(tmp_path)
    work(tmp_path, 3)
    assert state(tmp_path) == wanted
    pipeline = pipeline_at(tmp_path)
    assert not losses(pipeline.control, (SHARD,))
    last = Txn(pipeline.control.seals.head().upper - 1)
    found = replay(pipeline, Attempt(Owner("proof"), new_token()), txn_from=Txn(1), txn_to=last)
    assert {one.txn for one in found if one.verdict is not Verdict.IDENTICAL} == set(done.lost)
    assert not done.lost, "one commit of the history is one seal, and its input is there"


def test_w2_a_history_without_its_last_binding_names_what_is_lost(
    tmp_path: Path, wanted: dict[int, str]
) -> None:
    for number in (1, 2):
        work(tmp_path, number)
    for _ in range(2):
        newest(tmp_path, "_control/history").unlink()
    with pytest.raises(InvariantViolation, match="`tidemark recover PIPELINE`"):
        work(tmp_path, 3)
    found = plan(pipeline_at(tmp_path))
    assert (found.plan.again, found.plan.lost, found.plan.first) == ((), (2,), 3)
    kept = set(entries(tmp_path))
    done = recovered(tmp_path)
    assert list(done.lost) == [2]
    assert kept <= set(entries(tmp_path))
    work(tmp_path, 3)
    assert state(tmp_path) == wanted
    pipeline = pipeline_at(tmp_path)
    bindings = [one.txn for one in pipeline.control.bindings.read(1, pipeline.control.bindings.head().upper)]
    assert bindings == [1, 2, 3]


def test_an_entry_that_is_set_aside_is_kept_and_one_below_a_whole_one_is_left(tmp_path: Path) -> None:
    for number in (1, 2):
        work(tmp_path, number)
    home = tmp_path / "wh" / "race"
    first, last = sorted((home / "_control/history/_delta_log").glob("*.json"))[-2:]
    first.write_bytes(b"")
    assert damaged_entries(str(home)) == []
    last.write_bytes(b"{")
    assert [(one.table, one.version) for one in damaged_entries(str(home))] == [
        ("_control/history", int(last.stem)),
        ("_control/history", int(first.stem)),
    ]
    set_aside(str(home), damaged_entries(str(home)))
    assert not last.exists()
    assert not first.exists()
    aside = sorted((last.parent / SET_ASIDE).iterdir())
    assert [one.read_bytes() for one in aside] == [b"", b"{"]


def test_a_recovery_of_a_pipeline_that_lacks_nothing_does_nothing(tmp_path: Path) -> None:
    work(tmp_path, 1)
    before = set(entries(tmp_path))
    assert not plan(pipeline_at(tmp_path)).is_needed
    assert recovered(tmp_path) == Recovered(epoch=0)
    assert set(entries(tmp_path)) == before
