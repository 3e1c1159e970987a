"""What a transaction costs on an object store, counted by the server: the constants of docs/scale.md."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.race import write_round
from tests.s3.race import pipeline_on
from tests.support.s3 import ACCESS_LOG, atomic_store
from tidemark.app.deployment import new_token
from tidemark.core.binding import Owner
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.run import run

pytestmark = [pytest.mark.s3, pytest.mark.slow]

WARM, COUNTED = 20, 40
_REQUEST = re.compile(r" s3_(\w+) \S+ (\S+) \d+ \S+ (\d+) (\d+) ")
# Per transaction of one shard, by one process that stays open; docs/scale.md has what was measured.
PUTS_MAX, READS_MAX, BYTES_MAX = 15, 125, 50_000


def requests_in(log: Path) -> list[tuple[str, str, int]]:
    found = map(_REQUEST.search, log.read_text().splitlines())
    return [(one[1], one[2], int(one[3]) + int(one[4])) for one in found if one is not None]


def test_a_transaction_costs_a_bounded_number_of_requests_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with atomic_store(tmp_path / "store") as store:
        for name, value in store.options.items():
            monkeypatch.setenv(name, value)
        root = tmp_path / "pipeline"
        pipeline = pipeline_on(root, f"s3://{store.bucket}/lake")
        begun = 0
        for number in range(WARM + COUNTED):
            if number == WARM:
                begun = len(requests_in(tmp_path / "store" / ACCESS_LOG))
            write_round(root, number)
            run(pipeline, Attempt(Owner(f"run {number}"), new_token()))
        found = requests_in(tmp_path / "store" / ACCESS_LOG)[begun:]
    kinds = Counter(kind for kind, _, _ in found)
    puts = kinds["PutObject"] / COUNTED
    entries = [path for kind, path, _ in found if kind == "PutObject" and path.endswith(".json")]
    reads = (kinds["GetObject"] + kinds["HeadObject"] + kinds["ListObjectsV2"]) / COUNTED
    size = sum(size for _, _, size in found) / COUNTED
    told = f"{puts:.1f} puts, {reads:.1f} reads, {size:,.0f} bytes, {dict(kinds)}"
    # Two of the history, one of the log, one of the checkpoint; now and then one of housekeeping.
    assert 6 <= len(entries) / COUNTED < 7, told
    assert puts <= PUTS_MAX, told
    assert reads <= READS_MAX, told
    assert size <= BYTES_MAX, told
