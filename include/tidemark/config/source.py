"""The sources of a pipeline file, one model per `type`, and the settings of a Debezium connector."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from tidemark.config.base import Model, checked
from tidemark.config.document import Flaw, raise_flaws, shown
from tidemark.config.kafka import KafkaSource
from tidemark.config.storage import checked_path, resolved
from tidemark.core.errors import InvalidUsage

_MARKER = re.compile(r"[^/\\{}*?\x00-\x1f]+\Z")
_CONN_ID = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,199}\Z")
_SLOT = re.compile(r"[a-z0-9_]{1,63}\Z")


class Debezium(Model):
    """The connector's `decimal.handling.mode` and `time.precision.mode`, as set in the connector.

    A decimal as text may be the number or its bytes in base64, and the text alone is ambiguous; so the mode
    is required if a column is a DECIMAL. Times use the connector's default: numbers with a unit in the
    record's schema.
    """

    decimal_handling_mode: Literal["precise", "double", "string"] | None = None
    time_precision_mode: Literal[
        "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
    ] = "adaptive"


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
        hint = "use lowercase letters, digits and _, 63 at most"
        raise InvalidUsage(f"{shown(text)} is not a replication slot's name", hint=hint)
    return text


class CsvOptions(Model):
    """How CSV files are written. A field equal to `null_value` is NULL, even in quotes.

    A quote inside quotes is doubled or, with `escape`, preceded by that character.
    """

    header: bool = True
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    quote: Annotated[str, Field(min_length=1, max_length=1)] = '"'
    escape: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    null_value: Annotated[str, Field(max_length=100)] = ""


class FilesSource(Model):
    """Files that land in a folder, or below a prefix of an object store, and don't change afterwards; JSON is
    one record per line.

    `pattern` is a glob below `path` (`**` for any folders); without it, all files with the format's suffixes.
    A file is taken when it is `settle_seconds` old and, with `ready_marker`, once its marker is there. With
    `incremental_listing` an object store is listed from the last name that is bound: names have to ascend.
    """

    type: Literal["files"]
    path: Annotated[str, AfterValidator(checked(checked_path))]
    format: Literal["json", "csv", "parquet"]
    pattern: Annotated[str, AfterValidator(checked(_pattern))] | None = None
    settle_seconds: Annotated[int, Field(ge=0, le=86_400)] = 10
    ready_marker: Annotated[str, AfterValidator(checked(_marker))] | None = None
    incremental_listing: bool = False
    csv: CsvOptions | None = None

    @property
    def csv_options(self) -> CsvOptions:
        return self.csv or CsvOptions()

    @property
    def lists_tables(self) -> bool:
        """Whether the source can list its tables."""
        return False

    @property
    def summary(self) -> str:
        """The input in one line."""
        when = f", {self.settle_seconds} s after their last change"
        marker = f", once {self.ready_marker} is there" if self.ready_marker else ""
        return f"{self.format} files {self.pattern or 'by their suffix'}{when}{marker}"

    def located(self, root: Path) -> str:
        """The folder as an absolute path, checked on every access."""
        return resolved(self.path, root=root)

    @model_validator(mode="after")
    def _rules(self) -> FilesSource:
        if self.csv is not None and self.format != "csv":
            hint = "remove them, or set format: csv"
            raise_flaws(iter([Flaw(("csv",), f"csv options with format {self.format}", hint)]))
        if self.incremental_listing and self.ready_marker is not None:
            fact = "incremental_listing may miss a ready_marker that sorts before the last bound name"
            hint = "remove incremental_listing, or ready_marker, which object stores don't need"
            raise_flaws(iter([Flaw(("incremental_listing",), fact, hint)]))
        return self


class PostgresSource(Model):
    """Changes of a PostgreSQL database, from a logical replication slot that reads one publication.

    They are first captured into files below the warehouse, as Debezium records in JSON, one per line.
    Transactions are bound to these files, and replays read them.
    """

    type: Literal["postgres"]
    postgres_conn_id: Annotated[str, AfterValidator(checked(_conn_id))]
    slot: Annotated[str, AfterValidator(checked(_slot))]
    publication: Annotated[str, Field(min_length=1, max_length=63)]
    on_truncate: Literal["refuse", "apply"] = "refuse"

    @property
    def summary(self) -> str:
        """The input in one line."""
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
        """Whether the source can list its tables and their columns."""
        return True


SourceConfig = Annotated[FilesSource | KafkaSource | PostgresSource, Field(discriminator="type")]
"""The union of all sources; `type` selects one."""
