"""The upkeep of a log, on real tables with real processes: nothing lost, nobody broken, space given back."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from tests.crash.race import write_round
from tests.maintenance.killed import WINDOW, killed_runs, maintain
from tests.maintenance.racing import keep_house, write
from tests.maintenance.rig import (
    ROW,
    LightDeployment,
    Row,
    feed,
    files_on_disk,
    log_folder,
    log_rows,
    published,
    terms,
    wanted_rows,
)
from tests.support.light import SHARD
from tests.support.workers import KILLED
from tidemark.app import maintenance
from tidemark.app.deployment import Deployment, new_token
from tidemark.cli.app import app
from tidemark.config import load_pipeline
from tidemark.core.binding import Binding, Owner
from tidemark.core.checksum import Digest
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.core.ids import ShardId, Txn, WriterToken
from tidemark.core.lease import HolderToken, Tenure
from tidemark.core.log import Limits
from tidemark.core.maintenance import Leftover
from tidemark.core.reading import lease_name
from tidemark.core.replay import Replayable
from tidemark.core.seal import Part, Staged
from tidemark.delta.head import CHECKPOINT_BYTES_MIN, ENTRY_BYTES_MIN
from tidemark.delta.parts import DeltaParts
from tidemark.pipeline import replay as proof
from tidemark.pipeline.consume import Reading, ShardReader
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.leases import Leases, take_hold
from tidemark.pipeline.maintain import begin, compact, plan_reclaim
from tidemark.pipeline.repair import repair
from tidemark.pipeline.run import replay, run

T = WriterToken("maintainer")
FED = 14
WAIT_SECONDS_MAX = 300


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    """Fourteen transactions of two parts each, published up to 12, and an attempt that lost its seal."""
    feed(tmp_path, first=0, files=FED)
    published(LightDeployment(tmp_path), 12)
    deployment = LightDeployment(tmp_path)
    binding = (
        next(iter(deployment.control.bindings.read(3, 4))) if deployment.control.bindings.head() else None
    )
    deployment.light.stage(binding, WriterToken("loser"))  # type: ignore[arg-type]
    return tmp_path


def verdicts(root: Path) -> set[str]:
    found = replay(
        LightDeployment(root).pipeline, Attempt(Owner("prove"), new_token()), txn_from=Txn(1), txn_to=Txn(FED)
    )
    return {str(finding.verdict) for finding in found}


def test_compaction_keeps_every_row_with_its_transaction_and_every_proof(fed: Path) -> None:
    """Invariant 7: what was merged gives, transaction by transaction, what was sealed."""
    done = maintenance.maintain(LightDeployment(fed), T, terms(kept_ms=10**18))
    assert ("merged small files", 28) in [(chore.what, chore.files) for chore in done.chores]
    assert len(DeltaTable(str(log_folder(fed))).file_uris()) == 1
    assert log_rows(fed) == wanted_rows(fed)
    assert len([path for path in files_on_disk(fed) if path.startswith("_txn-")]) == 28, "kept for who looked"
    assert verdicts(fed) == {"identical"}
    maintenance.maintain(LightDeployment(fed), T, terms())
    assert [path for path in files_on_disk(fed) if path.startswith("_txn-")] == []
    assert log_rows(fed) == wanted_rows(fed)
    assert verdicts(fed) == {"identical"}, "the rows are proven where they lie now"
    feed(fed, first=FED, files=2)
    assert log_rows(fed) == wanted_rows(fed)


def test_a_log_that_is_not_what_was_sealed_is_left_alone_and_told(fed: Path) -> None:
    import pyarrow as pa

    part = next(log_folder(fed).glob("_txn-00000000000000000005/*/part-0.parquet"))
    table = pq.ParquetFile(part).read()
    values = pa.array(["changed"] * table.num_rows)
    pq.write_table(table.set_column(table.schema.get_field_index("value"), "value", values), part)
    done = maintenance.maintain(LightDeployment(fed), T, terms())
    assert any("transaction 5" in warning and "sealed" in warning for warning in done.warnings)
    assert len(DeltaTable(str(log_folder(fed))).file_uris()) == 28
    assert [path for path in files_on_disk(fed) if path.startswith("_txns-")] == [], "it is gone"


def test_truncation_advances_since_and_never_passes_what_is_published(fed: Path) -> None:
    deployment = LightDeployment(fed)
    planned = maintenance.plan(deployment, terms(window=20))
    assert planned.since == 1
    held = [chore for chore in planned.chores if chore.what == "truncate the log" and chore.held_by]
    assert held[0].held_by == "consumer state of points needs txn 13"
    assert held[0].files == 4
    done = maintenance.maintain(deployment, T, terms(window=20))
    assert done.since == 13
    assert log_rows(fed) == wanted_rows(fed, since=13)
    with pytest.raises(InvalidUsage, match="the oldest retained transaction is 13"):
        Leases(deployment.control.leases).take("late", HolderToken("h"), start=Txn(12))
    assert verdicts(fed) == {"identical"}, "by the input; the parts were free to go"


def test_r4_what_a_live_lease_needs_stays_and_the_dry_run_names_the_holder(fed: Path) -> None:
    """Invariant 12: maintenance asks the leases first; once they end, the space is given back."""
    deployment = LightDeployment(fed)
    leases = Leases(deployment.control.leases)
    tenure = leases.take("report", HolderToken("host-7"), start=Txn(5))
    assert isinstance(tenure, Tenure)
    before = files_on_disk(fed)

    planned = maintenance.plan(deployment, terms(window=10))
    assert files_on_disk(fed) == before, "a dry run changes nothing"
    (held,) = [chore for chore in planned.chores if chore.what == "truncate the log" and chore.held_by]
    assert held.held_by == "lease report of host-7 needs txn 5"
    assert held.until == "it is released, or is not renewed for 120 s"
    assert held.files == 10
    assert held.bytes == sum(
        size for path, size in before.items() if "loser" not in path and 5 <= int(path[5:25]) < 10
    )
    lost = [chore.files for chore in planned.chores if chore.what == "remove lost attempts"]
    assert lost == [2]

    done = maintenance.maintain(deployment, T, terms(window=10), watch=False)
    assert done.since == 5
    kept = [path for path in files_on_disk(fed) if path.startswith("_txn-") and int(path[5:25]) >= 5]
    assert len(kept) == 20, "the parts that the holder may have looked up are merged, and still on disk"
    assert log_rows(fed) == wanted_rows(fed, since=5)
    replaced = [
        chore for chore in maintenance.plan(deployment, terms(window=10)).chores if "replaced" in chore.what
    ]
    assert [chore.held_by for chore in replaced] == ["lease report of host-7 at 5"]
    assert [chore.until for chore in replaced] == ["it is released, or is not renewed for 120 s"]

    leases.release(tenure.lease)
    maintenance.maintain(deployment, T, terms(window=10))
    after = files_on_disk(fed)
    assert sum(after.values()) < sum(before.values()) / 3, (sum(before.values()), sum(after.values()))
    assert log_rows(fed, since=10) == wanted_rows(fed, since=10)


def test_r4_a_holder_that_is_gone_is_seen_to_be_and_holds_nothing_any_more(fed: Path) -> None:
    deployment = LightDeployment(fed)
    assert isinstance(
        Leases(deployment.control.leases).take("dead", HolderToken("h"), start=Txn(2), ttl_seconds=0.4),
        Tenure,
    )
    done = maintenance.maintain(deployment, T, terms(window=10), watch=True)
    assert done.since == 10


def test_r4_a_dead_lease_that_holds_no_transaction_back_does_not_keep_files_for_ever(fed: Path) -> None:
    deployment = LightDeployment(fed)
    taken = Leases(deployment.control.leases).take(
        "dead/points", HolderToken("h"), start=Txn(9), ttl_seconds=0.4
    )
    assert isinstance(taken, Tenure)
    done = maintenance.maintain(deployment, T, terms(window=5))
    assert done.since == 5, "the lease is above the floor"
    (lease,) = Leases(deployment.control.leases).latest()
    assert (lease.state, lease.txn) == ("expired", 9)
    assert [path for path in files_on_disk(fed) if path.startswith("_txn-")] == []


def test_a_log_remembers_for_state_history_days_when_a_file_was_taken_out_of_it(fed: Path) -> None:
    now_ns = time.time_ns()
    deployment = LightDeployment(fed)
    deployment.control._clock_ns = lambda: now_ns - 10 * maintenance.DAY_MS * 1_000_000
    month = terms(now_ms=now_ns // 1_000_000, kept_ms=30 * maintenance.DAY_MS)
    maintenance.maintain(deployment, T, month)
    replaced = {path for path in files_on_disk(fed) if path.startswith("_txn-")}
    assert len(replaced) == 2 * FED
    log = LightDeployment(fed).control.log(SHARD)
    # What it remembers is in the checkpoints of its table, each of which drops what is older.
    for _ in range(CHECKPOINT_BYTES_MIN // ENTRY_BYTES_MIN + 2):
        begin(log, SHARD)
    assert {one.path for one in log.leftovers() if one.removed_ms is not None} == replaced
    maintenance.maintain(LightDeployment(fed), T, month)
    assert replaced <= set(files_on_disk(fed)), "ten days are less than a month"


def test_the_record_of_publishes_is_cleaned_like_the_other_control_tables(fed: Path) -> None:
    deployment = LightDeployment(fed)
    deployment.control._clock_ns = lambda: time.time_ns() - 3 * 3_600 * 10**9
    for version in range(FED + 1, 2 * FED):
        published(deployment, FED, version=version)
    table = fed / "wh" / "race" / SHARD / "publishes"
    assert len(list(table.glob("*.parquet"))) > len(DeltaTable(str(table)).file_uris())
    maintenance.maintain(LightDeployment(fed), T, terms())
    assert len(list(table.glob("*.parquet"))) == len(DeltaTable(str(table)).file_uris())


def test_a_consumer_whose_process_was_killed_can_be_forgotten_and_one_that_reads_can_not(fed: Path) -> None:
    file = fed / "race.yaml"
    file.write_text(PIPELINE_FILE)
    control = LightDeployment(fed).control
    Leases(control.leases).take("dead/points", HolderToken("h"), start=Txn(9), ttl_seconds=0.4)
    assert "is removed" in command("consumers", "forget", str(file), "points", "dead")
    hold = take_hold(Leases(control.leases), "live/points", HolderToken("h"), ttl_seconds=6)
    try:
        found = CliRunner().invoke(app, ["consumers", "forget", str(file), "points", "live"])
        assert found.exit_code != 0
        assert "is being read by h" in str(found.exception)
    finally:
        hold.release()


@pytest.mark.slow
def test_p3_maintenance_that_is_killed_at_any_step_loses_nothing_and_is_finished_by_the_next(
    fed: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Invariants 4, 5 and 12, with SIGKILL before each durable step of a real process."""
    copies = tmp_path_factory.mktemp("copies")
    runs = list(killed_runs(fed, copies))
    assert {run.status for run in runs[:-1]} == {KILLED}
    assert runs[-1].status == 0
    kinds = {step.split()[0] for step in runs[-1].steps}
    assert {"commit", "merge", "delete", "discard", "sweep"} <= kinds, kinds
    assert len(runs) > 14, "the steps were not found"
    for one in runs:
        copy, last_step = one.copy, one.steps[-1]
        assert log_rows(copy, since=WINDOW) == wanted_rows(copy, since=WINDOW), last_step
        maintain(copy)
        assert log_rows(copy, since=WINDOW) == wanted_rows(copy, since=WINDOW), last_step
        active = DeltaTable(str(log_folder(copy))).file_uris()
        named = sorted(str(Path(uri).relative_to(log_folder(copy))) for uri in active)
        assert sorted(files_on_disk(copy)) == named, last_step
        assert verdicts(copy) == {"identical"}


def test_regression_a_compaction_whose_files_a_later_one_has_removed_has_lost_a_race(fed: Path) -> None:
    deployment = LightDeployment(fed)
    merger = deployment.plane().log_rows

    class Overtaken:
        digests_by_txn = merger.digests_by_txn

        def merge(self, shard: ShardId, files: Any, *, folder: str) -> Any:
            made = merger.merge(shard, files, folder=folder)
            begin(LightDeployment(fed).control.log(SHARD), SHARD)
            shutil.rmtree(log_folder(fed) / folder)
            return made

    log = deployment.control.log(SHARD)
    done = compact(deployment.control, log, Overtaken(), SHARD, token=T)  # type: ignore[arg-type]
    assert (done.files_before, done.left) == (0, ("another compaction has begun",))
    assert log_rows(fed) == wanted_rows(fed)


@pytest.mark.slow
def test_two_maintenances_at_once_beside_a_writer_and_a_reader_lose_and_break_nothing(fed: Path) -> None:
    """Invariants 2 and 12: compare-and-append alone; the reader never meets a missing file."""
    context = multiprocessing.get_context("spawn")
    reports = context.Queue()
    until = time.monotonic() + 7
    targets = [(keep_house, (str(fed), until, reports))] * 2 + [(write, (str(fed), FED, until, reports))]
    processes = [context.Process(target=target, args=args) for target, args in targets]
    for process in processes:
        process.start()
    reads = 0
    try:
        while not reads or time.monotonic() < until:
            seen = log_rows(fed)  # First: a file has landed before its rows can be in the log.
            wanted = wanted_rows(fed)
            assert wanted >= seen >= wanted - wanted_rows(fed, since=FED)
            reads += 1
        told = [reports.get(timeout=WAIT_SECONDS_MAX) for _ in processes]
    finally:
        for process in processes:
            process.join(WAIT_SECONDS_MAX)
            process.kill()
    assert [error for errors, _ in told for error in errors] == []
    assert all(rounds > 0 for _, rounds in told)
    assert log_rows(fed) == wanted_rows(fed)
    maintenance.maintain(LightDeployment(fed), T, terms())
    assert log_rows(fed) == wanted_rows(fed)
    assert len(files_on_disk(fed)) < 40


def test_a_repair_that_maintenance_outruns_changes_nothing_and_the_next_one_repairs(
    fed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clean-up between the staging of lost rows and their commit may take them: then they never go in."""
    maintenance.maintain(LightDeployment(fed), T, terms())
    (merged,) = log_folder(fed).glob("_txns-*/*/*.parquet")
    merged.unlink()
    deployment = LightDeployment(fed)
    compare = deployment.light.log_rows.digests_by_txn

    def compare_then_maintain(shard: ShardId, parts: Sequence[Part]) -> Mapping[Txn, Digest]:
        found = compare(shard, parts)
        maintenance.maintain(LightDeployment(fed), WriterToken("other"), terms())
        assert not [part for part in parts if (log_folder(fed) / part.path).exists()]
        return found

    monkeypatch.setattr(deployment.light.log_rows, "digests_by_txn", compare_then_maintain)
    before = DeltaTable(str(log_folder(fed))).file_uris()
    with pytest.raises(Determinate, match="another process changed the files of points"):
        repair(deployment.pipeline, Attempt(Owner("mend"), new_token()), Txn(3))
    assert DeltaTable(str(log_folder(fed))).file_uris() == before
    monkeypatch.undo()
    done = repair(deployment.pipeline, Attempt(Owner("mend"), new_token()), Txn(3))
    assert done.finding.passed
    assert log_rows(fed) == wanted_rows(fed)
    assert verdicts(fed) == {"identical"}


def test_a_part_that_goes_into_the_log_while_leftovers_are_sorted_is_none(
    fed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files were listed while the part was staged; before they are judged it is sealed and in the log."""
    deployment = LightDeployment(fed)
    log = deployment.control.log(SHARD)
    look, stage = log.leftovers, deployment.light.stage
    seen: list[Leftover] = []

    def stage_then_look(binding: Binding, token: WriterToken) -> Staged:
        staged = stage(binding, token)
        seen.extend(look())
        return staged

    def look_then_commit() -> list[Leftover]:
        write_round(fed, FED)
        run(deployment.pipeline, Attempt(Owner("late"), new_token()))
        return seen

    monkeypatch.setattr(deployment.light, "stage", stage_then_look)
    monkeypatch.setattr(log, "leftovers", look_then_commit)
    plan = plan_reclaim(deployment.control, log, Leases(deployment.control.leases), now_ms=10**15, kept_ms=0)
    assert [one.first for one in seen if one.first == FED + 1], "it was staged when the files were listed"
    assert [one.path for one in plan.free if one.first == FED + 1] == []


def test_invariant_12_a_lease_taken_while_leftovers_are_listed_holds_them(
    fed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = LightDeployment(fed)
    maintenance.maintain(deployment, T, terms(kept_ms=10**18))
    log, leases = deployment.control.log(SHARD), Leases(deployment.control.leases)
    look = log.leftovers

    def look_then_lease() -> Sequence[Leftover]:
        found = look()
        assert isinstance(leases.take("late", HolderToken("h"), start=Txn(1)), Tenure)
        return found

    monkeypatch.setattr(log, "leftovers", look_then_lease)
    plan = plan_reclaim(deployment.control, log, leases, now_ms=10**15, kept_ms=0)
    assert plan.free == ()
    assert {hold.kind for hold in plan.held} == {"leased"}


PIPELINE_FILE = """\
name: race
source: {type: files, path: in, format: json, settle_seconds: 0}
warehouse: wh
retention: {log_days: 1}
shards:
  - {name: points, schema: "id BIGINT NOT NULL, value STRING", keys: [id]}
"""


def command(*arguments: str) -> str:
    found = CliRunner().invoke(app, list(arguments))
    assert found.exit_code == 0, found.output
    return found.output


def test_the_dry_run_is_a_table_for_people_and_json_for_machines(fed: Path) -> None:
    file = fed / "race.yaml"
    file.write_text(PIPELINE_FILE)
    before = files_on_disk(fed)
    found = json.loads(command("maintain", str(file), "--dry-run", "--json"))
    assert found["since"] == 1
    chores = {(chore["what"], chore["files"], chore["held_by"]) for chore in found["chores"]}
    assert chores == {("merge small files", 28, ""), ("remove lost attempts", 2, "")}
    shown = command("maintain", str(file), "--dry-run")
    assert "merge small files" in shown
    assert "nothing: deletable now" in shown
    assert files_on_disk(fed) == before


def test_what_can_not_be_proven_any_more_is_shown_by_status_and_warned_of(fed: Path) -> None:
    file = fed / "race.yaml"
    file.write_text(PIPELINE_FILE)
    (fed / "in" / "000003.json").unlink()
    found = json.loads(command("status", str(file), "--json"))["replayable"]
    assert [(one["first"], one["last"], bool(one["gone"])) for one in found] == [
        (1, 3, False), (4, 4, True), (5, FED, False),
    ]  # fmt: skip
    (warning,) = maintenance.plan(LightDeployment(fed), terms()).warnings
    assert warning.startswith(
        "transaction 4 can't be proven again: file '000003.json' (number 3) was removed"
    )


def test_a_source_that_forgets_soon_is_warned_of_before_it_does() -> None:
    found = {Txn(1): Replayable(until_seconds=90_000.0), Txn(2): Replayable(until_seconds=500_000.0)}
    told = proof.warnings(found, since=Txn(1), now_seconds=3_600.0)
    assert told == ("transaction 1 can be proven for 24 more hours, then its source deletes the input",)
    assert proof.warnings(found, since=Txn(2), now_seconds=3_600.0) == ()


def test_log_days_keep_what_was_sealed_within_them(fed: Path) -> None:
    file = fed / "race.yaml"
    file.write_text(PIPELINE_FILE)
    deployment = Deployment(load_pipeline(file), LightDeployment._no_session)
    now_ms = time.time_ns() // 1_000_000
    assert maintenance.terms_of(deployment).window == 1
    assert maintenance.terms_of(deployment, now_ms=now_ms + 2 * maintenance.DAY_MS).window == FED + 1
    eighth = deployment.control.seals.written_at(8)
    assert eighth is not None
    then_ms = int(eighth.timestamp() * 1000) + maintenance.DAY_MS
    assert maintenance.terms_of(deployment, now_ms=then_ms).window in (7, 8)


def test_r5_a_consumer_has_every_change_once_while_maintenance_works_around_it(
    fed: Path,
) -> None:
    """Invariants 11 and 12: between a batch's listing and its reading everything is maintained, with no
    time given to earlier reader; the lease alone keeps what the consumer needs."""
    deployment, rivals = LightDeployment(fed), LightDeployment(fed)
    leases = Leases(deployment.control.leases)
    hold = take_hold(leases, lease_name("billing", SHARD), HolderToken("h"), ttl_seconds=60, wait_seconds=1)
    reading = Reading("billing", SHARD, new_token(), limits=Limits(txns_max=3))
    reader = ShardReader(deployment.pipeline, DeltaParts(deployment.root), hold, reading, name="race")
    had: Counter[Row] = Counter()
    batches = 0
    try:
        while (given := reader.next_range()) is not None:
            maintenance.maintain(rivals, T, terms(window=20), watch=False)
            for part in given.parts:
                rows = pq.ParquetFile(log_folder(fed) / part.path).read(columns=list(ROW)).to_pylist()
                asked = [row for row in rows if given.lower <= row["_txn"] < given.upper]
                had.update(tuple(row[name] for name in ROW) for row in asked)
            reader.delivered(given)
            batches += 1
            maintenance.maintain(rivals, T, terms(window=20), watch=False)
    finally:
        hold.release()
    assert had == wanted_rows(fed)
    assert batches >= 1
    assert maintenance.maintain(rivals, T, terms(window=20)).since == 13, "up to what is published"
