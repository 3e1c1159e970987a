"""The implementations that the suites run against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.contract.helpers import Scripted
from tests.support.memory.control import MemoryControl, MemoryWarehouse
from tests.support.memory.ledger import Fault, MemoryLedger, MemoryLedgerView
from tests.support.s3 import ObjectStore
from tidemark.core.ledger import JournalEntry
from tidemark.delta.control import DeltaControl
from tidemark.delta.ledger import DeltaLedger
from tidemark.delta.records import journal_codec
from tidemark.ports.control import Control, Ledger

MEMORY = pytest.param("memory", id="memory")
UNRELIABLE = pytest.param("unreliable", id="memory-unreliable")
DELTA_LOCAL = pytest.param("delta-local", id="delta-local")
DELTA_S3 = pytest.param("delta-s3", id="delta-s3", marks=[pytest.mark.server, pytest.mark.slow])
EVERYWHERE = [MEMORY, UNRELIABLE, DELTA_LOCAL, DELTA_S3]


@dataclass(frozen=True)
class Place:
    """Where a store keeps its things: each `open` is another process's handle on the same ledger."""

    open: Callable[[], Ledger[JournalEntry]]


@pytest.fixture(params=EVERYWHERE)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "memory":
            truth: MemoryLedger[JournalEntry] = MemoryLedger()
            return Place(lambda: MemoryLedgerView(truth))
        case "unreliable":
            # Every commit arrives twice: a store whose client retries must keep the same promise.
            shared: MemoryLedger[JournalEntry] = MemoryLedger()
            return Place(
                lambda: MemoryLedgerView(shared, Scripted({"ledger.commit": [Fault.DUPLICATE] * 999}))
            )
        case "delta-local":
            return Place(lambda: DeltaLedger(str(tmp_path / "journal"), journal_codec()))
        case _:
            store: ObjectStore = request.getfixturevalue("s3")
            uri = f"s3://{store.bucket}/{uuid4().hex}/journal"
            return Place(lambda: DeltaLedger(uri, journal_codec(), storage_options=store.options))


@pytest.fixture
def ledger(place: Place) -> Ledger[JournalEntry]:
    return place.open()


@pytest.fixture(params=[MEMORY, DELTA_LOCAL, DELTA_S3])
def open_control(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Control]:
    from tests.contract.helpers import LOG_SCHEMAS

    match request.param:
        case "memory":
            warehouse = MemoryWarehouse()
            return lambda: MemoryControl(warehouse)
        case "delta-local":
            return lambda: DeltaControl(str(tmp_path), "demo", LOG_SCHEMAS)
        case _:
            store: ObjectStore = request.getfixturevalue("s3")
            uri = f"s3://{store.bucket}/{uuid4().hex}"
            return lambda: DeltaControl(uri, "demo", LOG_SCHEMAS, store.options)
