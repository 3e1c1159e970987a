"""A pipeline of two shards for a driver on a cluster, and what its tables must have.

The state of `indexed` is published by its key index, that of `scanned` by Spark: it has no deletion vectors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tidemark.app.deployment import Deployment
from tidemark.app.views import View
from tidemark.app.views import read as read_rows
from tidemark.app.workspace import open_deployment
from tidemark.cli.app import app

SHARDS = ("indexed", "scanned")
PIPELINE = """\
name: shop
generation: 0
source: {type: files, path: in, format: json, settle_seconds: 0}
warehouse: lake
shards:
- name: indexed
  schema: id BIGINT NOT NULL, kind STRING, value STRING, gone BOOLEAN
  keys: [id]
  apply_as_deletes: gone = TRUE
  route: {column: kind, equals: i}
- name: scanned
  schema: id BIGINT NOT NULL, kind STRING, value STRING, gone BOOLEAN
  keys: [id]
  apply_as_deletes: gone = TRUE
  route: {column: kind, equals: s}
  deletion_vectors: false
"""
RECORDS = 4_000
KEYS = 1_500
FILES = 4


def records(batch: int) -> Iterator[dict[str, Any]]:
    """A batch updates keys, and deletes some: the same ones for both shards."""
    for number in range(RECORDS):
        one = {"id": (number * 7 + batch * 500) % KEYS, "kind": "is"[number % 2]}
        yield one | {"value": f"{batch}.{number}", "gone": number % 11 == 0}


def expected(batches: int, *, deletes: str = "is") -> dict[str, list[list[Any]]]:
    """What a reader must see, folded by hand; only shards of these kinds have deletes."""
    rows: dict[str, dict[int, str]] = {"i": {}, "s": {}}
    for one in (one for batch in range(batches) for one in records(batch)):
        if one["gone"] and one["kind"] in deletes:
            rows[one["kind"]].pop(one["id"], None)
        else:
            rows[one["kind"]][one["id"]] = one["value"]
    return {name: [[key, rows[name[0]][key]] for key in sorted(rows[name[0]])] for name in SHARDS}


def make(root: Path) -> Path:
    """The pipeline's folder, without any records yet; its file."""
    (root / "in").mkdir(parents=True)
    file = root / "shop.yaml"
    file.write_text(PIPELINE)
    return file


def replace_rules(file: Path) -> None:
    """The next generation: nothing deletes a row of `indexed`."""
    old = file.read_text()
    file.write_text(
        old.replace("generation: 0", "generation: 1").replace("  apply_as_deletes: gone = TRUE\n", "", 1)
    )


def land(root: Path, batch: int) -> None:
    """A batch in several files."""
    lines = [json.dumps(one) for one in records(batch)]
    size = RECORDS // FILES
    for part in range(FILES):
        text = "\n".join(lines[part * size : (part + 1) * size])
        (root / "in" / f"{batch}-{part}.json").write_text(f"{text}\n")


def tell(*words: str, code: int = 0) -> Any:
    """What a command says, as JSON; the exit code has to be the given one."""
    told = CliRunner().invoke(app, [*words, "--json"])
    assert told.exit_code == code, (words, told.exit_code, told.output[-3000:], told.exception)
    return json.loads(told.stdout)


def opened(file: Path) -> Deployment:
    return open_deployment(str(file), None)


def seen(deployment: Deployment) -> dict[str, list[list[Any]]]:
    """All rows of both shards, exact now."""
    found = {}
    for name in SHARDS:
        rows = read_rows(deployment, name, view=View.FRESH).select("id", "value").collect()
        found[name] = sorted([row.id, row.value] for row in rows)
    return found
