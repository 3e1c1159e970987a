"""Control tables and logs are committed by our own entries: what they say, that they last, and that nothing
is put where something was."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import polars as pl
import pytest
from deltalake import DeltaTable, Schema

from tests.contract.helpers import LOG_SCHEMA
from tests.delta.helpers import entry, log_entries, open_journal, put_next, record_files
from tests.delta.test_log import append, stage
from tests.support.state_table import Hand
from tests.support.waiting import SECONDS_MAX
from tidemark.core.errors import Indeterminate, InvalidUsage
from tidemark.core.ledger import UPPER, Conflict, Put
from tidemark.delta.checkpoint import clean_log
from tidemark.delta.commit import COMMIT_SECONDS_MAX, LOG, entry_path, put_entry, read_entry
from tidemark.delta.head import read_head
from tidemark.delta.log import DeltaLog
from tidemark.delta.probe import probe_put_if_absent
from tidemark.delta.protocol import protocol_action, widened_protocol
from tidemark.delta.state import Change, StateTable
from tidemark.delta.store import FOLDERS_ABOVE, Store


def actions(path: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(line)[kind] for line in path.read_text().splitlines() if f'"{kind}"' in line]


def with_column(kind: Any, *, nullable: bool = True) -> Schema:
    fields = json.loads(LOG_SCHEMA.to_json())["fields"]
    more = {"name": "at", "type": kind, "nullable": nullable, "metadata": {}}
    return Schema.from_json(json.dumps({"type": "struct", "fields": [*fields, more]}))


def test_a_new_table_asks_of_its_readers_only_what_it_needs(tmp_path: Path) -> None:
    """delta-rs gives every new table a reader feature that other engines refuse."""
    folder = tmp_path / "plain"
    append(DeltaLog(str(folder), schema=LOG_SCHEMA), stage(folder, 1, 2))
    [protocol] = actions(log_entries(folder)[0], "protocol")
    assert protocol == {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly"]}
    folder = tmp_path / "times"
    append(DeltaLog(str(folder), schema=with_column("timestamp_ntz")), stage(folder, 1, 2))
    [protocol] = actions(log_entries(folder)[0], "protocol")
    assert (protocol["minReaderVersion"], protocol["readerFeatures"]) == (3, ["timestampNtz"])
    assert pl.read_delta(str(folder)).height == 2
    inner = {"name": "a", "type": "long", "nullable": False, "metadata": {}}
    required = [
        with_column("long", nullable=False),
        with_column({"type": "struct", "fields": [inner]}),
    ]
    for schema in required:
        # Spark reads no table with a NOT NULL column, at any depth, whose protocol doesn't name the feature.
        assert protocol_action(configuration={}, schema=schema.to_json())["writerFeatures"] == ["invariants"]


def test_a_column_that_needs_a_feature_brings_it_and_all_else_stays_said(tmp_path: Path) -> None:
    """A table that delta-rs has made, too: what its version says without words has to be said then."""
    folder = tmp_path / "log"
    folder.mkdir()
    made = DeltaLog(str(folder), schema=LOG_SCHEMA)._table._configuration
    table = DeltaTable.create(
        str(folder), schema=LOG_SCHEMA, configuration=made, name="orders", description="of the shop"
    )
    append(DeltaLog(str(folder), schema=LOG_SCHEMA), stage(folder, 1, 2))
    wide = DeltaLog(str(folder), schema=with_column("timestamp_ntz"))
    assert isinstance(wide.commit(wide.head(), Put({UPPER: 3}, (stage(folder, 2, 3),), None)), Conflict)
    [protocol] = actions(log_entries(folder)[-1], "protocol")
    assert {"timestampNtz", "appendOnly"} <= set(protocol["writerFeatures"])
    found = DeltaTable(str(folder))
    known, before = found.metadata(), table.metadata()
    for name in ("id", "name", "description", "created_time", "configuration"):
        assert getattr(known, name) == getattr(before, name), name
    wide.remember_removals(90)
    kept = DeltaTable(str(folder)).metadata()
    assert kept.configuration["delta.deletedFileRetentionDuration"] == "interval 90 days"
    assert (kept.id, kept.name) == (before.id, "orders")
    assert "at" in pl.read_delta(str(folder)).columns


def test_a_protocol_is_only_widened_and_only_where_it_must_be() -> None:
    needed = {"minReaderVersion": 3, "readerFeatures": ["timestampNtz"], "writerFeatures": ["timestampNtz"]}
    assert widened_protocol({"minWriterVersion": 2}, {"minReaderVersion": 1}) is None
    assert widened_protocol({"minWriterVersion": 7, "readerFeatures": ["timestampNtz"]}, needed) is None
    assert widened_protocol({"minWriterVersion": 2}, needed) == {
        "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["timestampNtz"],
        "writerFeatures": ["appendOnly", "invariants", "timestampNtz"],
    }  # fmt: skip


def test_a_record_is_on_disk_before_the_entry_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "journal"
    put_next(open_journal(folder))
    ledger, done = open_journal(folder), []
    sync, link = os.fsync, os.link

    def synced(handle: int) -> None:
        done.append(Path(f"/proc/self/fd/{handle}").readlink())
        sync(handle)

    def linked(source: Path, target: Path) -> None:
        done.append(Path(target))
        link(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    put_next(ledger)
    monkeypatch.undo()
    log = folder / "_delta_log"
    [record] = [path for path in record_files(folder) if path.name.startswith(f"r-{2:020}")]
    order = [done.index(record), done.index(folder), done.index(log_entries(folder)[-1])]
    assert order == sorted(order)
    # The entry's bytes before its name, its folder after it.
    assert done[order[-1] - 1].parent == log
    assert done[order[-1] + 1 :] == [log]


@pytest.mark.parametrize("later", ["00000000000000000009.json", "00000000000000000009.checkpoint.parquet"])
def test_an_entry_is_not_put_below_one_that_is_there(tmp_path: Path, later: str) -> None:
    """It is not absent then, but was cleaned away."""
    store = Store(str(tmp_path), {})
    (tmp_path / "_delta_log").mkdir()
    mine = [{"commitInfo": {"tidemarkCommit": "me"}}]
    # What is no version is none.
    for name in ("_last_checkpoint", "_commit_00000000000000000009.json.tmp", "00000000000000000009.crc"):
        (tmp_path / "_delta_log" / name).touch()
    assert put_entry(store, 3, mine) != Conflict()
    (tmp_path / "_delta_log" / later).touch()
    (tmp_path / entry_path(3)).unlink()
    assert put_entry(store, 4, mine) == Conflict()
    assert [path.name for path in log_entries(tmp_path) if path.name != later] == []


def log_of(folder: Path, entries: int, *checkpoints: int) -> Store:
    """A log of so many entries, and checkpoints."""
    store = Store(str(folder), {})
    for version in range(entries):
        put_entry(store, version, [{"commitInfo": {"tidemarkCommit": str(version)}}])
    for version in checkpoints:
        (folder / f"_delta_log/{version:020}.checkpoint.parquet").touch()
    return store


def test_clean_up_keeps_what_young_versions_need(tmp_path: Path) -> None:
    """Those are the last checkpoint that is old, and all from there on."""
    store = log_of(tmp_path, 12, 3, 6, 9)
    for version in range(8):
        os.utime(tmp_path / entry_path(version), (version, version))
    assert clean_log(store, before_ms=6_000) == 3
    assert log_entries(tmp_path)[0].name == f"{3:020}.json"
    assert clean_log(store, before_ms=7_000) == 4, "with the older checkpoint"
    assert log_entries(tmp_path)[0].name == f"{6:020}.json"
    assert clean_log(store, before_ms=9_000) == 0, "no version is between the last checkpoint and that time"


def test_a_clean_up_that_fails_leaves_no_entry_before_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit asks for the entry before its own alone, so that one must go first."""
    store = log_of(tmp_path, 8, 6)
    for path in log_entries(tmp_path):
        os.utime(path, (0, 0))
    delete, left = Store.delete, [4]

    def failing(store: Store, path: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(5, "Input/output error")
        delete(store, path)

    monkeypatch.setattr(Store, "delete", failing)
    with pytest.raises(OSError, match="Input/output"):
        clean_log(store, before_ms=1)
    assert [path.name for path in log_entries(tmp_path)] == [f"{at:020}.json" for at in range(4, 8)]
    mine = [{"commitInfo": {"tidemarkCommit": "asleep"}}]
    assert [put_entry(store, version, mine) for version in range(1, 8)] == [Conflict()] * 7


def test_a_commit_does_not_list_the_log_however_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_journal(tmp_path / "journal")
    put_next(ledger)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "names_after", lambda *_: pytest.fail("the log was listed"))
        put_next(ledger)
    assert ledger.head().upper == 3


def test_the_names_of_a_table_and_its_pipeline_are_synced_once_and_again_when_the_folder_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have made each of these folders, and died before it synced the name."""
    monkeypatch.setattr("tidemark.delta.store._NAMES_SYNCED", set())
    table = tmp_path / "warehouse" / "p" / "_control" / "journal"
    (table / LOG).mkdir(parents=True)
    store, synced, sync = Store(str(table), {}), [], os.fsync
    above = [table, *table.parents[:FOLDERS_ABOVE]]
    assert above[-1] == tmp_path

    def record(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        sync(handle)

    monkeypatch.setattr(os, "fsync", record)
    for _ in range(2):
        store.sync_folders(["a.parquet"])
    assert synced == [*above, table]
    shutil.copytree(table, tmp_path / "copy")
    shutil.rmtree(table)
    (tmp_path / "copy").rename(table)
    synced.clear()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing_at(table.parent))
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                store.sync_names()
    synced.clear()
    store.sync_names()
    assert synced == above[:2], "the folders above are the same ones"
    monkeypatch.undo()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing_at(table.parent))
        # A folder whose name can't be made durable is made anew by a retry.
        with pytest.raises(OSError, match="Input/output"):
            Store(str(table.parent / "other"), {}).put_synced("a", b"")
        assert not (table.parent / "other").exists()


def failing_at(folder: Path, *, times: int = 99) -> Callable[[int], None]:
    """An `os.fsync` that fails so many times for a folder."""
    sync, left = os.fsync, [times]

    def broken(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink() == folder and left[0]:
            left[0] -= 1
            raise OSError(5, "Input/output error")
        sync(handle)

    return broken


def test_regression_a_failed_sync_of_the_log_is_not_believed_at_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says it once, and may keep nothing of it: the name itself has to be written again."""
    folder = tmp_path / "journal"
    ledger = open_journal(folder)
    put_next(ledger)
    linked: list[int] = []
    link = os.link

    def watched(source: Path, target: Path) -> None:
        link(source, target)
        linked.append(Path(target).stat().st_ino)

    monkeypatch.setattr(os, "link", watched)
    monkeypatch.setattr(os, "fsync", failing_at(folder / LOG, times=1))
    put_next(ledger)
    assert log_entries(folder)[-1].stat().st_ino == linked[1] != linked[0]
    assert not list((folder / LOG).glob("_commit_*"))


def test_regression_a_commit_that_is_visible_and_not_durable_is_nobodys_ground(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its writer nor a rival goes on from it. Once the disk works again, it counts once."""
    folder = tmp_path / "journal"
    ledger, rival = open_journal(folder), open_journal(folder)
    put_next(ledger)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing_at(folder / LOG))
        with pytest.raises(Indeterminate, match="a power cut may take it back"):
            put_next(ledger)
        for one in (ledger, rival, open_journal(folder)):
            with pytest.raises(Indeterminate, match=r"may have been written.*check the disk"):
                one.head()
    assert [one.head().upper for one in (ledger, rival, open_journal(folder))] == [3, 3, 3]


def unsynced(folder: Path) -> tuple[Path, Path]:
    """The newest entry and its second name, as a writer leaves them that died before it synced them."""
    newest = log_entries(folder)[-1]
    second = newest.with_name(f"_commit_{newest.stem}_{'0' * 32}.tmp")
    os.link(newest, second)
    return newest, second


@pytest.mark.parametrize("action", ["reads", "maintains"])
def test_regression_what_a_dead_writer_left_unsynced_lasts_before_anything_depends_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    folder = tmp_path / "journal"
    put_next(open_journal(folder))
    newest, second = unsynced(folder)
    before, inode, done, sync = newest.read_bytes(), newest.stat().st_ino, [], os.fsync
    rename, ledger = os.rename, open_journal(folder)

    def synced(handle: int) -> None:
        done.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        sync(handle)

    def renamed(source: Path, target: Path) -> None:
        done.append(Path(target).name)
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    if action == "reads":
        ledger.head()
    else:
        ledger.sweep()
    assert done[0].startswith("_commit_"), "the bytes"
    assert done[1:] == [newest.name, LOG]
    assert newest.read_bytes() == before
    assert newest.stat().st_ino != inode
    assert not list(newest.parent.glob("_commit_*"))
    open_journal(folder).head()
    assert len(done) == 3, "that is needed once"
    assert not second.exists()


def test_who_may_not_write_reads_an_entry_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "journal"
    put_next(open_journal(folder))
    _, second = unsynced(folder)

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tidemark.delta.store._write_again", refused)
    assert open_journal(folder).head().upper == 2
    assert second.exists()


def test_an_entry_that_clean_up_deleted_meanwhile_is_not_brought_back(tmp_path: Path) -> None:
    """A commit takes the absence of the entry before its own for a sign of clean-up."""
    store = log_of(tmp_path, 8, 6)
    newest = tmp_path / entry_path(3)
    os.link(newest, newest.with_name(f"_commit_{newest.stem}_{'0' * 32}.tmp"))

    def slept(target: Path, inode: int) -> list[Path]:
        for version in range(6):
            (tmp_path / entry_path(version)).unlink()
        return [target.with_name("_commit_left.tmp")]

    with patch("tidemark.delta.store._second_names", slept), pytest.raises(FileNotFoundError):
        read_entry(store, 3)
    assert [path.name for path in log_entries(tmp_path)] == [f"{at:020}.json" for at in (6, 7)]
    assert put_entry(store, 4, [{"commitInfo": {"tidemarkCommit": "asleep"}}]) == Conflict()


def test_a_rival_that_was_cleaned_away_while_we_slept_may_have_been_ourselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, mine, now = Store(str(tmp_path), {}), [{"commitInfo": {"tidemarkCommit": "me"}}], [0.0]
    real = Store.put_if_absent

    def met(late: float) -> None:
        def put(store: Store, path: str, data: bytes) -> bool:
            real(store, path, data)
            (tmp_path / path).unlink()
            now[0] += late
            return False

        monkeypatch.setattr(Store, "put_if_absent", put)

    met(1)
    assert put_entry(store, 0, mine, seconds=lambda: now[0]) == Conflict()
    met(COMMIT_SECONDS_MAX + 1)
    with pytest.raises(Indeterminate, match="may have been written"):
        put_entry(store, 0, mine, seconds=lambda: now[0])


class Careless(BaseHTTPRequestHandler):
    """An object store that takes every put, whatever its condition."""

    protocol_version = "HTTP/1.1"
    kept: ClassVar[dict[str, bytes]] = {}

    def do_PUT(self) -> None:
        self.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, b"")

    def do_GET(self) -> None:
        data = self.kept.get(self.path, b"")
        asked = self.headers["Range"]
        if asked is None or self.path not in self.kept:
            self.answer(200 if self.path in self.kept else 404, data)
            return
        first, last = (int(end or -1) for end in asked.removeprefix("bytes=").split("-"))
        part = data[first : last + 1 if last >= 0 else len(data)]
        self.answer(206, part, **{"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(data)}"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.kept.pop(self.path, None)
        self.answer(204, b"")

    def do_POST(self) -> None:
        """Deletes by a list; the names don't matter here."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, b"<DeleteResult/>")

    def answer(self, status: int, data: bytes, **more: str) -> None:
        self.send_response(status)
        known = {"ETag": '"1"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        for name, value in {"Content-Length": str(len(data)), **known, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


def serve(ports: Any) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Careless)
    ports.put(server.server_port)
    server.serve_forever()


@pytest.fixture
def careless() -> Iterator[dict[str, str]]:
    """The options that reach such a store: a process of its own, because a client may hold on to Python while
    it waits for an answer."""
    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    server = context.Process(target=serve, args=(ports,), daemon=True)
    server.start()
    try:
        port = ports.get(timeout=SECONDS_MAX)
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1",
        }  # fmt: skip
    finally:
        server.kill()
        server.join()


@pytest.mark.server
def test_a_store_that_ignores_the_condition_is_refused_by_the_probe(careless: dict[str, str]) -> None:
    result = probe_put_if_absent("s3://warehouse/tables", careless, writers=2, rounds=2)
    assert not result.holds
    assert [one.winners for one in result.rounds] == [(0, 1), (0, 1)]


@pytest.mark.server
def test_an_object_store_is_reached_by_the_environment_too_and_by_options_of_delta_rs(
    careless: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidUsage, match=r"can't be reached: .*aws_nonsense"):
        Store("s3://warehouse/x", {"aws_nonsense": "1"}).put_if_absent("a", b"1")
    delta_rs = {"AWS_S3_ALLOW_UNSAFE_RENAME": "true", "AWS_S3_LOCKING_PROVIDER": "dynamodb"}
    assert Store("s3a://warehouse/x", {**careless, **delta_rs}).put_if_absent("a", b"1")
    for name, value in careless.items():
        monkeypatch.setenv(name, value)
    store = Store("s3://warehouse/x", {})
    assert store.put_if_absent("b", b"2")
    assert store.get("b") == b"2"


def test_a_table_whose_pointer_to_its_checkpoint_is_lost_is_no_new_table(tmp_path: Path) -> None:
    """And one that slept through log clean-up opens it anew."""
    hand = Hand(tmp_path / "state")
    hand.create()
    sleeper = StateTable(str(hand.root))
    stale = sleeper.head()
    for at in range(4):
        hand.publish({at: "x"})
    DeltaTable(str(hand.root)).create_checkpoint()
    for path in (*log_entries(hand.root), hand.root / "_delta_log" / "_last_checkpoint"):
        path.unlink()
    assert read_head(Store(str(hand.root), {})).rows == 4
    assert sleeper.commit(stale, Change("WRITE", 0)) == Conflict()
    assert sleeper.head().version == 4


def test_a_commit_that_lost_its_race_leaves_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    put_next(open_journal(folder))
    slow, quick = open_journal(folder), open_journal(folder)
    head = slow.head()
    put_next(quick)
    before = sorted(folder.rglob("*"))
    assert slow.commit(head, Put({UPPER: 3}, (entry(2, token="slow"),), None)) == Conflict()
    assert sorted(folder.rglob("*")) == before
    assert slow.head().upper == 3
