"""What a file source knows of bound files: an index that says what the bindings say, and their changes."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sources.harness import Landing
from tests.support.memory.control import MemoryControl
from tidemark.core.binding import Binding, Configuration, Owner
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import Frontier, Txn
from tidemark.sources.files import bound_files
from tidemark.sources.files.bound_files import PARTITION, BoundFile, BoundFiles, Manifest
from tidemark.sources.files.source import FileSource


class Ledger:
    """Bindings of so many files each, and which of them were read."""

    def __init__(self, transactions: int, *, files: int = 2, run: str = "run") -> None:
        self.read: list[int] = []
        self.bindings = [self._binding(txn, files, run) for txn in range(1, transactions + 1)]

    def _binding(self, txn: int, files: int, run: str) -> Binding:
        lower, upper = (txn - 1) * files, txn * files
        bound = tuple(
            BoundFile(seq, f"{seq}.json", 10 + seq, f"h{seq}", 20 + seq, 30) for seq in range(lower, upper)
        )
        manifest = Manifest("json", bound).to_json()
        ends = [Frontier.of({PARTITION: end}) for end in (lower, upper)]
        return Binding(Txn(txn), *ends, Owner(run), Configuration.of("{}"), manifest)

    def between(self, lower: Txn, upper: Txn) -> Sequence[Binding]:
        self.read += range(lower, upper)
        return self.bindings[lower - 1 : upper - 1]


def index_of(path: Path | None, ledger: Ledger, *, upto: int | None = None) -> BoundFiles:
    index = BoundFiles(path, ledger.between)
    index.learn(ledger.bindings[: upto if upto is not None else len(ledger.bindings)][-1])
    return index


def names(index: BoundFiles) -> list[str]:
    return sorted(index.among([f"{seq}.json" for seq in range(100)]), key=lambda name: int(name[:-5]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "_index" / "2.sqlite"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound_files, "BINDINGS_AT_ONCE", 3)
    monkeypatch.setattr(bound_files, "NAMES_AT_ONCE", 7)


def test_a_process_reads_the_newest_bindings_only_and_knows_all_files(path: Path) -> None:
    first = Ledger(10)
    index_of(path, first)
    assert first.read == list(range(1, 11))
    again = Ledger(12)
    index = index_of(path, again)
    assert again.read == [10, 11, 12], "the last one that is known is compared, and the new ones are learnt"
    assert names(index) == [f"{seq}.json" for seq in range(24)]
    assert index.among(["23.json"]) == {"23.json": BoundFile(23, "23.json", 33, "h23", 43, 30)}
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_an_older_snapshot_knows_its_own_files_and_takes_none_away(path: Path) -> None:
    ledger = Ledger(10)
    newer, older = index_of(path, ledger), index_of(path, ledger, upto=4)
    assert names(older) == [f"{seq}.json" for seq in range(8)]
    assert len(names(newer)) == 20
    older.learn(None)
    assert names(older) == []


def test_another_history_makes_it_again(path: Path) -> None:
    """A ledger that was set back and bound otherwise, or a warehouse that took another one's place."""
    index_of(path, Ledger(10))
    for other in (Ledger(10, run="other"), Ledger(5, files=3), Ledger(14, files=1)):
        files = sum(len(Manifest.from_json(one.manifest).files) for one in other.bindings)
        assert names(index_of(path, other)) == [f"{seq}.json" for seq in range(files)]


def test_who_makes_it_again_takes_nothing_from_those_who_look(path: Path) -> None:
    """Between learning and looking the index is made again for another history."""
    ledger = Ledger(10)
    index = index_of(path, ledger)
    index_of(path, Ledger(4, run="other"))
    assert names(index) == [f"{seq}.json" for seq in range(20)]


@pytest.mark.parametrize("content", [b"", b"no index at all" * 100, None])
def test_an_index_that_is_lost_or_damaged_is_made_again(path: Path, content: bytes | None) -> None:
    index_of(path, Ledger(10))
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    for _ in range(2):
        assert len(names(index_of(path, Ledger(10)))) == 20


def test_a_copy_of_an_index_is_made_again(path: Path) -> None:
    """One that came with a backup may have been copied while it was written."""
    index_of(path, Ledger(10))
    path.write_bytes(path.read_bytes())
    same = Ledger(10)
    index_of(path, same)
    assert same.read == []
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    with sqlite3.connect(copy) as db:
        db.execute("DELETE FROM files WHERE seq = 3")
    copy.replace(path)
    again = Ledger(10)
    assert len(names(index_of(path, again))) == 20
    assert again.read == list(range(1, 11))


def test_an_index_of_a_machine_that_went_down_since_is_made_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not synced, so a power cut may have torn it."""
    for boot, expected in (("one", 10), ("one", 0), ("two", 10), (None, 10), (None, 0)):
        file = tmp_path / "boot"
        file.write_text(f"{boot}\n") if boot is not None else file.unlink(missing_ok=True)
        monkeypatch.setattr(bound_files, "BOOT", file)
        ledger = Ledger(10)
        index_of(path, ledger)
        assert len(ledger.read) == expected


def test_an_index_that_cant_be_written_is_done_without(path: Path, tmp_path: Path) -> None:
    path.parent.parent.joinpath("_index").write_text("a file")
    assert len(names(index_of(path, Ledger(10)))) == 20
    assert len(names(index_of(None, Ledger(10)))) == 20


def test_an_index_that_breaks_between_two_looks_is_done_without(path: Path) -> None:
    index = index_of(path, Ledger(10))
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE files")
    assert len(names(index)) == 20


def test_a_file_that_is_bound_twice_is_told(path: Path) -> None:
    ledger = Ledger(2)
    again = Manifest("json", (BoundFile(2, "0.json", 1, "h", 1), BoundFile(3, "3.json", 1, "h", 1)))
    ledger.bindings[1] = replace(ledger.bindings[1], manifest=again.to_json())
    for _ in range(2):
        with pytest.raises(InvariantViolation, match=r"'0\.json' is bound twice, as number 0 and 2"):
            index_of(path, ledger)


def touch(path: Path, *, after_ns: int, content: str | None = None) -> int:
    """Have the system see a change after some time, with the size and the time as they were, as copying tools
    leave them; returns when it was. Its clock may tick seldom, so this goes on until it has."""
    before = path.stat()
    while path.stat().st_ctime_ns <= after_ns:
        if content is not None:
            path.write_text(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    return after.st_ctime_ns


def test_regression_new_content_of_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    landing = Landing(tmp_path)
    path = landing.put("a.json", '{"id": 1}\n')
    (binding,) = landing.bind(landing.source())
    touched = touch(path, after_ns=path.stat().st_ctime_ns)
    assert landing.source().inspect(binding) == "", "it was touched, and has its content"
    assert landing.run() == []
    touch(path, after_ns=touched, content='{"id": 2}\n')
    assert "file 'a.json' (number 0) was changed" in landing.source().inspect(binding)
    with pytest.raises(Exception, match=r"file 'a.json' \(number 0\) was changed"):
        landing.run()


def test_of_what_was_only_touched_an_offer_reads_so_much_and_the_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was copied with its times is not hashed whole by every run."""
    landing = Landing(tmp_path)
    files = [landing.put(f"{number}.json", "x" * 40) for number in range(4)]
    landing.run()
    monkeypatch.setattr("tidemark.sources.files.source.TOUCHED_BYTES_MAX", 80)
    last = max(file.stat().st_ctime_ns for file in files)
    for file in (files[2], files[0], files[3], files[1]):
        last = touch(file, after_ns=last)
    read: list[str] = []
    source = landing.source()
    monkeypatch.setattr(source, "_hash_of", lambda found: read.append(found.name) or found.name)
    with pytest.raises(Exception, match="was changed"):
        source.offer(landing.bindings()[-1])
    assert read == ["1.json", "3.json"]


def test_who_only_looks_makes_no_index_and_uses_one_that_is_there(tmp_path: Path) -> None:
    """`status` may be run by somebody whose files the pipeline can't write to."""
    landing, index = Landing(tmp_path / "in"), tmp_path / "_index" / "2.sqlite"
    landing.put("a.json")
    landing.run()
    landing.put("b.json")
    bindings = MemoryControl(landing.warehouse).bindings
    bindings.head()
    last = landing.bindings()[-1]
    for makes in (False, True):
        source = FileSource(landing.folder, landing.rules, bindings=bindings, index=index)
        assert source.waiting(last).pieces == 1
        assert index.exists() == makes
        FileSource(landing.folder, landing.rules, bindings=bindings, index=index).offer(last)
