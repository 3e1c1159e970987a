"""The doctor's checks of an environment's warehouses and landing folders.

They check that this process and Spark can reach each place, and that its clock agrees with this machine's.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemark.app.workspace import pipeline_folders
from tidemark.cli.doctor import (
    Check,
    check_address,
    check_histories,
    check_put_if_absent,
    check_writable,
)
from tidemark.config.storage import is_uri
from tidemark.core.errors import InvalidUsage, TidemarkError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CLOCK_SECONDS_MAX: Final = 60.0
"""The maximum clock difference. `settle_seconds` compares the store's timestamps with this clock."""
_CONNECTORS: Final = {
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
}


@dataclass(frozen=True, slots=True)
class Places:
    """The distinct warehouses and landing folders of an environment's pipelines."""

    warehouses: tuple[str, ...]
    landings: tuple[str, ...]


def places_of(environment: str) -> Places:
    """The places of all pipelines in the first folder that has any.

    `ConfigInvalid` if a pipeline file is invalid; `InvalidUsage` if there is no pipeline."""
    from tidemark.config import load_pipelines

    for folder in pipeline_folders():
        loaded = load_pipelines(folder, environment)
        for error in loaded.errors.values():
            raise error
        configs = list(loaded.pipelines.values())
        if configs:
            landings = [one.source_location for one in configs if one.source.type == "files"]
            warehouses = [one.warehouse_location for one in configs]
            return Places(tuple(dict.fromkeys(warehouses)), tuple(dict.fromkeys(landings)))
    raise InvalidUsage(
        f"no pipeline files in {', '.join(pipeline_folders())}", hint="run it in the folder of the project"
    )


def store_checks(places: Places) -> Iterator[Check]:
    """Check each place, after the connectors: without these, Spark can't reach it."""
    schemes = {place.partition("://")[0] for place in (*places.warehouses, *places.landings) if is_uri(place)}
    for scheme in sorted(schemes):
        yield check_connector(scheme)
    for warehouse in places.warehouses:
        if is_uri(warehouse):
            yield check_clock(warehouse)
        else:
            yield check_writable(Path(warehouse))
        yield check_put_if_absent(warehouse)
        yield check_address(warehouse)
        yield from check_histories(warehouse)
    for landing in places.landings:
        yield check_landing(landing)


def check_connector(scheme: str) -> Check:
    """Spark has Hadoop's connector for this kind of store."""
    name = f"connector for {scheme}://"
    if scheme in _CONNECTORS:
        found = f"brought by Spark's settings: spark.jars.packages {_CONNECTORS[scheme]}"
        return Check(name, ok=True, found=f"not looked for; {found}")
    from tidemark.runtime.jars import FETCH_S3, S3_LOCK, read_lock, s3_jars_folder, verify

    try:
        locked = read_lock(S3_LOCK)
        verify(s3_jars_folder(), locked)
    except TidemarkError as error:
        return Check(name, ok=False, found=error.fact, remedy=FETCH_S3)
    return Check(name, ok=True, found=f"{len(locked)} jars with the right checksums in {s3_jars_folder()}")


def check_clock(warehouse: str, *, store: ObjectStore | None = None) -> Check:
    """The store accepts an object from this process, and its timestamp agrees with this machine's clock."""
    from obstore.exceptions import BaseError

    from tidemark.config.storage import open_objects

    name = f"clock of {warehouse}"
    path = f"_tidemark_clock_{uuid.uuid4().hex}"
    try:
        objects = store if store is not None else open_objects(warehouse, {})
        before = time.time()
        objects.put(path, b"tidemark")
        written = objects.head(path)["last_modified"].timestamp()
        after = time.time()
        objects.delete(path)
    except BaseError as error:
        message = str(error).partition("\n")[0][:300]
        remedy = "check the endpoint, and the credentials in the environment (AWS_ENDPOINT_URL, AWS_…)"
        return Check(name, ok=False, found=message, remedy=remedy)
    # Stores report whole seconds.
    off = max(0.0, before - 1 - written, written - after - 1)
    if off > CLOCK_SECONDS_MAX:
        return Check(
            name,
            ok=False,
            found=f"{off:.0f} s off this machine's clock",
            remedy="set the clock of this machine",
        )
    return Check(name, ok=True, found=f"within {max(1.0, off):.0f} s of this machine's clock")


def check_landing(landing: str, *, store: ObjectStore | None = None) -> Check:
    """The landing files can be listed."""
    from tidemark.sources.files.listing import Listing, Objects

    name = f"landing files in {landing}"
    try:
        if is_uri(landing):
            Objects(landing, store=store).list_first()
        else:
            Listing(landing, lambda _: False)
    except TidemarkError as error:
        return Check(name, ok=False, found=error.fact, remedy=error.hint)
    return Check(name, ok=True, found="can be listed")
