"""Consumers as real processes, killed, stopped and told to end: R3, R4, R6. Invariant 12."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reading.campaign import WAIT_SECONDS_MAX, campaign, delivered, ended, stopped, until_marked
from tests.reading.terminated import MARK, RAISES, STOPS
from tests.reading.worker import AFTER_EFFECT, DONE, LOST, STOP_BEFORE_EFFECT
from tests.support.shelf import SHARD, Shelf
from tidemark.app.consume import Consumer, leases_of
from tidemark.core.ids import Txn
from tidemark.core.lease import HolderToken, LeaseState, Tenure

pytestmark = pytest.mark.slow


def test_r3_r4_a_killed_readers_lease_expires_and_the_next_goes_on_exactly_there(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.append(*([("k", n), ("l", n)] for n in range(1, 8)))
    assert ended(tmp_path, upper=8, txns_max=3, fuse=AFTER_EFFECT) == -signal.SIGKILL
    held = leases_of(shelf.works).current(f"billing/{SHARD}")
    assert held is not None
    # Its effect is done and its frontier is not moved; what it was given is on record.
    assert (held.is_live, held.txn, held.planned) == (True, 1, 4)
    assert ended(tmp_path, upper=8, txns_max=5) == DONE
    names = sorted(file.name for file in (tmp_path / "out" / "billing").glob("*.json"))
    assert names == ["000001-000004.json", "000004-000008.json"]
    delivered(tmp_path, shelf.written, upper=8)


def test_r4_a_reader_stopped_past_its_deadline_wakes_to_a_typed_error_and_moves_nothing(
    tmp_path: Path,
) -> None:
    shelf = Shelf(tmp_path)
    shelf.append([("k", 1)], [("k", 2)])
    sleeper = stopped(tmp_path, upper=3, txns_max=1, fuse=STOP_BEFORE_EFFECT)
    assert ended(tmp_path, upper=3, txns_max=1) == DONE
    effects = {file: file.read_bytes() for file in (tmp_path / "out" / "billing").glob("*.json")}
    sleeper.send_signal(signal.SIGCONT)
    assert sleeper.wait(WAIT_SECONDS_MAX) == LOST
    assert "is lost: not renewed for" in (tmp_path / "out" / "billing" / "lost").read_text()
    # Nothing of it was read or written after it woke, and the frontier is the other's.
    assert {file: file.read_bytes() for file in effects} == effects
    held = leases_of(shelf.works).current(f"billing/{SHARD}")
    assert held is not None
    assert held.txn == 3


@pytest.mark.parametrize(("how", "done"), [(STOPS, ["1-2"]), (RAISES, [])])
def test_r3_r6_a_consumer_that_is_told_to_end_lets_go_and_delivers_nothing_by_half(
    tmp_path: Path, how: str, done: list[str]
) -> None:
    """The batch at hand is finished and confirmed, or left whole to the next process; nobody else moves."""
    shelf = Shelf(tmp_path)
    shelf.append([("a", 1)], [("b", 2)], [("c", 3)])
    leases = leases_of(shelf.works)
    other = leases.take(f"audit/{SHARD}", HolderToken("other"), start=Txn(1))
    assert isinstance(other, Tenure)
    process = subprocess.Popen([sys.executable, "-m", "tests.reading.terminated", str(tmp_path), how])
    until_marked(tmp_path / "out" / MARK)
    process.terminate()
    assert process.wait(WAIT_SECONDS_MAX) == 0
    out = tmp_path / "out"
    assert sorted(file.name for file in out.iterdir() if not file.name.startswith(".")) == done
    held = leases.current(f"billing/{SHARD}")
    assert held is not None
    assert (held.state, held.txn) == (LeaseState.RELEASED, 1 + len(done))
    assert leases.current(f"audit/{SHARD}") == other.lease
    # The next one waits for nobody, and goes on exactly there.
    with Consumer(shelf.again(), SHARD, "billing", wait_seconds=0) as reader:
        assert reader.frontier == 1 + len(done)


def test_a_consumer_that_is_killed_and_stopped_while_a_writer_appends_has_every_change_once(
    tmp_path: Path,
) -> None:
    assert campaign(tmp_path, seed=7, txns=12, kills=3) == {"killed": 2, "stopped": 1, "lost": 1}
