"""What every control plane promises: a pipeline's ledgers, and a whole run over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.contract.helpers import SHARDS
from tests.support.memory.plane import Files, MemoryPlane
from tests.support.memory.source import MemorySource, SourceRecord
from tidemark.core.binding import Binding, Claim, Configuration, Owner
from tidemark.core.checksum import Digest
from tidemark.core.ids import Frontier, ShardId, Txn, WriterToken
from tidemark.core.lease import SINCE, HolderToken, Lease
from tidemark.core.ledger import UPPER, Committed, Conflict, Put
from tidemark.core.log import LogEntry
from tidemark.core.publish import Published, StateCommit
from tidemark.core.replay import Verdict
from tidemark.core.seal import Part
from tidemark.pipeline.context import Attempt, Pipeline
from tidemark.pipeline.run import run
from tidemark.ports.control import Control

OpenControl = Callable[[], Control]


class FolderPlane(MemoryPlane):
    """The memory plane with the part names of a warehouse: _txn-…/<token>/part-…"""

    def _write(self, path: str, rows: tuple[object, ...]) -> Part:  # type: ignore[override]
        shard, txn, token, index = path.split("/")
        return super()._write(f"_txn-{int(txn):020}/{token}/part-{shard}-{index}", rows)  # type: ignore[arg-type]

    def discard(self, txn: Txn, token: WriterToken) -> None:
        for path in [path for path in self._files if path.startswith(f"_txn-{txn:020}/{token}/")]:
            self._files.pop(path)

    def attempts(self) -> Sequence[tuple[Txn, WriterToken]]:
        found = {tuple(path.split("/")[:2]) for path in self._files}
        return sorted((Txn(int(txn.removeprefix("_txn-"))), WriterToken(token)) for txn, token in found)


def log_entry(txn: int, token: str = "w", parts: int = 2) -> LogEntry:
    paths = [f"_txn-{txn:020}/{token}/part-{index}.parquet" for index in range(parts)]
    stats = '{"numRecords": 3}'
    return LogEntry(Txn(txn), WriterToken(token), tuple(Part(path, 3, 100, stats) for path in paths))


def test_every_ledger_is_its_own(open_control: OpenControl) -> None:
    control = open_control()
    log = control.log(SHARDS[0])
    assert isinstance(log.commit(log.head(), Put({UPPER: 2}, (log_entry(1),), None)), Committed)
    heads = [
        ledger.head() for ledger in (control.bindings, control.seals, control.checkpoints, control.journal)
    ]
    assert [head.upper for head in heads] == [1, 1, 1, 1]
    assert control.log(SHARDS[1]).head().upper == 1


def test_bindings_are_read_without_the_claims_before_them_and_runs_find_both(
    open_control: OpenControl,
) -> None:
    """A run that finds nothing leaves a claim at the number of the next binding."""
    settings = Configuration.of('{"generation": 0, "shards": []}')

    def bound(txn: int) -> Binding:
        return Binding(Txn(txn), Frontier(), Frontier(), Owner(f"bound-{txn}"), settings)

    idle = [Claim(number, Owner(f"idle-{number}-{at}")) for number in (1, 2) for at in range(3)]
    control = open_control()
    for records in ((idle[0], idle[1]), (idle[2],), (bound(1),), (idle[3],), (idle[4], idle[5]), (bound(2),)):
        last = records[-1]
        upper = last.number + 1 if isinstance(last, Binding) else last.number
        assert isinstance(
            control.owned.commit(control.owned.head(), Put({UPPER: upper}, records, None)), Committed
        )
    control = open_control()
    assert control.bindings.head().upper == control.owned.head().upper == 3
    assert list(control.bindings.read(1, 3)) == [bound(1), bound(2)]
    assert list(control.bindings.read(2, 9)) == [bound(2)]
    assert list(control.owned.read(1, 3)) == [*idle[:3], bound(1), *idle[3:], bound(2)]
    assert list(control.owned.find("run:idle-2-1")) == [idle[4]]
    assert list(control.owned.find("run:bound-2")) == list(control.bindings.find("run:bound-2")) == [bound(2)]
    assert list(control.bindings.find("run:idle-2-1")) == []


def test_leases_and_publishes_keep_their_records_and_their_own_marks(open_control: OpenControl) -> None:
    lease = Lease("reader", HolderToken("h"), Txn(3), 1, 30.5)
    published = Published(1, 0, StateCommit(Txn(2), WriterToken("w"), Digest.of([2**64 - 1])))
    control = open_control()
    leases, publishes = control.leases, control.publishes(SHARDS[0])
    leases.commit(leases.head(), Put({UPPER: 2}, (lease,), None))
    leases.commit(leases.head(), Put({SINCE: 3}, (), None))
    publishes.commit(publishes.head(), Put({UPPER: 2}, (published,), None))
    other = open_control()
    assert (other.leases.head().upper, other.leases.head().marks[SINCE]) == (2, 3)
    assert list(other.leases.find("reader")) == [lease]
    assert other.publishes(SHARDS[0]).head().upper == 2
    assert list(other.publishes(SHARDS[0]).read(1, 2)) == [published]
    assert other.publishes(SHARDS[1]).head().upper == 1


def test_a_log_gives_its_entries_back_with_the_same_parts(open_control: OpenControl) -> None:
    first, third = log_entry(1, "a"), log_entry(3, "b", parts=1)
    log = open_control().log(SHARDS[0])
    log.commit(log.head(), Put({UPPER: 2}, (first,), None))
    log.commit(log.head(), Put({UPPER: 4}, (third,), None))
    other = open_control().log(SHARDS[0])
    assert other.head().upper == 4
    assert list(other.read(0, 99)) == [first, third]
    assert list(other.read(2, 3)) == []
    assert list(other.find("b")) == [third]


def test_m3_of_two_appenders_that_expect_one_upper_one_appends(open_control: OpenControl) -> None:
    """Invariant 2: the shard's upper passes each transaction exactly once."""
    ours, rival = open_control().log(SHARDS[0]), open_control().log(SHARDS[0])
    head = ours.head()
    rivals_head = rival.head()
    assert isinstance(rival.commit(rivals_head, Put({UPPER: 2}, (log_entry(1, "rival"),), None)), Committed)
    assert ours.commit(head, Put({UPPER: 2}, (log_entry(1, "ours"),), None)) == Conflict()
    assert [entry.token for entry in ours.read(0, 99)] == []
    assert ours.head().upper == 2
    assert [entry.token for entry in ours.read(0, 99)] == ["rival"]


def test_a_log_reads_from_its_last_heads_snapshot(open_control: OpenControl) -> None:
    ours, rival = open_control().log(SHARDS[0]), open_control().log(SHARDS[0])
    for txn in range(1, 13):
        rival.commit(rival.head(), Put({UPPER: txn + 1}, (log_entry(txn),), None))
        if txn == 5:
            ours.head()
    assert [entry.txn for entry in ours.read(0, 99)] == [1, 2, 3, 4, 5]
    ours.head()
    assert [entry.txn for entry in ours.read(0, 99)] == list(range(1, 13))


def test_whole_runs_over_the_control_plane_come_to_the_end_and_replay_identical(
    open_control: OpenControl,
) -> None:
    """Invariant 9: the checkpoint says how far everything is done. Two runs, then a clear of the first."""
    source, files = MemorySource(), Files()
    attempts = iter(range(100))

    def one_run(run_id: str, *, cleared: bool = False) -> tuple[Txn, tuple[Verdict, ...]]:
        pipeline = Pipeline(open_control(), source, FolderPlane(source, files), Configuration.of("{}"))
        token = WriterToken(f"attempt-{next(attempts)}")
        report = run(pipeline, Attempt(Owner(run_id), token, cleared=cleared))
        return report.checkpoint, tuple(finding.verdict for finding in report.findings)

    def record(table: ShardId, key: int, value: object) -> SourceRecord:
        return SourceRecord(table, (key,), value)

    source.append("p0", record(SHARDS[0], 1, "a"), record(SHARDS[1], 1, "b"), record(SHARDS[0], 2, "c"))
    assert one_run("first") == (1, ())
    source.append("p0", record(SHARDS[1], 1, None))
    assert one_run("second") == (2, ())
    assert one_run("first", cleared=True) == (2, (Verdict.IDENTICAL,))
    control = open_control()
    assert [control.log(shard).head().upper for shard in SHARDS] == [2, 3]
    assert source.acknowledged["p0"] == 4
