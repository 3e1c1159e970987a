"""The put-if-absent probe: passes on a local disk, and notices a store that has no such thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.core.errors import Determinate
from tidemark.delta.probe import ProbeResult, Round, probe_put_if_absent
from tidemark.delta.store import local_path


def test_a_local_disk_has_one_winner_each_round_and_nothing_is_left(tmp_path: Path) -> None:
    result = probe_put_if_absent(tmp_path, writers=3, rounds=4)
    assert result.holds
    assert [one.version for one in result.rounds] == [1, 2, 3, 4]
    assert list(tmp_path.iterdir()) == []


def test_a_file_address_is_probed_like_its_folder(tmp_path: Path) -> None:
    assert probe_put_if_absent(tmp_path.as_uri(), writers=2, rounds=1).holds
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("winners", "stored"),
    [((0, 1), 1), ((), None), ((0,), 1), ((0,), None)],
    ids=["two winners", "no winner", "another's commit is stored", "the commit is gone"],
)
def test_any_other_outcome_than_one_winner_stored_does_not_hold(
    winners: tuple[int, ...], stored: int | None
) -> None:
    good, bad = Round(1, (0,), 0), Round(2, winners, stored)
    result = ProbeResult("somewhere", writers=2, rounds=(good, bad))
    assert not result.holds
    assert "commit 2" in result.describe()


def test_a_probe_that_raced_nothing_does_not_hold() -> None:
    assert not ProbeResult("somewhere", writers=2, rounds=()).holds


def test_a_store_that_cannot_be_reached_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Determinate, match="can't be probed"):
        probe_put_if_absent(tmp_path / "file" / "warehouse")


def test_addresses_of_object_stores_are_not_folders() -> None:
    assert local_path("s3://bucket/tables") is None
    assert local_path("/data/tables") == Path("/data/tables")
    assert local_path("file:///data/my%20tables") == Path("/data/my tables")
