"""What the tables must hold, worked out again from the source files by hand.

Nothing of the product is used here. The files are read as text; which file belongs to which transaction is
taken from the bindings, and that this is a partition of the files in order is checked first. Tables
are read with delta-rs's own query engine (log, control tables, states with deletion vectors alike).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.crash.feed import INPUT, ORDERS, PARTIES, PIPELINE, WAREHOUSE
from tests.support.tables import Row, bodies_of, bound_files, rows_of

QUARANTINE = "quarantine"
COLUMNS = {ORDERS: ("id", "note", "amount", "version"), PARTIES: ("code", "region", "name")}
KEYS = {ORDERS: ("id",), PARTIES: ("code", "region")}
POSITION = ("_txn", "_op", "_offset", "_ordinal")


@dataclass
class Expected:
    """What one set of transactions comes to."""

    logs: dict[str, Counter[Row]] = field(default_factory=lambda: {ORDERS: Counter(), PARTIES: Counter()})
    states: dict[str, Counter[Row]] = field(default_factory=dict)
    quarantined: Counter[Row] = field(default_factory=Counter)
    read: dict[int, int] = field(default_factory=dict)


def parsed(line: str) -> tuple[str, dict[str, Any]] | None:
    """The shard and the record of a line; None for a broken one."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if record["kind"] == "order" and isinstance(record["id"], int):
        return ORDERS, record
    return (PARTIES, record) if record["kind"] == "party" else None


def expected(root: Path, files: Mapping[int, list[tuple[int, str]]]) -> Expected:
    """The logs, the states and the quarantine that `{txn: [(number, name)]}` must give."""
    result = Expected()
    overall: dict[str, dict[Row, tuple[Row, dict[str, Any]]]] = {ORDERS: {}, PARTIES: {}}
    for txn in sorted(files):
        within: dict[str, dict[Row, tuple[Row, dict[str, Any]]]] = {ORDERS: {}, PARTIES: {}}
        result.read[txn] = 0
        for number, name in files[txn]:
            lines = (root / INPUT / name).read_text(encoding="utf-8").splitlines()
            result.read[txn] += len(lines)
            for ordinal, line in enumerate(lines):
                known = parsed(line)
                if known is None:
                    result.quarantined[(txn, number, ordinal, line)] += 1
                    continue
                shard, record = known
                key = tuple(record.get(name) for name in KEYS[shard])
                sequence = record["version"] if shard == ORDERS else 0
                rank = (sequence, txn, number, ordinal)
                for fold in (within[shard], overall[shard]):
                    if key not in fold or fold[key][0] < rank:
                        fold[key] = (rank, record)
        for shard, fold in within.items():
            for rank, record in fold.values():
                result.logs[shard][logged(shard, record, rank)] += 1
    for shard, fold in overall.items():
        living = [record for _, record in fold.values() if record.get("op") != "D"]
        result.states[shard] = Counter(
            tuple(record.get(name) for name in COLUMNS[shard]) for record in living
        )
    return result


def logged(shard: str, record: Mapping[str, Any], rank: Row) -> Row:
    """A record's row in the log: of a delete, the key and the sequence are kept."""
    deletes = record.get("op") == "D"
    kept = {*KEYS[shard], "version"} if deletes else set(COLUMNS[shard])
    values = tuple(record.get(name) if name in kept else None for name in COLUMNS[shard])
    return (*values, rank[1], "D" if deletes else "U", rank[2], rank[3])


def check_everything(root: Path, *, published: bool = True) -> Expected:
    """Compare every table of the pipeline with the source files; AssertionError tells what parts."""
    home = root / WAREHOUSE / PIPELINE
    files = bound_files(home / "_control")
    flat = [pair for txn in sorted(files) for pair in files[txn]]
    assert [number for number, _ in flat] == list(range(len(flat))), "file numbers are not dense"
    names = sorted(path.name for path in (root / INPUT).glob("*.json"))
    assert sorted(name for _, name in flat) == names, "not every file is bound exactly once"
    found = expected(root, files)
    for shard in (ORDERS, PARTIES):
        log = Counter(rows_of(home / shard / "log", (*COLUMNS[shard], *POSITION)))
        assert log == found.logs[shard], f"the log of {shard}: {parting(log, found.logs[shard])}"
        if published:
            state = Counter(rows_of(home / shard / "state", COLUMNS[shard]))
            assert state == found.states[shard], (
                f"the state of {shard}: {parting(state, found.states[shard])}"
            )
    bad = Counter(rows_of(home / QUARANTINE / "log", ("_txn", "_offset", "_ordinal", "_raw")))
    assert bad == found.quarantined, f"the quarantine: {parting(bad, found.quarantined)}"
    check_control(home, found, published=published)
    check_acknowledged(root, files)
    return found


def check_control(home: Path, found: Expected, *, published: bool) -> None:
    """Seals, checkpoints, the journal and the publishes against each other and against the files on disk."""
    control = home / "_control"
    seals = {body["txn"]: body for body in bodies_of(control / "history", "seal")}
    assert sorted(seals) == sorted(found.read), "a transaction is not sealed exactly once"
    for txn, seal in seals.items():
        assert seal["source"]["count"] == found.read[txn], f"transaction {txn} has read other than the files"
    assert bodies_of(control / "checkpoints")[-1]["txn"] == max(seals)
    for entry in bodies_of(control / "journal"):
        winner = seals[entry["txn"]]["token"]
        if entry["event"] == "lost":
            assert entry["detail"]["winner"] == winner != entry["token"], f"a wrong winner: {entry}"
        assert entry["detail"]["verdict"] == "identical", f"not identical: {entry}"
    for shard in (ORDERS, PARTIES, QUARANTINE):
        log = home / shard / "log"
        sealed = {
            part["path"]: part["rows"]
            for seal in seals.values()
            for part in seal["shards"].get(shard, {"parts": []})["parts"]
        }
        active = set()
        if (log / "_delta_log").is_dir():
            active = {str(Path(uri).relative_to(log)) for uri in DeltaTable(str(log)).file_uris()}
        assert active == set(sealed), f"the log of {shard} has other parts than the seals"
        if published and shard != QUARANTINE and sealed:
            last = bodies_of(home / shard / "publishes")[-1]["commit"]
            touched = [txn for txn, seal in seals.items() if shard in seal["shards"]]
            assert last["txn"] == max(touched), f"{shard} is published up to {last['txn']}"
            assert last["digest"]["count"] == sum(found.states[shard].values())


def check_acknowledged(root: Path, files: Mapping[int, list[tuple[int, str]]]) -> None:
    """Only whole transactions are acknowledged, and in the end all of them (Invariant 10)."""
    told = [int(line) for line in (root / "acknowledged").read_text().split()]
    ends = {max(number for number, _ in files[txn]) + 1 for txn in files}
    assert set(told) <= ends, f"acknowledged in the middle of a transaction: {set(told) - ends}"
    assert max(told) == max(ends), f"acknowledged up to {max(told)} of {max(ends)}"


def orphans(root: Path) -> list[str]:
    """Part files on disk that no seal names."""
    home = root / WAREHOUSE / PIPELINE
    seals = bodies_of(home / "_control" / "history", "seal")
    named = {
        f"{shard}/log/{part['path']}"
        for seal in seals
        for shard, added in seal["shards"].items()
        for part in added["parts"]
    }
    parts = [path for path in home.glob("*/log/_txn-*/**/*") if path.is_file()]
    return sorted(name for path in parts if (name := str(path.relative_to(home))) not in named)


def parting(found: Counter[Row], wanted: Counter[Row]) -> str:
    return f"too many {list((found - wanted).items())[:3]}, missing {list((wanted - found).items())[:3]}"
