"""Tables, read without the code that wrote them: by delta-rs's own query engine, and the chain by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

Row = tuple[Any, ...]


def rows_of(table: Path, columns: Iterable[str]) -> list[Row]:
    """All rows of a Delta table; none where there is no table."""
    if not (table / "_delta_log").is_dir():
        return []
    names = ", ".join(f'"{name}"' for name in columns)
    found = QueryBuilder().register("t", DeltaTable(str(table))).execute(f"SELECT {names} FROM t").read_all()
    return [tuple(row.values()) for row in pa.table(found).to_pylist()]


def bodies_of(table: Path, kind: str = "") -> list[dict[str, Any]]:
    """The records of a control table in their order, of all kinds or of one, with the chain of their links
    checked."""
    previous, bodies = 0, []
    found = {}
    for record_kind, link, body in rows_of(table, ("kind", "link", "body")):
        found[link] = (record_kind, body)
    while found:
        follows = {link for link, (_, body) in found.items() if link == link_of(previous, body)}
        assert len(follows) == 1, f"{table}: the chain has no one record after {previous}"
        previous = follows.pop()
        record_kind, body = found.pop(previous)
        if kind in ("", record_kind):
            bodies.append(json.loads(body))
    return bodies


def link_of(previous: int, body: str) -> int:
    data = previous.to_bytes(8, "big") + body.encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def bound_files(control: Path) -> dict[int, list[tuple[int, str]]]:
    """Which files each transaction has, by its binding."""
    bindings = bodies_of(control / "history", "binding")
    assert [body["txn"] for body in bindings] == list(range(1, len(bindings) + 1)), "bindings are not dense"
    return {
        body["txn"]: [(file["seq"], file["name"]) for file in json.loads(body["manifest"])["files"]]
        for body in bindings
    }
