"""What the tables of `tests.crash.generations` must hold at each transaction, worked out from the files.

Nothing of the product is used for it. The history is read as text, in the order of its chain. Which
generation has read which transaction follows from the rules alone: a promotion reads everything below it, and
one that takes another back reads what came after that one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.crash.generations import WORDS
from tests.support.light_generations import PIPELINE, SHARDS
from tests.support.tables import Row, bodies_of, rows_of

Rows = dict[int, str]
HOME = Path("wh") / PIPELINE
LOG = ("id", "value", "_txn", "_op")


@dataclass
class Told:
    """What a history comes to. `tables` and `logs` are by transaction, then by shard."""

    files: dict[int, list[str]] = field(default_factory=dict)
    tables: dict[int, dict[str, Rows]] = field(default_factory=dict)
    logs: dict[int, dict[str, set[Row]]] = field(default_factory=dict)
    generation: int = 0
    candidate: dict[str, Any] | None = None
    open: list[int] = field(default_factory=list)
    parts: dict[str, set[str]] = field(default_factory=dict)
    """By shard the parts that seals name."""

    @property
    def last(self) -> int:
        return max(self.tables)

    def has_been(self, shard: str, rows: Rows) -> bool:
        """Whether a shard had these rows as of some transaction."""
        return any(tables[shard] == rows for txn, tables in self.tables.items() if txn)


def history_of(root: Path) -> Told:
    """Go through a history in order; AssertionError where two generations could have been in charge."""
    found = History(root)
    for body in bodies_of(root / HOME / "_control" / "history"):
        if "state" in body:
            found.candidate(body)
        elif "upper" in body:
            found.binding(body)
        elif "decision" in body:  # A claim decides nothing.
            found.seal(body)
    found.told.open = [txn for txn in found.told.files if txn > found.told.last]
    return found.told


class History:
    """A history as far as it was gone through. `reads` is by transaction the generation that has read it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.told = Told(tables={0: {shard: {} for shard in SHARDS}})
        self.reads: dict[int, int] = {}
        self.pasts: dict[int, tuple[int, dict[int, int]]] = {}
        self.promotion: int | None = None

    def candidate(self, body: dict[str, Any]) -> None:
        is_started = body["state"] == "started"
        assert is_started == (self.told.candidate is None), f"{body} beside {self.told.candidate}"
        assert self.promotion is None or is_started, "a candidate ended during its promotion"
        self.told.candidate = body if is_started else None

    def binding(self, body: dict[str, Any]) -> None:
        told, txn = self.told, body["txn"]
        assert txn == len(told.files) + 1, "bindings are not dense"
        assert self.promotion is None, f"{txn} is bound above an open promotion"
        proposed = told.candidate["configuration"]["generation"] if told.candidate else None
        right = proposed if body["promotes"] else told.generation
        assert body["configuration"]["generation"] == right, f"{txn} is bound by another generation"
        self.promotion = txn if body["promotes"] else None
        told.files[txn] = [file["name"] for file in json.loads(body["manifest"])["files"]]

    def seal(self, body: dict[str, Any]) -> None:
        told, txn, decision = self.told, body["txn"], body["decision"]
        assert txn == told.last + 1, "seals are not dense"
        assert (decision in ("corrected", "skipped")) == (self.promotion == txn), f"{txn} was {decision}"
        before = told.tables[txn - 1]
        if decision == "corrected":
            self._promoted(txn)
        elif decision != "skipped":
            self.reads[txn] = told.generation
        self.promotion = None
        assert body["generation"] == told.generation, f"{txn} was sealed by another generation"
        told.tables[txn] = tables_of(self.root, told.files, self.reads)
        told.logs[txn] = (
            difference(txn, before, told.tables[txn])
            if decision == "corrected"
            else changes(self.root, told.files[txn], txn, told.generation)
        )
        for shard, added in body["shards"].items():
            told.parts.setdefault(shard, set()).update(part["path"] for part in added["parts"])

    def _promoted(self, txn: int) -> None:
        candidate, known = self.told.candidate, self.reads
        assert candidate is not None, f"{txn} promotes no candidate"
        generation = candidate["configuration"]["generation"]
        self.reads = dict.fromkeys(known, generation)
        if candidate["undoes"]:
            undone, before = self.pasts[candidate["undoes"]]
            self.reads |= {one: before[one] for one in known if one < undone}
        self.pasts[generation] = (txn, known)
        self.told.generation, self.told.candidate = generation, None


def records_of(root: Path, names: list[str], generation: int) -> list[tuple[str, int, str | None]]:
    """The records of files as a generation reads them: shard, key, and the value; None for a delete."""
    found = []
    for name in names:
        for line in (root / "in" / name).read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            is_delete = one["value"] == WORDS[generation][one["kind"]]
            found.append((one["kind"], one["id"], None if is_delete else one["value"]))
    return found


def tables_of(root: Path, files: Mapping[int, list[str]], reads: Mapping[int, int]) -> dict[str, Rows]:
    tables: dict[str, Rows] = {shard: {} for shard in SHARDS}
    for txn, generation in sorted(reads.items()):
        for shard, key, value in records_of(root, files[txn], generation):
            tables[shard].pop(key, None)
            if value is not None:
                tables[shard][key] = value
    return tables


def changes(root: Path, names: list[str], txn: int, generation: int) -> dict[str, set[Row]]:
    last: dict[str, dict[int, Row]] = {shard: {} for shard in SHARDS}
    for shard, key, value in records_of(root, names, generation):
        last[shard][key] = (key, value, txn, "D" if value is None else "U")
    return {shard: set(rows.values()) for shard, rows in last.items()}


def difference(txn: int, before: Mapping[str, Rows], after: Mapping[str, Rows]) -> dict[str, set[Row]]:
    return {
        shard: {(key, value, txn, "U") for key, value in rows.items() if before[shard].get(key) != value}
        | {(key, None, txn, "D") for key in before[shard].keys() - rows.keys()}
        for shard, rows in after.items()
    }


def check_tables(root: Path, told: Told) -> None:
    """Logs, states and checkpoint against the history, when nothing is open."""
    assert told.open == [], "transactions are open"
    assert bodies_of(root / HOME / "_control" / "checkpoints")[-1]["txn"] == told.last
    for shard in SHARDS:
        log, state = (root / HOME / shard / name for name in ("log", "state"))
        found = rows_of(log, LOG)
        wanted = {row for logs in told.logs.values() for row in logs[shard]}
        assert len(found) == len(wanted), f"the log of {shard} has {len(found)} rows of {len(wanted)}"
        assert set(found) == wanted, f"the log of {shard}: {set(found) ^ wanted}"
        active = {str(Path(uri).relative_to(log)) for uri in DeltaTable(str(log)).file_uris()}
        assert active == told.parts[shard], f"the log of {shard} has other parts than the seals"
        rows = rows_of(state, ("id", "value"))
        assert len(rows) == len(dict(rows)), f"keys of {shard} are there twice"
        assert dict(rows) == told.tables[told.last][shard], f"the state of {shard} has {rows}"


def check_parts(root: Path, told: Told) -> None:
    """After a sweep, no part is there that no seal names."""
    home = root / HOME
    parts = [path for path in home.glob("*/log/_txn-*/**/*") if path.is_file()]
    named = {f"{shard}/log/{path}" for shard, paths in told.parts.items() for path in paths}
    assert sorted(str(path.relative_to(home)) for path in parts) == sorted(named)


def check_candidate_gone(root: Path, told: Told) -> None:
    """Nothing is left of a candidate that is no more: no file, and no lease."""
    home = root / HOME
    there = told.candidate
    folders = [f"{there['configuration']['generation']}-{there['start']}"] if there else []
    assert [path.name for path in home.glob("_generations/*")] in ([], folders)
    leases = {one["name"]: one["state"] for one in bodies_of(home / "_control" / "leases") if "name" in one}
    held = leases.get("candidate/input") not in (None, "forgotten")
    assert held == (there is not None), "the lease of the candidate's input"
