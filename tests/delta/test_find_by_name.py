"""A record is found by a name that says nothing of its time, and no damage to the summary hides it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tidemark.core.binding import Claim, Owner
from tidemark.core.history import BOUND
from tidemark.core.ledger import Committed, Put
from tidemark.delta.control import DeltaControl
from tidemark.delta.ledger import LARGE_FILES_MAX
from tidemark.delta.records import ROWS_FULL
from tidemark.delta.store import Store

FULL = LARGE_FILES_MAX + 3


def run_of(number: int, salt: str = "") -> str:
    return f"manual__{hashlib.sha256(f'{salt}{number}'.encode()).hexdigest()[:16]}"


def claim(control: DeltaControl, numbers: Sequence[int], salt: str = "") -> None:
    """Put a claim under each of these numbers, by a run of a random name, in one file."""
    claims = [Claim(number, Owner(run_of(number, salt))) for number in numbers]
    ledger = control.history
    assert isinstance(ledger.commit(ledger.head(), Put({BOUND: numbers[-1] + 1}, claims, None)), Committed)


def fill(root: Path, files: int, *, start: int = 0, salt: str = "") -> DeltaControl:
    control = DeltaControl(str(root), "p")
    for file in range(start, start + files):
        claim(control, range(file * ROWS_FULL + 1, (file + 1) * ROWS_FULL + 1), salt)
    return control


def found(root: Path, number: int, salt: str = "", *, control: DeltaControl | None = None) -> list[int]:
    """The numbers under a run's name, by a handle that has just been opened."""
    control = control or DeltaControl(str(root), "p")
    control.history.head()
    return [one.number for one in control.owned.find(f"run:{run_of(number, salt)}")]


def some(files: int) -> Iterator[int]:
    """A number in each file."""
    yield from (file * ROWS_FULL + 1 + 7 * file for file in range(files))


def summary_of(root: Path) -> Path:
    (found,) = (root / "p/_control/_index/history").iterdir()
    return found


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of some full files and a few small ones, with a summary."""
    root = tmp_path_factory.mktemp("old")
    control = fill(root, FULL)
    assert found(root, 0) == []
    claim(control, [FULL * ROWS_FULL + 1])
    return root


@pytest.fixture
def copy(old: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(old, tmp_path / "copy"))


def test_a_new_name_opens_no_full_file_and_a_known_one_opens_its_own(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    get = Store.get

    def counted(store: Store, path: str) -> bytes:
        opened.extend([path] if path.startswith("r-") else [])
        return get(store, path)

    monkeypatch.setattr(Store, "get", counted)
    assert found(old, 0) == []
    small = len(opened)
    assert small <= 1
    for number in some(FULL):
        opened.clear()
        assert found(old, number) == [number]
        assert len(opened) <= small + 1
    assert found(old, FULL * ROWS_FULL + 1) == [FULL * ROWS_FULL + 1], "newer than the summary"


def test_no_damage_to_the_summary_hides_a_record(copy: Path) -> None:
    summary = summary_of(copy)
    data = summary.read_bytes()
    first = hashlib.blake2b(f"run:{run_of(1)}".encode(), digest_size=8).digest()
    assert first in data
    ends = (0, 17, 30, 2048, 2100, len(data) // 2, data.index(first), data.index(first) + 9, len(data) - 1)
    damaged = [data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :] for at in ends]
    for one in (*damaged, b"", bytes(len(data)), data[:-8], data[:40], data.replace(first, bytes(8))):
        summary.write_bytes(one)
        assert [found(copy, number) for number in some(FULL)] == [[number] for number in some(FULL)]
    summary.unlink()
    summary.mkdir()
    assert found(copy, 1) == [1]


def test_a_summary_of_another_history_is_not_believed(copy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    fill(other, FULL, salt="other")
    assert found(other, 0) == []
    shutil.copyfile(summary_of(copy), summary_of(other))
    for number in some(FULL):
        assert found(other, number, "other") == [number]
        assert found(other, number) == []


def test_merges_and_old_versions_agree_with_the_summary(copy: Path) -> None:
    before = DeltaControl(str(copy), "p")
    before.history.head()
    fill(copy, 20, start=FULL + 1)
    last = (FULL + 21) * ROWS_FULL
    assert found(copy, last) == [last]
    assert len(list((copy / "p/_control/history").glob("r-*.parquet"))) > FULL + 21, "and one merged"
    claim(DeltaControl(str(copy), "p"), [last + 1])
    wanted = [*some(FULL), last, last + 1]
    assert [found(copy, number) for number in wanted] == [[number] for number in wanted]
    # A handle on the version before sees what that version has, and nothing else.
    assert [one.number for one in before.owned.find(f"run:{run_of(last)}")] == []
    assert [one.number for one in before.owned.find(f"run:{run_of(8 + ROWS_FULL)}")] == [8 + ROWS_FULL]
