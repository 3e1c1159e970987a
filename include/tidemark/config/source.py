"""Where a pipeline's records come from, as written in its file: one model per `type`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from tidemark.config.base import Model, checked
from tidemark.config.kafka import KafkaSource
from tidemark.config.paths import checked_path, is_uri, resolved, shown_place
from tidemark.config.problems import Flaw, raise_flaws
from tidemark.config.text import shown
from tidemark.core.errors import InvalidUsage

_MARKER = re.compile(r"[^/\\{}*?\x00-\x1f]+\Z")
_CONN_ID = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,199}\Z")
_SLOT = re.compile(r"[a-z0-9_]{1,63}\Z")


def _local_folder(text: str) -> str:
    if is_uri(checked_path(text)):
        hint = "mount it or copy the files; object stores can hold the warehouse, not the input files"
        raise InvalidUsage(f"a files source reads a folder, not {shown_place(text)}", hint=hint)
    return text


def _pattern(text: str) -> str:
    parts = text.split("/")
    if len(text) > 500 or not text.isprintable() or not {"", "..", "."}.isdisjoint(parts):
        hint = "write it relative to the source's path, like 'orders/**/*.json'"
        raise InvalidUsage(f"{shown(text)} is not a file pattern", hint=hint)
    return text


def _marker(text: str) -> str:
    plain = text.replace("{name}", "")
    if not _MARKER.match(plain) or plain in (".", "..") or len(text) > 200:
        hint = "write a name beside the file, like '{name}.ready', or one for the folder, like _SUCCESS"
        raise InvalidUsage(f"{shown(text)} is not a marker's name", hint=hint)
    return text


def _conn_id(text: str) -> str:
    if not _CONN_ID.match(text):
        hint = "write the id of an Airflow connection, like warehouse_db; never a URI"
        raise InvalidUsage("this is not a connection's id", hint=hint)
    return text


def _slot(text: str) -> str:
    if not _SLOT.match(text):
        hint = "use lower case letters, digits and _, 63 at most"
        raise InvalidUsage(f"{shown(text)} is not a replication slot's name", hint=hint)
    return text


class CsvOptions(Model):
    """How CSV files are written. A field equal to `null_value` is NULL, also in quotes.

    A quote inside of quotes is doubled or, with `escape`, has that character before it.
    """

    header: bool = True
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    quote: Annotated[str, Field(min_length=1, max_length=1)] = '"'
    escape: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    null_value: Annotated[str, Field(max_length=100)] = ""


class FilesSource(Model):
    """Files that land in a folder and don't change afterwards; JSON is one record per line.

    `pattern` is a glob below `path` (`**` for any folders); without it, all files with the format's suffixes.
    A file is taken when it is `settle_seconds` old and, with `ready_marker`, once its marker is there.
    """

    type: Literal["files"]
    path: Annotated[str, AfterValidator(checked(_local_folder))]
    format: Literal["json", "csv", "parquet"]
    pattern: Annotated[str, AfterValidator(checked(_pattern))] | None = None
    settle_seconds: Annotated[int, Field(ge=0, le=86_400)] = 10
    ready_marker: Annotated[str, AfterValidator(checked(_marker))] | None = None
    csv: CsvOptions | None = None

    @property
    def csv_options(self) -> CsvOptions:
        return self.csv or CsvOptions()

    @property
    def lists_tables(self) -> bool:
        """Whether the source itself can say which tables there are."""
        return False

    @property
    def summary(self) -> str:
        """What is taken, in one line."""
        when = f", {self.settle_seconds} s after their last change"
        marker = f", once {self.ready_marker} is there" if self.ready_marker else ""
        return f"{self.format} files {self.pattern or 'by their suffix'}{when}{marker}"

    def located(self, root: Path) -> str:
        """The folder as an absolute path, checked again now."""
        return resolved(self.path, root=root)

    @model_validator(mode="after")
    def _rules(self) -> FilesSource:
        if self.csv is not None and self.format != "csv":
            hint = "remove them, or set format: csv"
            raise_flaws(iter([Flaw(("csv",), f"csv options with format {self.format}", hint)]))
        return self


class PostgresSource(Model):
    """Changes of a PostgreSQL database, out of a logical replication slot that reads one publication.

    They are captured into files below the warehouse first, as Debezium records in JSON, one line each; these
    files are what transactions are bound to, and what replays read.
    """

    type: Literal["postgres"]
    postgres_conn_id: Annotated[str, AfterValidator(checked(_conn_id))]
    slot: Annotated[str, AfterValidator(checked(_slot))]
    publication: Annotated[str, Field(min_length=1, max_length=63)]
    on_truncate: Literal["refuse", "apply"] = "refuse"

    @property
    def summary(self) -> str:
        """What it hands over, in a few words."""
        connection = f"the database of connection {self.postgres_conn_id}"
        return f"changes of publication {self.publication} by slot {self.slot}, from {connection}"

    @property
    def format(self) -> Literal["json"]:
        return "json"

    @property
    def csv_options(self) -> CsvOptions:
        return CsvOptions()

    @property
    def lists_tables(self) -> bool:
        """Whether the source itself can say which tables there are, and what columns they have."""
        return True


SourceConfig = Annotated[FilesSource | KafkaSource | PostgresSource, Field(discriminator="type")]
"""The union of all sources, told apart by `type`."""
