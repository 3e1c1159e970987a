"""What a broken disk, a full disk and a careless hand can do: a clear error each, and nothing lost."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.contract.helpers import LOG_SCHEMA
from tests.delta.helpers import entry, log_entries, open_journal, put_next, record_files
from tests.support.waiting import SECONDS_MAX
from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation, TidemarkError
from tidemark.core.ledger import UPPER, Committed, JournalEntry, Put
from tidemark.delta.commit import entry_bytes
from tidemark.delta.records import write_file
from tidemark.delta.store import Store

FLIPS = 150


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of three records."""
    folder = tmp_path / "journal"
    writer = open_journal(folder)
    for number in (1, 2, 3):
        put_next(writer, note=f"note {number}")
    return folder


def everything(folder: Path) -> tuple[int, list[JournalEntry], list[JournalEntry]]:
    reader = open_journal(folder)
    upper = reader.head().upper
    return upper, list(reader.read(0, 99)), list(reader.find("2"))


def refusals(folder: Path, path: Path, *, kind: type[TidemarkError]) -> int:
    """Flip one bit of a file at a time. Each time the answer is the true one, or a refusal of this
    kind that names the table; returns how many were refused."""
    truth, whole, dice = everything(folder), path.read_bytes(), random.Random(7)
    found: list[str] = []
    for _ in range(FLIPS):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        try:
            assert everything(folder) == truth
        except kind as error:
            found.append(str(error))
    path.write_bytes(whole)
    assert all(str(folder) in message for message in found)
    assert everything(folder) == truth
    return len(found)


def test_a_flipped_byte_in_a_record_file_is_never_read_as_something_else(journal: Path) -> None:
    """Whatever byte it is, the reader refuses the file and names the table."""
    assert refusals(journal, record_files(journal)[1], kind=InvariantViolation) == FLIPS


def test_a_flipped_byte_in_a_log_entry_is_never_read_as_something_else(journal: Path) -> None:
    """Marks, paths and statistics are all covered; what says when and with which library is not."""
    assert refusals(journal, log_entries(journal)[2], kind=TidemarkError) > FLIPS / 10


def test_flipped_bytes_in_a_checkpoint_are_never_read_as_something_else(journal: Path) -> None:
    writer = open_journal(journal)
    for _ in range(70):
        put_next(writer)
    checkpoint = next((journal / "_delta_log").glob("*.checkpoint.parquet"))
    assert refusals(journal, checkpoint, kind=TidemarkError) == 0, "the entries say it all"


def test_a_lost_record_file_is_named(journal: Path) -> None:
    gone = record_files(journal)[0]
    gone.rename(gone.with_suffix(".away"))
    with pytest.raises(InvariantViolation, match=f"{gone.name} is gone"):
        everything(journal)
    gone.with_suffix(".away").rename(gone)
    assert len(everything(journal)[1]) == 3


def test_a_log_entry_that_lost_its_file_breaks_the_chain(journal: Path) -> None:
    path = log_entries(journal)[2]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_bytes(entry_bytes([line for line in lines if "add" not in line]))
    with pytest.raises(InvariantViolation, match="are missing"):
        everything(journal)


def test_a_record_changed_with_valid_checksums_breaks_the_chain(journal: Path) -> None:
    """Somebody rewrote a file, its name and its log entry, all by the book: only the chain knows."""
    [old] = [path for path in record_files(journal) if path.name.startswith(f"r-{2:020}")]
    rows = pq.read_table(old)
    body = rows["body"][0].as_py().replace("note 2", "n0te 2")
    forged = rows.set_column(rows.schema.get_field_index("body"), "body", pa.array([body]))
    link_before = int(old.name.split("-")[3], 16)
    file = write_file(Store(str(journal), {}), forged, versions=(2, 2), link_before=link_before, version=2)
    path = log_entries(journal)[2]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for action in lines:
        if "add" in action:
            action.update(file.add(at_ms=0, data_change=True))
    path.write_bytes(entry_bytes(lines))
    with pytest.raises(InvariantViolation, match="record 2 does not follow the one before it"):
        everything(journal)


def test_a_table_whose_marks_would_expire_is_refused(journal: Path) -> None:
    reader = open_journal(journal)
    reader.head()
    DeltaTable(str(journal)).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 7 days"}
    )
    for opened in (reader, open_journal(journal)):
        with pytest.raises(InvalidUsage, match=r"setTransactionRetentionDuration.*unset"):
            opened.head()


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    DeltaTable.create(str(tmp_path / "journal"), schema=LOG_SCHEMA)
    with pytest.raises(InvalidUsage, match=r"column .* is not one of this version's columns"):
        open_journal(tmp_path / "journal").head()


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from tests.delta.helpers import open_journal, put_next
from tidemark.core.errors import Determinate
put_next(open_journal(Path(sys.argv[2])))  # Everything is imported once we may no longer read it.
if os.getuid() == 0:
    os.setuid(65534)
ledger = open_journal(Path(sys.argv[1]))
try:
    put_next(ledger)
except Determinate as error:
    print("refused:", error.hint)
print("upper", ledger.head().upper)
"""


def test_a_read_only_folder_is_a_clear_error_and_a_retry_works_later(tmp_path: Path) -> None:
    """In a process without privileges: the superuser may write anywhere."""
    with TemporaryDirectory() as made:
        journal = Path(made) / "journal"
        put_next(open_journal(journal))
        for folder in (Path(made), journal, journal / "_delta_log"):
            folder.chmod(0o555)
        command = [sys.executable, "-c", UNPRIVILEGED, str(journal), str(tmp_path / "scratch")]
        root = Path(__file__).parents[2]
        found = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX, cwd=root
        )
        for folder in (Path(made), journal, journal / "_delta_log"):
            folder.chmod(0o755)
        assert found.stdout.splitlines() == [
            "refused: check the free space and the permissions, then retry",
            "upper 2",
        ], found.stderr
        assert put_next(open_journal(journal)) == entry(2)
        assert len(record_files(journal)) == 2


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """No file may grow beyond a size: what a full disk looks like to one process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_without_room_for_the_record_loses_nothing(
    journal: Path, small_files: Callable[[int], None]
) -> None:
    ledger = open_journal(journal)
    head = ledger.head()
    small_files(100)
    with pytest.raises(Determinate, match=r"no record was written.*retry"):
        ledger.commit(head, Put({UPPER: 5}, (entry(4, note="x" * 5000),), None))
    small_files(resource.RLIM_INFINITY)
    assert ledger.head() == head
    assert isinstance(ledger.commit(head, Put({UPPER: 5}, (entry(4),), None)), Committed)
    assert everything(journal)[0] == 5


def test_a_disk_without_room_for_the_log_entry_loses_nothing_and_leaves_no_file(
    journal: Path, small_files: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 4: what could not be committed leaves no record file behind."""
    ledger = open_journal(journal)
    head = ledger.head()
    before = record_files(journal)
    put = ledger._table.store.put_synced

    def put_then_fill(path: str, data: bytes) -> None:
        put(path, data)
        small_files(100)

    monkeypatch.setattr(ledger._table.store, "put_synced", put_then_fill)
    with pytest.raises(Determinate, match=r"version 4 of .* was not written"):
        ledger.commit(head, Put({UPPER: 5}, (entry(4),), None))
    small_files(resource.RLIM_INFINITY)
    monkeypatch.undo()
    assert record_files(journal) == before
    assert ledger.head() == head
    assert isinstance(ledger.commit(head, Put({UPPER: 5}, (entry(4),), None)), Committed)
    assert everything(journal)[0] == 5
