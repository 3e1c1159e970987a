"""A state that Python commits alone: read right by others, and safe against rivals and lost replies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from tests.support.s3 import ObjectStore
from tests.support.state_table import Hand, new_table
from tidemark.core.errors import Determinate, Indeterminate, InvalidUsage, InvariantViolation
from tidemark.core.ledger import Committed, Conflict
from tidemark.delta import commit as commit_module
from tidemark.delta.commit import entry_path, put_entry
from tidemark.delta.head import TableHead, read_head, read_history
from tidemark.delta.state import Change, StateTable
from tidemark.delta.store import Store

READING = (Path(__file__).resolve().parents[2] / "docs" / "reading.md").read_text(encoding="utf-8")


@pytest.fixture
def hand(tmp_path: Path) -> Hand:
    made = Hand(tmp_path / "state")
    made.create()
    return made


def published(hand: Hand, rounds: int, *, start: int = 0) -> None:
    for at in range(start, start + rounds):
        upserts = dict.fromkeys(range(at % 7, 40, 3), f"{at}")
        assert isinstance(
            hand.publish(upserts, {key for key in range(at % 5, 40, 5) if key not in upserts}), Committed
        )


def looked_at(hand: Hand) -> list[dict[int, str]]:
    return [hand.by_delta_rs(), hand.by_polars()]


def test_delta_rs_and_polars_read_what_was_published_through_checkpoints_and_foreign_work(hand: Hand) -> None:
    published(hand, 12)
    assert looked_at(hand) == [hand.model] * 2
    DeltaTable(str(hand.root)).create_checkpoint()
    published(hand, 3, start=12)
    assert looked_at(hand) == [hand.model] * 2
    assert read_head(hand.table.store) == hand.table.head()
    # What the documents say of delta-rs (docs/reading.md).
    for refused in ("to_pandas", "to_pyarrow_table", "to_pyarrow_dataset"):
        assert f"`{refused}()`" in READING
        with pytest.raises(Exception, match="deletionVectors"):
            getattr(DeltaTable(str(hand.root)), refused)()
    frame = pl.read_delta(str(hand.root))
    assert dict(zip(*frame.to_pandas().to_dict("list").values(), strict=True)) == hand.model
    assert dict(zip(*frame.to_arrow().to_pydict().values(), strict=True)) == hand.model
    # A full vacuum of delta-rs deletes vectors that lie beside the files; ours it doesn't see.
    DeltaTable(str(hand.root)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert looked_at(hand) == [hand.model] * 2
    published(hand, 3, start=15)
    assert looked_at(hand) == [hand.model] * 2


def test_a_head_read_from_a_checkpoint_is_the_head_that_followed_the_log(hand: Hand) -> None:
    published(hand, 5)
    DeltaTable(str(hand.root)).create_checkpoint()
    published(hand, 2, start=5)
    whole = read_history(hand.table.store)
    for version in range(6):
        (hand.root / entry_path(version)).unlink()
    found, followed = read_head(Store(str(hand.root), {})), hand.table.head()
    assert found.files.keys() == followed.files.keys()
    assert {p: f.vector for p, f in found.files.items()} == {p: f.vector for p, f in followed.files.items()}
    assert (found.txns, found.rows, found.version) == (followed.txns, followed.rows, followed.version)
    again = read_history(Store(str(hand.root), {}))
    assert again.head == found
    assert set(again.removed) == set(whole.removed), "a checkpoint remembers them too"
    hand.table = StateTable(str(hand.root))
    published(hand, 2, start=7)
    assert looked_at(hand) == [hand.model] * 2


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 12), st.text(max_size=2), max_size=6),
            st.sets(st.integers(0, 12), max_size=6),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_any_series_of_upserts_and_deletes_is_what_others_read(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[dict[int, str], set[int], bool]]
) -> None:
    hand = Hand(tmp_path_factory.mktemp("any") / "state")
    hand.create()
    for upserts, deletes, is_checkpointed in steps:
        hand.publish(upserts, deletes - upserts.keys())
        if is_checkpointed:
            DeltaTable(str(hand.root)).create_checkpoint()
    assert hand.by_delta_rs() == hand.model
    assert hand.table.head().rows == len(hand.model)
    assert read_head(Store(str(hand.root), {})).rows == len(hand.model)


def test_of_two_commits_on_one_head_one_wins_and_the_other_leaves_nothing(hand: Hand) -> None:
    hand.publish({1: "a", 2: "b"})
    head = hand.table.head()
    rival = StateTable(str(hand.root))
    mine, theirs = (hand.change(head, {1: value}) for value in ("mine", "theirs"))
    assert rival.commit(rival.head(), theirs) == Committed(2)
    before = set((hand.root / "_vectors").iterdir())
    assert hand.table.commit(head, mine) == Conflict()
    assert set((hand.root / "_vectors").iterdir()) == before
    assert hand.by_delta_rs() == {1: "theirs", 2: "b"}
    assert hand.table.head().version == 2


def test_of_two_creators_one_makes_version_0(tmp_path: Path) -> None:
    tables = [StateTable(str(tmp_path / "state")) for _ in range(2)]
    heads = [table.head() for table in tables]
    outcomes = [
        table.commit(head, Change("CREATE TABLE", 0, **new_table()))
        for table, head in zip(tables, heads, strict=True)
    ]
    assert outcomes == [Committed(0), Conflict()]


def lost_reply(real: Callable[..., Any]) -> Callable[..., Any]:
    def put(*args: Any) -> Any:
        real(*args)
        raise OSError("the reply was lost")

    return put


def test_invariant_5_a_lost_reply_is_read_back(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 5: the entry is there, with our mark; and a client that asks again meets itself."""
    with monkeypatch.context() as patched:
        patched.setattr(Store, "put_if_absent", lost_reply(Store.put_if_absent))
        assert hand.publish({1: "a"}) == Committed(1)
    real = Store.put_if_absent

    def twice(store: Store, path: str, data: bytes) -> bool:
        real(store, path, data)
        return real(store, path, data)

    monkeypatch.setattr(Store, "put_if_absent", twice)
    assert hand.publish({1: "b"}) == Committed(2)
    assert hand.by_delta_rs() == {1: "b"}


def test_a_put_that_did_not_happen_is_known_on_a_disk_and_unknown_elsewhere(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.publish({1: "a", 2: "x"})

    def fails(*_: Any) -> bool:
        raise OSError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "put_if_absent", fails)
        with pytest.raises(Determinate, match=r"version 2 .* was not written: no room"):
            hand.publish({1: "b"})
        assert len(list((hand.root / "_vectors").iterdir())) == 0
        patched.setattr(Store, "local", False)
        with pytest.raises(Indeterminate, match="may have been written"):
            hand.publish({1: "b"})
        # Its vectors stay: the entry may still come.
        assert len(list((hand.root / "_vectors").iterdir())) == 1
    assert hand.publish({1: "c"}) == Committed(2)
    assert hand.by_delta_rs() == {1: "c", 2: "x"}


def test_a_commit_whose_writer_was_stopped_for_long_is_not_believed(hand: Hand) -> None:
    times = iter([0.0, 61.0])
    actions = [{"commitInfo": {"tidemarkCommit": "me"}}]
    with pytest.raises(Indeterminate, match="took over 60 s"):
        put_entry(hand.table.store, 1, actions, seconds=lambda: next(times))
    with pytest.raises(InvalidUsage, match="does not name its writer"):
        put_entry(hand.table.store, 2, [{"commitInfo": {}}])


def test_files_are_on_disk_before_their_folders_and_those_before_the_entry(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.publish({1: "a", 2: "b", 3: "c"})
    hand.publish({1: "b"})
    done: list[str] = []
    sync, link = os.fsync, os.link

    def synced(handle: int) -> None:
        done.append("sync " + str(Path(f"/proc/self/fd/{handle}").readlink().relative_to(hand.root.parent)))
        sync(handle)

    def linked(source: Path, target: Path) -> None:
        done.append(f"link {Path(target).name}")
        link(source, target)

    head = hand.table.head()
    change = hand.change(head, {2: "c"})
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    assert hand.table.commit(head, change) == Committed(3)
    shown = ["sync " + Path(one[5:]).parent.name if ".bin" in one or ".tmp" in one else one for one in done]
    assert shown == [
        "sync _vectors", "sync state/_vectors", "sync state",
        "sync _delta_log", f"link {3:020}.json", "sync state/_delta_log",
    ]  # fmt: skip


def test_an_entry_whose_last_sync_fails_is_written_again_or_not_known(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is visible; whether it lasts is not known before its folder is synced."""
    real, calls = os.fsync, []

    def failing(times: int) -> Callable[[int], None]:
        def sync(handle: int) -> None:
            if Path(f"/proc/self/fd/{handle}").readlink().name == "_delta_log":
                calls.append(handle)
                if len(calls) <= times:
                    raise OSError("input/output error")
            real(handle)

        return sync

    monkeypatch.setattr(os, "fsync", failing(1))
    assert hand.publish({1: "a"}) == Committed(1)
    assert len(calls) == 2
    calls.clear()
    monkeypatch.setattr(os, "fsync", failing(9))
    with pytest.raises(Indeterminate, match="may have been written"):
        hand.publish({1: "b"})


@pytest.mark.parametrize("damage", [b"", b"\n", b"{", b"[]\n"])
def test_an_entry_that_lost_its_bytes_stops_everything(hand: Hand, damage: bytes) -> None:
    """delta-rs reads an empty one as a commit that did nothing."""
    hand.publish({1: "a"})
    (hand.root / entry_path(2)).write_bytes(damage)
    with pytest.raises(InvariantViolation, match=r"entry 2 of the log of .* is lost"):
        hand.publish({2: "b"})


def test_a_file_that_is_live_twice_stops_everything() -> None:
    from tests.delta.test_state_entry import OLD, file_of

    with pytest.raises(InvariantViolation, match="twice, with two deletion vectors"):
        TableHead().after([{"add": file_of("a")}, {"add": file_of("a", hidden=OLD)}], version=0)


def test_a_mark_in_another_place_is_not_ours() -> None:
    assert commit_module._mark_of(b'{"add":{"path":"me"}}\n{"commitInfo":{"x":"me"}}') == ""


@pytest.mark.server
def test_an_object_store_takes_the_same_commits(s3: ObjectStore, tmp_path: Path) -> None:
    """The plumbing: one winner, a rival's entry read back, vectors put and read."""
    uri = f"s3://{s3.bucket}/states/{tmp_path.name}"
    tables = [StateTable(uri, storage_options=s3.options) for _ in range(2)]
    outcomes = [table.commit(TableHead(), Change("CREATE TABLE", 0, **new_table())) for table in tables]
    assert outcomes == [Committed(0), Conflict()]
    store, head = tables[0].store, tables[0].head()
    local = Hand(tmp_path / "local")
    made = local.write(pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]}))
    store.put_synced(made.path, (local.root / made.path).read_bytes())
    assert tables[0].commit(head, Change("WRITE", 3, added=[made])) == Committed(1)
    head = tables[1].head()
    hiding = Change("WRITE", 2, hidden={made.path: BitMap([1])})
    assert tables[1].commit(head, hiding) == Committed(2)
    assert tables[0].commit(head, hiding) == Conflict()
    head = tables[0].head()
    assert {path: set(rows) for path, rows in tables[0].hidden(head, head.files).items()} == {made.path: {1}}
    assert DeltaTable(uri, storage_options=s3.options).version() == 2


def test_a_removal_of_another_vector_leaves_the_file() -> None:
    """A file is its path and its vector: a checkpoint remembers removals of a live file's earlier vectors."""
    from tests.delta.test_state_entry import HEAD, OLD, file_of

    earlier = file_of("b", hidden=OLD - BitMap([1]))
    after = HEAD.after([{"remove": earlier}], version=7)
    assert after.files["b"] == HEAD.files["b"]
    assert "b" not in HEAD.after([{"remove": file_of("b", hidden=OLD)}], version=7).files
