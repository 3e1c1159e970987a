"""Commits and landing files on Azure's blob storage, by its emulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.race import write_round
from tests.s3.race import pipeline_on
from tests.support.azure import PLACE, azure_store
from tests.support.light import SHARD
from tidemark.app.deployment import new_token
from tidemark.config.storage import open_objects
from tidemark.core.binding import Owner
from tidemark.core.ids import Txn
from tidemark.delta.probe import probe_put_if_absent
from tidemark.pipeline.context import Attempt
from tidemark.pipeline.run import run
from tidemark.sources.files.bound_files import BoundFile
from tidemark.sources.files.listing import Listing, Objects, matcher

pytestmark = [pytest.mark.s3, pytest.mark.slow]

WRITERS, ROUNDS, RUNS = 8, 50, 5


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with (
        azure_store(tmp_path_factory.mktemp("azure") / "store") as options,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in options.items():
            patch.setenv(name, value)
        yield


@pytest.mark.usefixtures("azure")
def test_of_eight_processes_one_wins_each_put() -> None:
    found = probe_put_if_absent(f"{PLACE}/probed", writers=WRITERS, rounds=ROUNDS)
    assert found.holds, found.describe()


@pytest.mark.usefixtures("azure")
def test_transactions_are_decided_and_appended(tmp_path: Path) -> None:
    pipeline = pipeline_on(tmp_path, f"{PLACE}/decided")
    for number in range(RUNS):
        write_round(tmp_path, number)
        run(pipeline, Attempt(Owner(f"run {number}"), new_token()))
    # As another process finds it.
    control = pipeline_on(tmp_path, f"{PLACE}/decided").control
    control.seals.head()
    assert [seal.txn for seal in control.seals.read(Txn(1), Txn(100))] == list(range(1, RUNS + 1))
    assert control.log(SHARD).head().upper == RUNS + 1


@pytest.mark.usefixtures("azure")
def test_objects_are_listed_and_their_changes_found() -> None:
    store = open_objects(f"{PLACE}/landing", {})
    for name in ("a.json", "b c.json", "d.json"):
        store.put(name, f'{{"name":"{name}"}}\n'.encode())
    objects, listing = Objects(f"{PLACE}/landing"), Listing(None, matcher(None, "json"))
    objects.list_into(listing)
    assert sorted(listing.files) == ["a.json", "b c.json", "d.json"]
    bound = [
        BoundFile(at, one.name, one.size, one.tag, one.mtime_ns)
        for at, one in enumerate(listing.with_markers(None))
    ]
    assert objects.changes(bound) == []
    later = Listing(None, matcher(None, "json"))
    objects.list_into(later, after="a.json")
    assert sorted(later.files) == ["b c.json", "d.json"]
    store.put("a.json", b"{}\n{}\n{}\n{}\n{}\n{}\n{}\n")
    store.delete("d.json")
    changed, gone = objects.changes(bound)
    assert (changed.file.name, gone.file.name, gone.is_removal) == ("a.json", "d.json", True)
