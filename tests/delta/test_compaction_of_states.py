"""A compaction of a state wins against publishers, changes no row, and keeps what files have beside them."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.s3 import ObjectStore
from tests.support.state_table import Hand, new_table
from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.core.ids import ShardId
from tidemark.core.ledger import Committed
from tidemark.core.publish import VERSION_NONE, BeingPublished
from tidemark.delta import state_maintenance
from tidemark.delta.commit import file_version
from tidemark.delta.state import Change, NewFile, StateTable
from tidemark.delta.state_files import DIGEST, KEY, statistics
from tidemark.delta.state_maintenance import DeltaStateKeeper, MaintainedState
from tidemark.delta.store import Store
from tidemark.delta.vacuum import vacuum

SHARD = ShardId("t")


def keeper_of(root: Path, days: int = 7) -> DeltaStateKeeper:
    """For the state in `root/state`."""
    return DeltaStateKeeper("p", {SHARD: MaintainedState(str(root), days)})


def merge(root: Path) -> None:
    keeper_of(root).merge(SHARD, tombstones=VERSION_NONE)


@pytest.fixture
def state(tmp_path: Path) -> Hand:
    """Many small files, most of which have hidden rows."""
    made = Hand(tmp_path / "state")
    made.create()
    made.publish(dict.fromkeys(range(60), "0"))
    for at in range(1, 6):
        made.publish(dict.fromkeys(range(at, 60, 7), f"{at}"), {at + 50})
    keeper_of(tmp_path).vacuum(SHARD, tombstones=VERSION_NONE)  # It has its retention by now.
    return made


def data_files(root: Path) -> set[str]:
    return {path.name for path in root.glob("*.parquet")}


def check(state: Hand) -> None:
    """Everybody reads the model; what stands beside the rows is theirs."""
    state.check()
    named = {file.location for file in state.table.head().files.values()}
    assert named <= data_files(state.root)


def test_a_merge_keeps_rows_order_digests_and_says_that_nothing_changes(state: Hand) -> None:
    before, version = state.rows(), state.table.head().version
    assert len(state.table.head().files) == 6
    merge(state.root.parent)
    head = state.table.head()
    assert (head.version, len(head.files), head.rows) == (version + 1, 1, len(state.model))
    assert state.rows() == before, "in the order in which they were"
    check(state)
    lines = state.entry(head.version)
    files = [line[kind] for line in lines for kind in ("add", "remove") if kind in line]
    assert {file["dataChange"] for file in files} == {False}
    assert not any("cdc" in line or "txn" in line for line in lines)
    (file,) = head.files.values()
    footer = pq.read_schema(state.root / file.location)
    assert {KEY, DIGEST} <= set(footer.names)
    assert KEY not in file.add["stats"]
    assert footer.field(KEY).type == pa.binary(16)
    # Nothing is due any more, and the next publish finds its rows by the copied hashes.
    merge(state.root.parent)
    assert state.table.head().version == version + 1
    assert state.publish({1: "x", 99: "y"}, {2}) == Committed(version + 2)
    check(state)


def overtaken(monkeypatch: pytest.MonkeyPatch, *moments: Callable[[], object]) -> None:
    """Each of these happens between a look at the head and the commit that is made on it."""
    left, look = list(moments), state_maintenance.carried

    def late(*args: Any) -> Any:
        found = look(*args)
        if left:
            left.pop(0)()
        return found

    monkeypatch.setattr(state_maintenance, "carried", late)


def test_a_compaction_wins_against_a_publisher_that_touches_every_file(
    state: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its copy and its commit, kept changing; one file is emptied altogether."""
    files = set(state.table.head().files)
    copy = state_maintenance.copy_rows

    def touch(at: int) -> None:
        # A row of every file, and the last one's all.
        firsts = {keys[0] for keys in live_keys(state).values() if keys}
        state.publish({min(firsts): f"new {at}"}, firsts - {min(firsts)})

    def copied(*args: Any, **known: Any) -> Any:
        made = copy(*args, **known)
        for at in range(3):
            touch(at)
        return made

    monkeypatch.setattr(state_maintenance, "copy_rows", copied)
    overtaken(monkeypatch, *[lambda at=at: touch(at) for at in range(10, 14)])  # type: ignore[misc]
    version = state.table.head().version
    merge(state.root.parent)
    head = state.table.head()
    assert head.version == version + 8, "seven publishes, and the compaction"
    assert not files & set(head.files)
    check(state)
    (merged,) = [file for file in head.files.values() if file.rows > 40]
    assert merged.hidden > 5
    assert (file_version(merged.path) or 0) >= head.version
    monkeypatch.undo()
    keeper_of(state.root.parent).purge(SHARD)
    assert all(file.hidden == 0 for file in state.table.head().files.values())
    check(state)
    # What was left over has gone, as no version needs it; what may be read by others stays.
    vacuum(state.table.store, now_ms=10**15, kept_ms=0)
    assert data_files(state.root) == {file.location for file in state.table.head().files.values()}
    check(state)


def live_keys(state: Hand) -> dict[str, list[int]]:
    head = state.table.head()
    hidden = state.table.hidden(head, head.files)
    found: dict[str, list[int]] = {}
    for path, file in head.files.items():
        keys = pq.read_table(state.table.store.folder / file.location, columns=["k"])["k"].to_pylist()
        found[path] = [key for at, key in enumerate(keys) if at not in hidden.get(path, ())]
    return found


def test_a_copy_whose_rows_are_all_gone_or_elsewhere_is_dropped(
    state: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtaken(monkeypatch, lambda: merge_quietly(state, monkeypatch))
    merge(state.root.parent)
    monkeypatch.undo()
    assert len(state.table.head().files) == 1
    check(state)
    overtaken(monkeypatch, lambda: state.publish({}, set(state.model)))
    state.publish({1: "x"})
    merge(state.root.parent)
    assert (state.model, state.table.head().rows) == ({}, 0)
    check(state)


def merge_quietly(state: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another maintenance does the same at the same time."""
    with monkeypatch.context() as patch:
        patch.undo()
        from tidemark.delta.compaction import carried

        patch.setattr(state_maintenance, "carried", carried)
        merge(state.root.parent)


def test_a_copy_that_is_deleted_before_it_goes_in_is_made_again(
    state: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version was there without it, and a vacuum took it for a leftover."""

    def outrun() -> None:
        state.publish({1: "x"})
        taken = vacuum(state.table.store, now_ms=0, kept_ms=0)
        assert len(taken) == 1

    overtaken(monkeypatch, outrun)
    merge(state.root.parent)
    assert max(file.rows for file in state.table.head().files.values()) > 40
    check(state)


def test_a_state_that_is_changed_again_and_again_is_left_whole_and_without_leftovers(
    state: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_maintenance, "COMMITS_MAX", 3)
    monkeypatch.setattr(state_maintenance, "BEGINNINGS_MAX", 2)
    before = data_files(state.root)
    overtaken(monkeypatch, *[lambda at=at: state.publish({at: "x"}) for at in range(6)])  # type: ignore[misc]
    with pytest.raises(BeingPublished, match="kept changing"):
        merge(state.root.parent)
    check(state)
    later = data_files(state.root) - before
    assert len(later) == 6, "one for each publish, and no copy"


def test_a_killed_compaction_leaves_a_file_that_goes_when_its_version_is_there(
    state: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill() -> None:
        raise Killed

    overtaken(monkeypatch, kill)
    before = data_files(state.root)
    with pytest.raises(Killed):
        merge(state.root.parent)
    monkeypatch.undo()
    (left,) = data_files(state.root) - before
    vacuum(state.table.store, now_ms=0, kept_ms=0)
    assert left in data_files(state.root), "it may still come in"
    merge(state.root.parent)
    vacuum(state.table.store, now_ms=0, kept_ms=0)
    assert left not in data_files(state.root)
    check(state)


@pytest.mark.parametrize("vectors", [True, False])
def test_without_vectors_a_compaction_begins_again_when_a_file_was_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: bool
) -> None:
    hand = Hand(tmp_path / "state", vectors=vectors)
    hand.create()
    for at in range(4):
        hand.publish({at: "a", at + 10: "b"})
    copies = []
    copy = state_maintenance.copy_rows
    monkeypatch.setattr(state_maintenance, "copy_rows", lambda *a, **k: copies.append(1) or copy(*a, **k))

    def rewrite() -> None:
        head = hand.table.head()
        file = next(iter(head.files.values()))
        table = pq.read_table(hand.root / file.location)
        kept = table.slice(1)
        key = table["k"][0].as_py()
        added = hand.write(kept)
        change = Change("WRITE", head.rows - 1, removed=[file.path], added=[added], carried=kept.num_rows)
        assert isinstance(hand.table.commit(head, change), Committed)
        del hand.model[key]

    keeper_of(tmp_path).vacuum(SHARD, tombstones=VERSION_NONE)
    overtaken(monkeypatch, rewrite)
    merge(tmp_path)
    assert hand.by_delta_rs() == hand.model
    assert len(copies) == (1 if vectors else 2)


def test_files_that_lack_the_hashes_don_t_take_them_from_the_others(state: Hand) -> None:
    """Another engine has rewritten a file, and knows nothing of the columns beside the schema."""
    store, head = state.table.store, state.table.head()
    for path in list(head.files)[:2]:
        head = state.table.head()
        file = head.files[path]
        rows = pq.read_table(store.folder / file.location, columns=["k", "v"])
        gone = state.table.hidden(head, [path]).get(path, ())
        rows = rows.filter(pa.array([at not in gone for at in range(rows.num_rows)]))
        name = f"part-{uuid.uuid4()}.parquet"
        pq.write_table(rows, store.folder / name)
        size = (store.folder / name).stat().st_size
        added = NewFile(name, size, rows.num_rows, statistics(rows))
        change = Change("OPTIMIZE", head.rows, added=[added], removed=[path], of_rows=False)
        assert isinstance(state.table.commit(head, change), Committed)
    merge(state.root.parent)
    columns = sorted(
        sorted(pq.read_schema(store.folder / file.location).names)
        for file in state.table.head().files.values()
    )
    assert columns == [[DIGEST, KEY, "k", "v"], ["k", "v"]]
    assert dict(state.rows()) == state.model


EVERY = pa.schema(
    [
        ("k", pa.int64()), ("b", pa.bool_()), ("i8", pa.int8()), ("i16", pa.int16()), ("i32", pa.int32()),
        ("f", pa.float32()), ("d", pa.float64()), ("n", pa.decimal128(38, 9)), ("s", pa.string()),
        ("x", pa.binary()), ("day", pa.date32()), ("t", pa.timestamp("us", "UTC")), ("z", pa.timestamp("us")),
        ("l", pa.list_(pa.field("element", pa.struct([("a-b", pa.int32())])))),
        ("m", pa.map_(pa.string(), pa.int64())), ("o", pa.struct([("p", pa.string())])),
    ]
)  # fmt: skip
NAN = float("nan")
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)
VALUES: list[dict[str, Any]] = [
    {"k": 1, "b": True, "i8": -128, "i16": -32768, "i32": -(2**31), "f": NAN, "d": NAN, "n": Decimal("1E-9"),
     "s": "", "x": b"\x00\xff", "day": dt.date(1, 1, 1), "t": dt.datetime(1, 1, 1, tzinfo=dt.UTC),
     "z": LAST.replace(tzinfo=None), "l": [], "m": [], "o": {"p": None}},
    {"k": 2, "s": "\U0010ffff" * 40, "l": [None, {"a-b": 7}], "m": [("a", None)], "d": -0.0,
     "t": LAST, "n": Decimal("9" * 29 + ".999999999")},
    {"k": 3},
]  # fmt: skip


def test_every_type_is_copied_value_by_value_and_a_column_that_a_file_lacks_is_null(tmp_path: Path) -> None:
    """One file has times in the format of older Sparks, one was written before most columns were added."""
    table = StateTable(str(tmp_path / "state"))
    assert table.commit(table.head(), Change("CREATE TABLE", 0, **new_table(EVERY))) == Committed(0)
    whole = pa.Table.from_pylist(VALUES, schema=EVERY)
    narrow = pa.table({"k": pa.array([4], pa.int64())})
    add(table, tmp_path, whole)
    add(table, tmp_path, whole.drop_columns(["z"]), use_deprecated_int96_timestamps=True)
    add(table, tmp_path, narrow)
    merge(tmp_path)
    (file,) = table.head().files.values()
    found = pq.read_table(tmp_path / "state" / file.location)
    assert found.schema.equals(EVERY, check_metadata=False)
    wanted = pa.Table.from_pylist([*VALUES, *({**row, "z": None} for row in VALUES), {"k": 4}], schema=EVERY)
    # Files come in the order of their names, which are random here.
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted.to_pylist()))
    assert pa.table(
        QueryBuilder().register("t", DeltaTable(str(tmp_path / "state")))
        .execute("select k from t where s = ''").read_all()
    )["k"].to_pylist() == [1, 1]  # fmt: skip


def test_a_column_has_a_dictionary_only_where_its_values_repeat(tmp_path: Path) -> None:
    """Otherwise it makes a file no smaller, and Spark's scan half as long again."""
    state = Hand(tmp_path / "state")
    state.create()

    def dictionaries() -> list[dict[str, bool]]:
        found = []
        for file in state.table.head().files.values():
            group = pq.read_metadata(state.root / file.location).row_group(0)
            columns = [group.column(at) for at in range(group.num_columns)]
            found.append({one.path_in_schema: one.has_dictionary_page for one in columns})
        return found

    wanted = {"k": False, "v": True, KEY: False, DIGEST: False}
    for at in range(2):
        state.publish({key: f"{key % 7}" for key in range(1000 * at, 1000 * at + 1000)})
    assert dictionaries() == [wanted] * 2
    merge(tmp_path)
    assert dictionaries() == [wanted]
    check(state)


def add(table: StateTable, root: Path, rows: pa.Table, **options: Any) -> None:
    head, name = table.head(), f"part-{uuid.uuid4()}.parquet"
    pq.write_table(rows, root / "state" / name, **options)
    size = (root / "state" / name).stat().st_size
    new = NewFile(name, size, rows.num_rows, f'{{"numRecords":{rows.num_rows}}}')
    assert isinstance(table.commit(head, Change("WRITE", head.rows + rows.num_rows, added=[new])), Committed)


def small(tmp_path: Path) -> Hand:
    hand = Hand(tmp_path / "state")
    hand.create()
    for at in range(3):
        hand.publish({at: "a" * 50, at + 10: "b" * 50})
    return hand


def test_a_file_that_is_not_what_the_log_says_is_not_copied(tmp_path: Path) -> None:
    hand = small(tmp_path)
    (first, second, _) = hand.table.head().files.values()
    good = (hand.root / second.location).read_bytes()
    pq.write_table(pq.read_table(hand.root / first.location).slice(1), hand.root / second.location)
    with pytest.raises(InvariantViolation, match="has 1 rows, and the log says 2"):
        merge(tmp_path)
    renamed = pq.read_table(hand.root / first.location).rename_columns(["k", "V", KEY, DIGEST])
    pq.write_table(renamed, hand.root / second.location)
    with pytest.raises(InvalidUsage, match="has the column V, and the table has v"):
        merge(tmp_path)
    first_rows = pq.read_table(hand.root / first.location)
    other = first_rows.set_column(0, "k", pa.array(["a", "b"]))
    pq.write_table(other, hand.root / second.location)
    with pytest.raises(InvalidUsage, match=r"the column k of .* is string"):
        merge(tmp_path)
    (hand.root / second.location).unlink()
    with pytest.raises(Determinate, match="can't be read"):
        merge(tmp_path)
    (hand.root / second.location).write_bytes(good)
    before = data_files(hand.root)
    merge(tmp_path)
    assert len(data_files(hand.root) - before) == 1, "nothing is left of those that failed"
    assert hand.by_delta_rs() == hand.model


def test_damage_gets_no_new_checksum(tmp_path: Path) -> None:
    hand = Hand(tmp_path / "state")
    hand.create()
    table = hand.table
    for at in range(2):
        rows = pa.table({"k": [at], "v": ["abcdefgh" * 20]})
        add(table, tmp_path, rows, compression="none", use_dictionary=False, write_page_checksum=True)
    file = next(iter(table.head().files.values()))
    path = hand.root / file.location
    path.write_bytes(path.read_bytes().replace(b"abcdefgh" * 20, b"abcdefgX" * 20))
    with pytest.raises(Determinate, match=r"(?i)can't be copied.*(crc|checksum)"):
        merge(tmp_path)


def test_a_feature_that_is_not_allowed_is_refused_before_a_row_is_copied(tmp_path: Path) -> None:
    hand = small(tmp_path)
    DeltaTable(str(hand.root)).alter.add_constraint({"small": "k < 100"})
    before = data_files(hand.root)
    with pytest.raises(InvalidUsage, match="checkConstraints"):
        merge(tmp_path)
    assert data_files(hand.root) == before


def test_a_state_on_an_object_store_is_merged_and_purged(s3: ObjectStore, tmp_path: Path) -> None:
    uri = f"s3://{s3.bucket}/compacted/{tmp_path.name}"
    table = StateTable(f"{uri}/state", storage_options=s3.options)
    made = new_table(pa.schema([("k", pa.int64())]))
    assert table.commit(table.head(), Change("CREATE TABLE", 0, **made)) == Committed(0)
    from tidemark.delta.state_files import write_rows

    for at in range(3):
        head = table.head()
        rows = pa.table({"k": pa.array([at, at + 10], pa.int64())})
        rows = rows.append_column(KEY, pa.array([bytes([at]) * 16, bytes([at + 10]) * 16], pa.binary(16)))
        rows = rows.append_column(DIGEST, pa.array([at, at + 10], pa.int64()))
        new = write_rows(table.store, rows, version=head.version + 1, nonce=uuid.uuid4())
        assert isinstance(table.commit(head, Change("WRITE", head.rows + 2, added=[new])), Committed)
    keeper = DeltaStateKeeper("p", {SHARD: MaintainedState(uri, storage_options=s3.options)})
    original = state_maintenance.carried
    try:
        # It is overtaken once, and its file gets another name.
        def late(*args: Any) -> Any:
            state_maintenance.carried = original
            head = table.head()
            change = Change("WRITE", head.rows - 2, removed=[next(iter(head.files))])
            assert isinstance(table.commit(head, change), Committed)
            return original(*args)

        state_maintenance.carried = late
        keeper.merge(SHARD, tombstones=VERSION_NONE)
    finally:
        state_maintenance.carried = original
    head = table.head()
    assert (len(head.files), head.rows, sum(file.hidden for file in head.files.values())) == (1, 4, 2)
    keeper.purge(SHARD)
    (file,) = table.head().files.values()
    assert (file.rows, file.hidden) == (4, 0)
    assert pq.read_table(pa.BufferReader(table.store.get(file.location)))["k"].to_pylist() == [1, 11, 2, 12]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["publish", "merge", "purge", "vacuum"]),
            st.lists(
                st.tuples(st.sets(st.integers(0, 11), max_size=6), st.sets(st.integers(0, 11), max_size=6)),
                max_size=3,
            ),
        ),
        min_size=1, max_size=7,
    )
)  # fmt: skip
def test_any_series_of_publishes_and_compactions_that_meet_gives_the_fold(
    tmp_path_factory: pytest.TempPathFactory,
    series: list[tuple[str, list[tuple[set[int], set[int]]]]],
) -> None:
    state = Hand(tmp_path_factory.mktemp("series") / "state")
    state.create()
    state.publish(dict.fromkeys(range(8), "first"))
    keeper = keeper_of(state.root.parent)
    for at, (work, publishes) in enumerate(series):
        with pytest.MonkeyPatch.context() as patch:
            moments = [
                lambda ups=ups, gone=gone, at=at: state.publish(dict.fromkeys(ups, f"{at}"), gone - ups)  # type: ignore[misc]
                for ups, gone in publishes
            ]
            if work == "publish":
                for moment in moments:
                    moment()
                continue
            overtaken(patch, *moments)
            if work == "vacuum":
                keeper.vacuum(SHARD, tombstones=VERSION_NONE)
            else:
                getattr(keeper, work)(SHARD, **({"tombstones": VERSION_NONE} if work == "merge" else {}))
        check(state)
    assert state.table.head().rows == len(state.model)


class Killed(BaseException):
    """The process is no more."""


STEPS = ("writing", "move", "sync_folders", "put_synced", "put_if_absent", "delete")


@pytest.mark.parametrize("is_after", [False, True])
def test_p3_upkeep_that_dies_before_or_after_any_step_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_after: bool
) -> None:
    """Merge, purge and vacuum, overtaken by a publish: whatever is left behind harms nobody, and goes."""
    for fuse in range(1, 100):
        state = Hand(tmp_path / str(fuse) / "state")
        state.create()
        state.publish(dict.fromkeys(range(9), "0"))
        state.publish({1: "1"}, {2})
        with monkeypatch.context() as patch:
            overtaken(patch, lambda state=state: state.publish({3: "3"}, {4}))  # type: ignore[misc]
            is_killed = killed_at(
                patch, state.table.store, fuse, lambda root=state.root.parent: upkept(root), is_after=is_after
            )  # type: ignore[misc]
        check(state)
        upkept(state.root.parent)
        check(state)
        assert len(state.table.head().files) == 1
        # A copy that was overtaken may have a name of up to eight versions ahead.
        for at in range(9):
            state.publish({5: f"{at}"})
        upkept(state.root.parent)
        check(state)
        assert data_files(state.root) == {file.location for file in state.table.head().files.values()}
        if not is_killed:
            assert fuse > 12, "so many steps there are at least"
            return
    pytest.fail("it never ended")


def upkept(root: Path) -> None:
    keeper = keeper_of(root, days=0)
    keeper.merge(SHARD, tombstones=VERSION_NONE)
    keeper.purge(SHARD)
    keeper.vacuum(SHARD, tombstones=VERSION_NONE)


def killed_at(
    patch: pytest.MonkeyPatch, living: Store, fuse: int, work: Callable[[], None], *, is_after: bool
) -> bool:
    """Whether the work came to its n-th step, at which it dies. The publisher, by its store, lives."""
    steps = [0]

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Store, *args: Any) -> Any:
            if self is living:
                return original(self, *args)
            steps[0] += 1
            at = steps[0]
            if at == fuse and not is_after:
                raise Killed
            found = original(self, *args)
            if at == fuse:
                raise Killed
            return found

        return step

    for name in STEPS:
        patch.setattr(Store, name, wrapped(getattr(Store, name)))
    try:
        work()
    except Killed:
        return True
    return False
