"""The vacuum of states: what a version within the retention needs stays, and no writer is too slow."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.s3 import ObjectStore
from tests.support.state_table import Hand, new_table, rows_of
from tidemark.core.errors import InvalidUsage
from tidemark.core.ledger import Committed
from tidemark.delta import state as state_module
from tidemark.delta.deletion_vectors import BitMap
from tidemark.delta.head import TableHead
from tidemark.delta.state import Change, StateTable
from tidemark.delta.state_files import write_rows
from tidemark.delta.store import Store
from tidemark.delta.vacuum import RETENTION, check_remembered, decide_vacuum, read_listing, vacuum

DAY_MS = 86_400_000
KEPT_MS = 7 * DAY_MS


class Clock:
    """It begins now: whoever makes a checkpoint has the machine's own, and forgets by that."""

    def __init__(self) -> None:
        self.ms = time.time_ns() // 1_000_000

    def ns(self) -> int:
        return self.ms * 1_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(tmp_path: Path, clock: Clock) -> Hand:
    made = Hand(tmp_path / "state", clock_ns=clock.ns)
    made.create()
    return made


def files(state: Hand) -> set[str]:
    return {path for path in state.table.store.listed() if not path.startswith("_delta_log")}


def at_version(state: Hand, version: int) -> dict[int, str]:
    table = DeltaTable(str(state.root), version=version)
    found = pa.table(QueryBuilder().register("t", table).execute("select k, v from t").read_all())
    return dict(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))


def cleaned(state: Hand, clock: Clock) -> list[str]:
    return [one.path for one in vacuum(state.table.store, now_ms=clock.ms, kept_ms=KEPT_MS)]


def test_every_version_within_the_retention_is_read_after_a_vacuum_and_no_file_is_kept_for_older_ones(
    state: Hand, clock: Clock
) -> None:
    models: dict[int, tuple[int, dict[int, str]]] = {0: (clock.ms, {})}
    for at in range(12):
        clock.ms += DAY_MS
        upserts = dict.fromkeys(range(at % 4, 60, 3), f"{at}")
        state.publish(upserts, set(range(at, 60, 9)) - upserts.keys())
        models[at + 1] = (clock.ms, dict(state.model))
        cleaned(state, clock)
        # A version is needed until what follows it is older than the retention.
        for version, (_, model) in models.items():
            ended = models[version + 1][0] if version + 1 in models else clock.ms
            if clock.ms - ended < KEPT_MS:
                assert at_version(state, version) == model, (version, at)
    clock.ms += 8 * DAY_MS
    cleaned(state, clock)
    head = state.table.head()
    live = {file.location for file in head.files.values()}
    live |= {file.vector.path for file in head.files.values() if file.vector is not None}
    assert files(state) == live
    assert at_version(state, 12) == state.model
    state.check()


def test_a_vector_file_stays_while_one_of_its_vectors_is_in_use(state: Hand, clock: Clock) -> None:
    state.publish({1: "a", 2: "a", 3: "a"})
    state.publish({4: "a", 5: "a", 6: "a"})
    state.publish({}, {1, 4})
    (shared,) = {file.vector.path for file in state.table.head().files.values() if file.vector is not None}
    state.publish({}, {2})
    clock.ms += 8 * DAY_MS
    assert shared not in cleaned(state, clock)
    state.publish({}, {5})
    clock.ms += 8 * DAY_MS
    assert shared in cleaned(state, clock)
    assert at_version(state, 5) == state.model == {3: "a", 6: "a"}


def test_a_writer_that_is_slower_than_the_retention_loses_nothing(state: Hand, clock: Clock) -> None:
    """Its files are for the next version, however old they are."""
    state.publish({1: "a", 2: "a"})
    head = state.table.head()
    slow = write_rows(state.table.store, rows_of({3: "slow"}), version=2, nonce=uuid.uuid4())
    os.utime(state.root / slow.path, (0, 0))
    clock.ms += 400 * DAY_MS
    assert cleaned(state, clock) == []
    assert state.table.commit(head, Change("WRITE", 3, added=[slow])) == Committed(2)
    assert at_version(state, 2) == {1: "a", 2: "a", 3: "slow"}


def test_what_lost_its_race_goes_at_once(state: Hand, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    state.publish({1: "a", 2: "a"})
    head = state.table.head()
    ((path, _),) = head.files.items()

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(state_module, "put_entry", die)
        with pytest.raises(KeyboardInterrupt):
            state.table.commit(head, Change("WRITE", 1, hidden={path: BitMap([0])}))
    (vector,) = [one for one in files(state) if one.startswith("_vectors/")]
    rows = write_rows(state.table.store, rows_of({3: "lost"}), version=2, nonce=uuid.uuid4())
    assert cleaned(state, clock) == []
    state.publish({9: "x"})
    assert sorted(cleaned(state, clock)) == sorted([vector, rows.path])
    assert at_version(state, 2) == state.model


def test_files_of_others_go_by_their_age_and_files_of_another_kind_stay(state: Hand, clock: Clock) -> None:
    state.publish({1: "a"})
    folder = state.root
    young, old = folder / "part-young.parquet", folder / "part-old.parquet"
    others = [folder / "readme.txt", folder / "_other" / "x.parquet", folder / "_change_data" / "c.txt"]
    feed = folder / "_change_data" / "cdc-old.parquet"
    foreign = folder / "ab" / f"deletion_vector_{uuid.uuid4()}.bin"
    for path in (young, old, *others, foreign, feed):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (0, 0) if path != young else (clock.ms / 1000, clock.ms / 1000))
    found = decide_vacuum(read_listing(state.table.store), now_ms=clock.ms, kept_ms=KEPT_MS)
    assert {folder / one.path for one in found} == {old, foreign, feed}
    assert old.exists()
    cleaned(state, clock)
    assert (old.exists(), foreign.exists(), feed.exists(), young.exists()) == (False, False, False, True)
    assert all(path.exists() for path in others)


def test_a_log_that_forgets_sooner_than_files_are_kept_is_refused() -> None:
    for text, is_enough in (
        ("interval 7 days", True), ("interval 1 week", True), ("168 hours", True), ("interval 6 days", False),
        ("INTERVAL 10079 minutes", False), ("interval 1 month", False),
    ):  # fmt: skip
        made = new_table(**{RETENTION: text})
        head = TableHead().after([{"protocol": made["protocol"]}, {"metaData": made["metadata"]}], version=0)
        if is_enough:
            check_remembered(head, KEPT_MS)
        else:
            with pytest.raises(InvalidUsage, match="raise the property"):
                check_remembered(head, KEPT_MS)


def test_without_a_table_nothing_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x")
    assert vacuum(Store(str(tmp_path), {}), now_ms=10**15, kept_ms=0) == []


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 9), st.text("ab", max_size=2), max_size=5),
            st.sets(st.integers(0, 9), max_size=4),
            st.integers(0, 5),
            st.sampled_from(["", "checkpoint", "leftover"]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_vacuum_at_any_time_leaves_the_newest_version_and_its_young_history_readable(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[dict[int, str], set[int], int, str]]
) -> None:
    clock = Clock()
    state = Hand(tmp_path_factory.mktemp("any") / "state", clock_ns=clock.ns)
    state.create()
    before: dict[int, str] = {}
    for upserts, deletes, days, accident in steps:
        before, version = dict(state.model), state.table.head().version
        state.publish(upserts, deletes - upserts.keys())
        if accident == "checkpoint":
            DeltaTable(str(state.root)).create_checkpoint()
        if accident == "leftover":
            write_rows(state.table.store, rows_of({99: "x"}), version=version + 1, nonce=uuid.uuid4())
        clock.ms += days * DAY_MS
        cleaned(state, clock)
        assert state.by_delta_rs() == state.model
        if version >= 0 and days < 5:
            assert at_version(state, version) == before
        # Nothing is left that neither the head nor its history names.
        assert cleaned(state, clock) == []


@pytest.mark.server
def test_an_object_store_is_cleaned_by_the_same_rules(s3: ObjectStore, tmp_path: Path) -> None:
    uri = f"s3://{s3.bucket}/vacuumed/{tmp_path.name}"
    table = StateTable(uri, storage_options=s3.options)
    store = table.store
    made = write_rows(store, rows_of({1: "a", 2: "b"}), version=0, nonce=uuid.uuid4())
    lost = write_rows(store, rows_of({1: "x"}), version=0, nonce=uuid.uuid4())
    out = pa.BufferOutputStream()
    pq.write_table(rows_of({5: "y"}), out)
    store.put_synced("part-foreign.parquet", out.getvalue().to_pybytes())
    assert table.commit(table.head(), Change("WRITE", 2, added=[made], **new_table())) == Committed(0)
    written_ms = store.modified_ms(["part-foreign.parquet"])["part-foreign.parquet"]
    assert [one.path for one in vacuum(store, now_ms=written_ms, kept_ms=KEPT_MS)] == [lost.path]
    later = vacuum(store, now_ms=written_ms + KEPT_MS, kept_ms=KEPT_MS)
    assert [one.path for one in later] == ["part-foreign.parquet"]
    assert made.path in store.listed()
