"""A pipeline whose landing files and tables are on S3, by the command.

`python -m tests.s3.pipeline ROOT LAKE LANDING` works on the server that its environment names, and prints
what each command came to. The bucket of LANDING has versions.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from obstore.store import ObjectStore
from typer.testing import CliRunner

from tests.support.s3 import VERSIONED
from tests.support.s3 import ObjectStore as ObjectServer
from tidemark.app.consume import Consumer
from tidemark.app.workspace import open_deployment
from tidemark.cli.app import app
from tidemark.config.storage import open_objects
from tidemark.core.errors import TidemarkError

PIPELINE = """\
name: shop
generation: {generation}
source: {{type: files, path: in, format: json, settle_seconds: 0}}
shards: [{{name: orders, schema: 'id BIGINT NOT NULL, value STRING', keys: [id]{rule}}}]
environments:
  prod:
    warehouse: {lake}
    source: {{path: {landing}}}
"""
RECORDS = 300
RETIRED = 150
"""The row of the second file that the new generation reads as a delete of its key."""
RULE = f""", apply_as_deletes: "value = '2026/b.json {RETIRED}'\""""


def tell(*words: str, code: int = 0) -> Any:
    """What a command says, as JSON; the exit code has to be the given one."""
    told = CliRunner().invoke(app, [*words, "-e", "prod", "--json"])
    assert told.exit_code == code, (words, told.exit_code, told.output[-3000:], told.exception)
    return json.loads(told.stdout)


def refused(*words: str) -> str:
    """The error that a command ends with."""
    told = CliRunner().invoke(app, [*words, "-e", "prod"])
    assert isinstance(told.exception, TidemarkError), (told.output, told.exception)
    return str(told.exception)


def land(store: ObjectStore, name: str, first: int) -> None:
    lines = [json.dumps({"id": n, "value": f"{name} {n}"}) for n in range(first, first + RECORDS)]
    store.put(name, "\n".join(lines).encode() + b"\n")


def lose_part(store: ObjectStore) -> None:
    """Lose a part of the first transaction."""
    pages = store.list("shop/orders/log")
    paths = [one["path"] for page in pages for one in page]
    store.delete(next(path for path in paths if f"_txn-{1:020d}/" in path))


def restore(landing: str, name: str) -> str:
    """Do what the messages about a lost object ask for: delete what is newer than its first version."""
    key = f"{landing.removeprefix(f's3://{VERSIONED}/')}/{name}"
    client = ObjectServer(os.environ["AWS_ENDPOINT_URL"], VERSIONED).client()
    found = client.list_object_versions(Bucket=VERSIONED, Prefix=key)
    *newer, first = [one["VersionId"] for one in found["Versions"]]
    for version in [*newer, *(one["VersionId"] for one in found["DeleteMarkers"])]:
        client.delete_object(Bucket=VERSIONED, Key=key, VersionId=version)
    return str(first)


def consumed(name: str) -> list[list[int]]:
    """What a consumer gets that goes on where it was: ranges with their numbers of changes."""
    with Consumer(open_deployment(name, "prod"), "orders", "billing") as billing:
        return [[one.lower, one.upper, one.frame.count()] for one in billing.listen()]


def replaced(file: Path, places: dict[str, str], store: ObjectStore) -> dict[str, Any]:
    """A generation with another rule of deletes: built, promoted, run with, and rolled back."""
    name, found = str(file), dict[str, Any]()
    file.write_text(PIPELINE.format(**places, generation=1, rule=RULE))
    found["planned"] = tell("generation", "plan", name)
    found["started"] = tell("generation", "start", name, "--reason", "a rule of deletes", "--no-follow")
    found["followed"] = tell("generation", "follow", name)
    found["compared"] = tell("generation", "status", name, "--compare")
    found["unseen"] = tell("read", name, "--limit", "1000")
    found["promoted"] = tell("generation", "promote", name)
    found["corrected"] = tell("read", name, "--limit", "1000")
    found["corrections"] = consumed(name)
    land(store, "2026/c.json", 300)
    store.put("2026/d.json", json.dumps({"id": 1, "value": f"2026/b.json {RETIRED}"}).encode())
    found["after"] = tell("run", name)
    found["later"] = tell("read", name, "--limit", "1000")
    tell("generation", "rollback", name, "--reason", "the rule was wrong")
    found["back"] = tell("generation", "promote", name)
    file.write_text(PIPELINE.format(**places, generation=2, rule=""))
    found["restored"] = tell("read", name, "--limit", "1000")
    found["proven"] = tell("verify", name)
    found["replayed"] = tell("replay", name)
    return found


def main() -> None:
    root, lake, landing = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    places = {"lake": lake, "landing": landing}
    file = root / "shop.yaml"
    file.write_text(PIPELINE.format(**places, generation=0, rule=""))
    name, store = str(file), open_objects(landing, {})
    found: dict[str, Any] = {}
    land(store, "2026/a file=1.json", 0)
    found["first"] = tell("run", name)
    land(store, "2026/b.json", 100)
    found["second"] = tell("run", name, "--no-publish")
    found["fresh"] = tell("read", name, "--limit", "1000")
    found["published"] = tell("publish", name)
    found["proven"] = tell("verify", name)
    lose_part(open_objects(lake, {}))
    found["repaired"] = tell("replay", name, "--mode", "repair")
    found["maintained"] = tell("maintain", name)
    found["consumed"] = consumed(name)
    found["replaced"] = replaced(file, places, store)
    store.put("2026/b.json", b"{}\n")
    found["changed"] = refused("run", name)
    store.delete("2026/b.json")
    found["gone"] = tell("replay", name, "--from", "2", "--to", "2", code=3)
    found["version"] = restore(landing, "2026/b.json")
    found["there again"] = tell("replay", name, "--from", "2", "--to", "2")
    found["nothing new"] = tell("run", name)
    sys.stdout.write(json.dumps(found, default=str))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
