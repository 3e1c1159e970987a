"""Where a state stands, by its log alone: a foreign commit is judged by what it did, not by its name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.state_table import APP, Hand
from tidemark.core.checksum import Digest
from tidemark.core.errors import InvalidUsage, InvariantViolation
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.ledger import Committed
from tidemark.core.publish import Published, StateCommit, StateOverwritten, StateStatus, check_state_status
from tidemark.delta.commit import entry_bytes, entry_path
from tidemark.delta.head import LiveFile
from tidemark.delta.state import ROWS, Change
from tidemark.delta.state_status import (
    encoded,
    lost_files,
    newest_commit,
    read_state_status,
    same_rows_version,
)

SHARD = ShardId("t")


@dataclass
class StateByHand:
    """A state whose publishes carry their facts, and a stranger who writes entries by hand."""

    hand: Hand
    records: list[Published] = field(default_factory=list)

    def publish(self, upserts: dict[int, str], deletes: set[int] = frozenset()) -> Published:  # type: ignore[assignment]
        head = self.hand.table.head()
        change = self.hand.change(head, upserts, deletes)
        txn = self.hand.txn + 1
        commit = StateCommit(Txn(txn), WriterToken(f"w{txn}"), Digest(change.rows_after))
        made = Change(
            "WRITE", change.rows_after, change.hidden, change.added, txns=change.txns,
            facts={"userMetadata": encoded(commit)},
        )  # fmt: skip
        outcome = self.hand.table.commit(head, made)
        assert isinstance(outcome, Committed)
        self.hand.txn = txn
        self.hand.model = {k: v for k, v in self.hand.model.items() if k not in deletes} | upserts
        self.records.append(Published(len(self.records) + 1, outcome.version, commit))
        return self.records[-1]

    def foreign(self, *actions: dict[str, Any], operation: str | None = "WRITE") -> int:
        version = self.hand.table.head().version + 1
        info = [{"commitInfo": {"operation": operation}}] if operation is not None else []
        (self.hand.root / entry_path(version)).write_bytes(entry_bytes([*info, *actions]))
        return version

    def copied(self, file: LiveFile, **said: Any) -> list[dict[str, Any]]:
        """The actions that put a copy in the place of a file, which change no row by themselves."""
        copy = f"copy-{file.path}"
        (self.hand.root / copy).write_bytes((self.hand.root / file.location).read_bytes())
        return [removed(file), {"add": {**file.add, "path": copy, "dataChange": False, **said}}]

    def look(self, since: Published | None = None) -> StateStatus:
        last = since or (self.records[-1] if self.records else None)
        return read_state_status(str(self.hand.root), app=APP, since=last)

    def forget(self, below: int) -> None:
        """What log clean-up does: a checkpoint, and nothing before it."""
        DeltaTable(str(self.hand.root)).create_checkpoint()
        for version in range(below):
            (self.hand.root / entry_path(version)).unlink(missing_ok=True)


def removed(file: LiveFile) -> dict[str, Any]:
    vector = {"deletionVector": file.vector.action} if file.vector is not None else {}
    return {"remove": {"path": file.path, "dataChange": False, "deletionTimestamp": 1, **vector}}


@pytest.fixture
def state(tmp_path: Path) -> StateByHand:
    hand = Hand(tmp_path / "state")
    hand.create()
    return StateByHand(hand)


def newest_file(state: StateByHand) -> LiveFile:
    return list(state.hand.table.head().files.values())[-1]


def test_a_state_is_where_its_last_publish_left_it(state: StateByHand) -> None:
    assert read_state_status(str(state.hand.root / "absent"), app=APP, since=None) == StateStatus()
    first = state.publish({1: "a", 2: "b"})
    assert state.look() == StateStatus(1, Txn(1), first.commit, 1, "w1", ())
    second = state.publish({1: "c"}, {2})
    assert state.look() == StateStatus(2, Txn(2), second.commit, 2, "w2", ())
    # One that is ahead of its record is told with its facts; a second one was made without knowing of it.
    assert state.look(first) == StateStatus(2, Txn(2), second.commit, 2, "w1", ())
    state.publish({3: "d"})
    assert state.look(first).foreign_writes == ("3 a second publish",)


def test_the_newest_publish_after_a_version_is_found_below_harmless_commits(state: StateByHand) -> None:
    uri = str(state.hand.root)
    assert newest_commit(str(state.hand.root / "absent"), -1) is None
    state.publish({1: "a"})
    second = state.publish({1: "b"})
    version = state.foreign(*state.copied(newest_file(state)), operation="OPTIMIZE")
    assert [newest_commit(uri, after) for after in (-1, 1)] == [second.commit, second.commit]
    assert [newest_commit(uri, after) for after in (2, version)] == [None, None]
    state.forget(version)
    assert newest_commit(uri, -1) is None, "what was cleaned up is not asked for"


def test_a_foreign_commit_that_changes_no_row_is_harmless_whatever_it_is_called(state: StateByHand) -> None:
    last = state.publish({1: "a", 2: "b"})
    state.foreign(*state.copied(newest_file(state)), operation="WRITE")
    state.foreign({"metaData": dict(state.hand.table.head().metadata)}, operation=None)
    found = state.look()
    assert (found.version, found.newest_version, found.foreign_writes) == (3, 1, ())
    check_state_status(SHARD, last=last, status=found)
    assert same_rows_version(str(state.hand.root), 1) == 3
    again = state.publish({2: "c"})
    assert (again.version, state.look().foreign_writes) == (4, ())
    assert same_rows_version(str(state.hand.root), 1) == 3, "a publish is where the same rows end"


def strange(state: StateByHand, *actions: dict[str, Any], operation: str | None) -> str:
    version = state.foreign(*actions, operation=operation)
    found = state.look()
    assert same_rows_version(str(state.hand.root), version - 1) == version - 1
    with pytest.raises(StateOverwritten, match="other writers changed it"):
        check_state_status(SHARD, last=state.records[-1], status=found)
    (one,) = found.foreign_writes
    return one.removeprefix(f"{version} ")


@pytest.mark.parametrize("operation", ["OPTIMIZE", "REORG", "VACUUM END", "CLUSTER BY", None])
def test_a_foreign_commit_that_changes_rows_is_noticed_by_name_whatever_it_is_called(
    tmp_path: Path, operation: str | None
) -> None:
    told = operation or "a commit without a name"
    for case in range(6):
        state = StateByHand(Hand(tmp_path / str(case)))
        state.hand.create()
        state.publish({1: "a", 2: "b"})
        file = newest_file(state)
        changes: list[tuple[str, list[dict[str, Any]]]] = [
            (told, state.copied(file, dataChange=True)),
            # It says that it changes nothing, and a row is missing or too many.
            (told, state.copied(file, stats='{"numRecords":1}')),
            (told, [removed(file)]),
            (told, [{"add": {**file.add, "path": "more.parquet", "dataChange": False}}]),
            # A file that does not say how many rows it has may have any number.
            (f"{told} with rows that can't be counted", state.copied(file, stats="{}")),
            # Nor does a file action that leaves out whether it changes rows.
            (told, [{"remove": {"path": file.path, "deletionTimestamp": 1}}]),
        ]
        expected, actions = changes[case]
        assert strange(state, *actions, operation=operation) == expected, case


def test_a_column_that_is_taken_away_or_gets_another_type_is_no_mere_description(state: StateByHand) -> None:
    state.publish({1: "a"})
    metadata = dict(state.hand.table.head().metadata)
    schema = json.loads(metadata["schemaString"])
    wider = {**schema, "fields": [*schema["fields"], {**schema["fields"][1], "name": "w"}]}
    state.foreign({"metaData": {**metadata, "schemaString": json.dumps(wider)}}, operation="ADD COLUMNS")
    assert state.look().foreign_writes == ()
    less = {**schema, "fields": schema["fields"][:1]}
    lacking = {"metaData": {**metadata, "schemaString": json.dumps(less)}}
    assert strange(state, lacking, operation="CHANGE COLUMN") == "CHANGE COLUMN"


def test_writes_and_rearrangements_of_delta_rs_are_told_apart(state: StateByHand) -> None:
    last = state.publish(dict.fromkeys(range(20), "a"))
    table = DeltaTable(str(state.hand.root))
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})
    assert state.look().foreign_writes == ()
    table.alter.add_constraint({"small": "k < 100"})
    assert state.look().foreign_writes == (), "no row has changed; a publish is refused by the feature"
    with pytest.raises(InvalidUsage, match="checkConstraints"):
        state.publish({1: "b"})
    table.delete("k = 3")
    assert [one.split()[-1] for one in state.look(last).foreign_writes] == ["DELETE"]


def test_application_transactions_that_expire_are_refused(state: StateByHand) -> None:
    state.publish({1: "a"})
    metadata = dict(state.hand.table.head().metadata)
    expiring = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    state.foreign({"metaData": {**metadata, "configuration": {**metadata["configuration"], **expiring}}})
    with pytest.raises(InvalidUsage, match="would expire"):
        state.look()


def test_a_version_that_another_has_written_is_told_at_the_record(state: StateByHand) -> None:
    last = state.publish({1: "a"})
    state.hand.publish({1: "b"})
    assert state.look(Published(2, 2, last.commit)).at_record == "another writer (WRITE)"


def test_entries_that_were_cleaned_away_are_judged_by_what_lasts(state: StateByHand) -> None:
    """A state that was vacuumed every night, and published long ago."""
    last = state.publish({1: "a", 2: "b"}, set())
    for _ in range(4):
        state.foreign(operation="VACUUM END")
    state.forget(below=5)
    state.foreign(operation="VACUUM START")
    found = state.look()
    assert (found.version, found.txn, found.at_record, found.foreign_writes) == (6, 1, "", ())
    check_state_status(SHARD, last=last, status=found)
    root = str(state.hand.root)
    assert same_rows_version(root, last.version) == 6
    assert state.hand.table.head().txns[ROWS] == last.version
    # Another version's rows are not known any more.
    for version in (0, 2):
        with pytest.raises(InvalidUsage, match=f"no longer reaches back to version {version}"):
            same_rows_version(root, version)
    with pytest.raises(InvalidUsage, match="no longer reaches back"):
        lost_files(root, last.version)
    assert (state.publish({2: "c"}).version, state.look().foreign_writes) == (7, ())


def test_a_foreign_write_in_entries_that_were_cleaned_away_is_noticed_by_its_rows(state: StateByHand) -> None:
    last = state.publish({1: "a", 2: "b"})
    state.foreign(
        {"remove": {**removed(newest_file(state))["remove"], "dataChange": True}}, operation="DELETE"
    )
    state.forget(below=2)
    state.foreign(operation="VACUUM END")
    assert state.look(last).foreign_writes == ("2 or before, 0 rows instead of 2",)


def test_an_older_version_is_read_from_an_older_checkpoint(state: StateByHand) -> None:
    first = state.publish({1: "a"})
    DeltaTable(str(state.hand.root)).create_checkpoint()
    state.foreign(*state.copied(newest_file(state)))
    for at in range(3):
        state.publish({at: "x"})
    state.forget(below=1)
    root = str(state.hand.root)
    assert same_rows_version(root, first.version) == 2
    assert lost_files(root, 2) == []
    (state.hand.root / f"copy-{next(iter(first_paths(state)))}").unlink()
    assert len(lost_files(root, 2)) == 1


def first_paths(state: StateByHand) -> list[str]:
    return [line["add"]["path"] for line in state.hand.entry(1) if "add" in line]


def test_the_vector_of_an_older_version_is_missed_like_a_file(state: StateByHand) -> None:
    state.publish({1: "a", 2: "b"})
    second = state.publish({}, {1})
    state.publish({3: "c"})
    (vector,) = (state.hand.root / "_vectors").iterdir()
    vector.unlink()
    assert lost_files(str(state.hand.root), second.version) == [vector.name]


def test_an_entry_that_is_empty_stops_everything(state: StateByHand) -> None:
    state.publish({1: "a"})
    (state.hand.root / entry_path(2)).write_bytes(b"")
    with pytest.raises(InvariantViolation, match=r"entry 2 .* is lost"):
        state.look()
