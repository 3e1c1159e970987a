"""`tidemark init NAME`: a pipeline file with comments, and a few change files to try it on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from tidemark.cli.shared import say
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import checked_name

PIPELINE: Final = """\
# What Tidemark does with the files in data/{name}. `tidemark check {name}` explains it.
name: {name}
schedule: "@hourly"

source:
  type: files
  path: data/{name}
  format: json # one record per line
  settle_seconds: 0 # how long a file must have been left alone; 0 for this sample

envelope: upsert

shards:
  - name: customers
    schema: |
      id BIGINT NOT NULL,
      name STRING,
      city STRING,
      version INT
    keys: [id]
    sequence_by: version # the highest version of a customer wins, in whatever order records come
    apply_as_deletes: op = 'D'
"""

SAMPLES: Final = {
    "0001.json": (
        {"id": 1, "name": "Ada", "city": "London", "version": 1},
        {"id": 2, "name": "Emmy", "city": "Erlangen", "version": 1},
        {"id": 3, "name": "Grace", "city": "New York", "version": 1},
    ),
    "0002.json": (
        {"id": 2, "name": "Emmy", "city": "Göttingen", "version": 2},
        {"id": 3, "op": "D", "version": 2},
        {"id": "four", "name": "a broken record", "city": None, "version": 1},
    ),
}


def register(app: typer.Typer) -> None:
    """Register the command."""
    app.command(name="init")(init)


def init(
    name: Annotated[str, typer.Argument(help="The name of the new pipeline.", metavar="NAME")],
    folder: Annotated[Path, typer.Option(help="The folder to create it in.")] = Path(),
) -> None:
    """Scaffold a pipeline: its file, and sample data. Nothing that exists is overwritten."""
    checked_name(name, what="pipeline")
    inside = folder / "include" / "pipelines"
    file = (inside if inside.is_dir() else folder / "pipelines") / f"{name}.yaml"
    data = folder / "data" / name
    for path in (file, data):
        if path.exists():
            raise InvalidUsage(f"{path} already exists", hint="choose another name, or remove it")
    file.parent.mkdir(parents=True, exist_ok=True)
    data.mkdir(parents=True)
    file.write_text(PIPELINE.format(name=name), encoding="utf-8")
    for sample, records in SAMPLES.items():
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        (data / sample).write_text(lines, encoding="utf-8")
    say(f"made {file} and {data}/")
    commands = [f"tidemark {word} {name}" for word in ("check", "run", "status", "read", "quarantine")]
    entered = [] if folder == Path() else [f"cd {folder}"]
    say("try:  " + "\n      ".join([*entered, *commands]))
