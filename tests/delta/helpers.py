"""What these tests share."""

from __future__ import annotations

from pathlib import Path

from tests.contract.helpers import entry, put_next
from tidemark.core.ledger import JournalEntry
from tidemark.delta.deletion_vectors import Descriptor, Rows, encoded, encoded85
from tidemark.delta.ledger import DeltaLedger
from tidemark.delta.records import journal_codec

__all__ = ["entry", "inline", "log_entries", "open_journal", "put_next", "record_files"]


def open_journal(folder: Path) -> DeltaLedger[JournalEntry]:
    return DeltaLedger(str(folder), journal_codec())


def log_entries(folder: Path) -> list[Path]:
    return sorted((folder / "_delta_log").glob("*.json"))


def record_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def inline(rows: Rows) -> Descriptor:
    """A vector that stands in the log entry, as Spark may write it."""
    data = encoded(rows)
    return Descriptor("i", encoded85(data), len(data), len(rows))
