"""What a person who looks after a pipeline sees: times, alarms, what happened; no Spark anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner, Result

import tidemark
from tests.support.waiting import SECONDS_MAX
from tidemark.app import publish
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.status import status_of
from tidemark.cli.app import app
from tidemark.config import load_pipeline
from tidemark.core.binding import Binding, Owner
from tidemark.core.checksum import Digest, Digests
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import QUARANTINE, ShardId, Txn, WriterToken
from tidemark.core.ledger import Event
from tidemark.core.seal import Part, ShardParts, Staged
from tidemark.core.status import Input, Limits, alarms_of, limits_in
from tidemark.core.text import seconds_in, span
from tidemark.delta.log import parts_folder
from tidemark.pipeline.context import Attempt, note
from tidemark.pipeline.run import run

PIPELINE = """\
name: p
source: {type: files, path: in, format: json, settle_seconds: 0}
shards: [{name: t, schema: id BIGINT NOT NULL, keys: [id]}]
"""
ROWS = 1_234


class Plane:
    """Says that it has written, and reads back what it said; `bad` records are quarantined."""

    def __init__(self, bad: int = 0, refuses: str = "") -> None:
        self.bad, self.refuses = bad, refuses

    def stage(self, binding: Binding, token: WriterToken) -> Staged:
        if self.refuses:
            raise InvalidUsage(self.refuses)
        counts = {ShardId("t"): ROWS, QUARANTINE: self.bad}
        shards = {}
        for shard, count in counts.items():
            if count:
                part = Part(f"{parts_folder(binding.txn, token)}/part.parquet", count, 1_000)
                deletes = 34 if shard == "t" else None
                shards[shard] = ShardParts((part,), Digest.of(range(count)), deletes=deletes)
        return Staged(binding.txn, token, Digest.of(range(ROWS + self.bad)), shards, "none")

    def read_back(self, staged: Staged, *, moved: Mapping[ShardId, Sequence[Part]] | None = None) -> Digests:
        return staged.digests


class Shop:
    """One pipeline in the current folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "p.yaml").write_text(PIPELINE)
        (folder / "in").mkdir()

    @property
    def deployment(self) -> Deployment:
        return Deployment(load_pipeline(self.folder / "p.yaml"), lambda: cast("Any", None))

    def land(self, name: str, *, age_seconds: float = 0) -> None:
        file = self.folder / "in" / name
        file.write_text('{"id": 1}\n')
        os.utime(file, (time.time() - age_seconds,) * 2)

    def work(self, run_id: str, plane: Plane | None = None) -> None:
        pipeline = replace(self.deployment.pipeline, plane=cast("Any", plane or Plane()))
        run(pipeline, Attempt(Owner(run_id), new_token()))

    def tell(self, *words: str) -> Result:
        return CliRunner().invoke(app, list(words))

    def json(self, *words: str, code: int = 0) -> Any:
        told = self.tell(*words, "--json")
        assert told.exit_code == code, (told.output, told.exception)
        return json.loads(told.output)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path)


def is_now(text: str) -> bool:
    assert text.endswith("Z")
    return abs(datetime.fromisoformat(text).timestamp() - time.time()) < 60


def test_every_command_that_shows_transactions_has_their_times(shop: Shop) -> None:
    shop.land("1.json")
    shop.work("monday")
    looked = shop.json("status", "p")
    assert (looked["last_run"]["run_id"], is_now(looked["last_run"]["at"])) == ("monday", True)
    assert all(is_now(looked["last_sealed"][what]) for what in ("bound", "sealed"))
    (listed,) = shop.json("txns", "p")
    shown = shop.json("show", "p", "1")
    for one in (listed, shown):
        took = datetime.fromisoformat(one["sealed_at"]) - datetime.fromisoformat(one["bound_at"])
        assert is_now(one["bound_at"])
        assert one["seconds"] == pytest.approx(took.total_seconds(), abs=0.002)
    today = datetime.now(UTC).strftime("%Y-%m-%d ")
    for words in (["status", "p"], ["txns", "p"], ["show", "p", "1"], ["journal", "p"]):
        assert today in shop.tell(*words).output, words


def test_a_run_that_found_nothing_is_the_last_run_too(shop: Shop) -> None:
    assert shop.json("status", "p")["last_run"] is None
    shop.work("monday")
    assert shop.json("status", "p")["last_run"]["run_id"] == "monday"
    shop.land("1.json")
    shop.work("tuesday")
    assert shop.json("status", "p")["last_run"]["run_id"] == "tuesday"
    shop.work("wednesday")
    assert shop.json("status", "p")["last_run"]["run_id"] == "wednesday"


def test_numbers_are_numbers_in_json_and_are_grouped_and_right_aligned_for_people(shop: Shop) -> None:
    shop.land("1.json")
    shop.work("monday", Plane(bad=2))
    (listed,) = shop.json("txns", "p")
    assert (listed["read"], listed["rows"]) == (ROWS + 2, {"t": ROWS, "quarantine": 2})
    assert listed["deletes"] == {"t": 34}, "what was not counted is not said to be none"
    header, row = shop.tell("show", "p", "1").output.split("endpoint")[1].splitlines()[:2]
    assert row.index("1,236") + len("1,236") == len("endpoint") + header.index("rows") + len("rows")
    assert "t 1,234 (34 deletes)" in shop.tell("txns", "p").output


def test_regression_a_verdict_of_the_first_gate_is_no_replay(shop: Shop) -> None:
    shop.land("1.json")
    shop.work("monday")
    pipeline, token = shop.deployment.pipeline, new_token()
    note(pipeline, Event.JUDGED, txn=Txn(1), token=token, detail={"verdict": "identical", "finding": ""})
    assert shop.json("txns", "p")[0]["verdict"] == ""
    note(pipeline, Event.VERIFIED, txn=Txn(1), token=token, detail={"verdict": "differs", "finding": ""})
    assert shop.json("txns", "p")[0]["verdict"] == "differs"


def test_status_says_what_is_blocked_since_when_and_why(shop: Shop) -> None:
    shop.land("1.json")
    assert shop.json("status", "p", "--fail-if", "blocked")["alarms"] == []
    with pytest.raises(InvalidUsage):
        shop.work("monday", Plane(refuses="line 1 is no record"))
    (blocked,) = shop.json("status", "p", "--fail-if", "blocked,stalled", code=4)["blocked"]
    assert (blocked["what"], blocked["why"]) == ("transaction 1", "line 1 is no record")
    assert is_now(blocked["since"])
    assert "blocked: transaction 1, since " in shop.tell("status", "p").output
    shop.work("tuesday")
    assert shop.json("status", "p", "--fail-if", "blocked")["blocked"] == []


@pytest.mark.parametrize("table", ["_control/history", "t/log"])
def test_w1_status_names_the_table_that_lost_commits_and_what_to_do(shop: Shop, table: str) -> None:
    for day in ("1", "2"):
        shop.land(f"{day}.json")
        shop.work(day)
    max((Path(shop.deployment.root) / table / "_delta_log").glob("*.json")).unlink()
    looked = shop.json("status", "p", "--fail-if", "blocked", code=4)
    assert looked["blocked"][0]["what"] == "commits are lost"
    named = "the history ends with 1" if "history" in table else "the log of shard t ends with"
    assert named in looked["blocked"][0]["why"]
    assert "restore the table, or run `tidemark recover" in looked["alarms"][0]["remedy"]


def test_input_that_waits_has_an_age_and_behind_is_an_alarm(shop: Shop) -> None:
    assert shop.json("status", "p", "--fail-if", "behind=0s")["waiting"]["pieces"] == 0
    shop.land("1.json", age_seconds=7_200)
    shop.land("2.json")
    looked = shop.json("status", "p", "--fail-if", "behind=90m", code=4)
    (alarm,) = looked["alarms"]
    assert (looked["waiting"]["pieces"], alarm["kind"], alarm["fact"]) == (
        2,
        "behind",
        "2 files wait, for 2 h",
    )
    assert shop.json("status", "p", "--fail-if", "behind=3h")["alarms"] == []
    with pytest.raises(InvalidUsage):
        shop.work("monday", Plane(refuses="no"))
    (alarm,) = shop.json("status", "p", "--fail-if", "behind=0s", code=4)["alarms"]
    assert alarm["fact"].startswith("transaction 1 is bound and not sealed, for ")
    shop.work("monday")
    assert shop.json("status", "p", "--fail-if", "behind=0s")["alarms"] == []


def test_a_folder_that_can_not_be_listed_is_behind(shop: Shop) -> None:
    """What can't be known is no good news."""
    (shop.folder / "in").rmdir()
    (alarm,) = shop.json("status", "p", "--fail-if", "behind=10m", code=4)["alarms"]
    assert "is not there" in alarm["fact"]
    assert "is not there" in shop.tell("status", "p").output


def test_quarantined_records_are_an_alarm_for_as_long_as_is_asked(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.land("1.json")
    shop.work("monday", Plane(bad=3))
    looked = shop.json("status", "p", "--fail-if", "quarantine", code=4)
    assert [one["fact"] for one in looked["alarms"]] == ["3 records are quarantined"]
    assert shop.tell("status", "p", "--fail-if", "quarantine=1h").exit_code == 4
    later = time.time() + 3_700
    monkeypatch.setattr("tidemark.cli.status.time.time", lambda: later)
    assert shop.tell("status", "p", "--fail-if", "quarantine=1h").exit_code == 0
    assert shop.tell("status", "p", "--fail-if", "quarantine").exit_code == 4


@pytest.mark.parametrize(
    "words", ["late", "blocked=1h", "behind=soon", "behind=1", "wal=5%", "quarantine=101%", "all=1"]
)
def test_an_alarm_that_there_is_not_is_refused(shop: Shop, words: str) -> None:
    assert isinstance(shop.tell("status", "p", "--fail-if", words).exception, InvalidUsage)


def test_a_source_that_does_not_say_since_when_its_input_waits_is_never_on_time(shop: Shop) -> None:
    found = replace(status_of(shop.deployment, now_seconds=time.time()), waiting=Input())
    (alarm,) = alarms_of(found, limits_in("behind=10m", Limits()))
    assert "can't report how long" in alarm.fact
    assert alarms_of(replace(found, asked=False), limits_in("behind=10m", Limits())) == ()


def test_the_journal_tells_what_happened_since_in_order(shop: Shop) -> None:
    shop.land("1.json")
    with pytest.raises(InvalidUsage):
        shop.work("monday", Plane(refuses="no"))
    shop.work("tuesday", Plane(bad=1))
    found = shop.json("journal", "p", "--since", "1h")
    events = ["bound", "refused", "judged", "committed"]
    assert [(one["txn"], one["event"]) for one in found] == [(1, event) for event in events]
    assert found[3]["detail"] == {"read": str(ROWS + 1), "quarantine": "1", "t": str(ROWS)}
    assert all(is_now(one["at"]) for one in found)
    time.sleep(1.1)
    assert shop.json("journal", "p", "--since", "1s") == []
    assert "nothing has happened since" in shop.tell("journal", "p", "--since", "1s").output


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1 m"), (7_260, "2 h 1 m"), (90_000, "1 d 1 h"), (None, "")],
)
def test_lengths_of_time_for_people(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


def test_lengths_of_time_in_options() -> None:
    assert [seconds_in(text) for text in ("90s", "10m", "24h", "7d")] == [90, 600, 86_400, 604_800]


def test_without_a_terminal_each_transaction_is_told_when_it_is_through(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop.folder / "p.yaml").write_text(PIPELINE + "transaction: {max_files: 1}\n")
    monkeypatch.setattr(Deployment, "plane", lambda deployment: Plane(bad=1))
    shop.land("1.json")
    shop.land("2.json")
    told = shop.tell("run", "p", "--no-publish")
    assert told.exit_code == 0, told.output
    lines = [line.split(" UTC ")[1] for line in told.stderr.splitlines() if " UTC " in line]
    assert [line.rpartition("; ")[0] for line in lines] == [
        f"transaction {txn}: committed, 1,235 read, quarantine 1, t 1,234 (34 deletes)" for txn in (1, 2)
    ]
    shop.land("3.json")
    assert shop.tell("run", "p", "--no-publish", "--json").stderr == ""


@pytest.mark.parametrize("words", [["txns", "p"], ["txns", "p", "--json"], ["--help"], ["status", "p"]])
def test_regression_a_reader_that_has_seen_enough_is_no_error(shop: Shop, words: list[str]) -> None:
    """As with `tidemark txns p | head -1`."""
    shop.land("1.json")
    shop.work("monday")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "tidemark.cli", *words],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_exit_code_means_the_same_to_a_reader_that_has_seen_enough(shop: Shop) -> None:
    shop.land("1.json", age_seconds=60)
    reading, writing = os.pipe()
    os.close(reading)
    words = ["status", "p", "--fail-if", "behind=1s"]
    done = subprocess.run([sys.executable, "-m", "tidemark.cli", *words], stdout=writing, check=False)
    os.close(writing)
    assert done.returncode == 4


def test_one_import_is_enough_to_run_publish_and_look_from_python(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(Deployment, "plane", lambda deployment: Plane())
    monkeypatch.setattr(Deployment, "state", lambda deployment: "states")
    monkeypatch.setattr(publish, "publish", lambda *given, **more: asked.append(given[1:]))
    shop.land("1.json")
    done = tidemark.run("p.yaml", run_id="monday", publishes=False)
    assert (done.run_id, done.report.checkpoint, done.published) == ("monday", 1, {})
    assert tidemark.publish(shop.folder / "p.yaml") == {"t": None}
    assert asked == [("states", "t")]
    assert tidemark.quarantine("p", txn=1) == []
    with pytest.raises(InvalidUsage):
        tidemark.run("no-such-pipeline")


def test_the_package_itself_loads_no_engine_and_has_no_other_names() -> None:
    program = "import sys, tidemark; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {name.split(".")[0] for name in done.stdout.split()} & {"pyspark", "deltalake", "typer"}
    assert not hasattr(tidemark, "no_such_name")


def test_a_row_is_one_line_where_no_terminal_reads_it(shop: Shop) -> None:
    shop.land("1.json")
    with pytest.raises(InvalidUsage):
        shop.work("monday", Plane(refuses="word " * 100))
    lines = shop.tell("journal", "p").output.splitlines()
    assert [line.split()[2:4] for line in lines[1:]] == [["1", "bound"], ["1", "refused"]]
    assert lines[2].endswith("word " * 99 + "word")
