"""`tidemark doctor`: checks of this machine, of a warehouse, or of all places of an environment.

Each check returns its finding and, if it fails, a remedy. The checks of packages, Java, jars and Spark don't
depend on a place. Of an environment, they check that this process and Spark can reach each warehouse and
landing folder, and that its clock agrees with this machine's.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemark.app.workspace import pipeline_folders
from tidemark.config.storage import is_uri
from tidemark.core.binding import Binding
from tidemark.core.errors import InvalidUsage, TidemarkError
from tidemark.core.ids import is_name
from tidemark.core.text import amount
from tidemark.pipeline.history import losses, require_home

if TYPE_CHECKING:
    from obstore.store import ObjectStore


_SPARK_SECONDS_MAX = 300

PACKAGES = (
    "apache-airflow",
    "apache-airflow-providers-apache-spark",
    "pyspark",
    "pyspark-client",
    "delta-spark",
    "deltalake",
    "great-expectations",
)
"""The main dependencies, whose versions are shown."""


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report. `remedy` is empty if `ok`."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


_RESTORE_SHOWN_BY = {
    "postgres": "its replication slot would show that everything was restored from one copy",
    "kafka": "its consumer group would show that everything was restored from one copy",
}


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


commands: Final = typer.Typer()


@commands.command(name="doctor")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
    warehouse: Annotated[
        str | None,
        typer.Option(
            help="The folder or URI of the tables; $TIDEMARK_WAREHOUSE by default, else .tidemark/warehouse.",
            metavar="PLACE",
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            "--environment",
            "-e",
            help="Check the places of the pipeline files in this environment: stores, connector, clock.",
        ),
    ] = None,
    spark: Annotated[
        bool,
        typer.Option(
            "--spark/--no-spark", help="Start Spark and use a small Delta table; takes half a minute."
        ),
    ] = True,
) -> None:
    """Check versions, Java, jars, Spark and the warehouse's put-if-absent; fail if one of them fails."""

    if environment is not None:
        places = places_of(environment)
        checks = [*machine_checks(with_spark=spark), *store_checks(places)]
    else:
        checks = list(all_checks(warehouse=warehouse_to_check(warehouse), with_spark=spark))
    failed = sum(not check.ok for check in checks)
    if as_json:
        report = {"ok": not failed, "checks": [dataclasses.asdict(check) for check in checks]}
        typer.echo(json.dumps(report, indent=2))
    else:
        _show(checks)
        typer.echo(
            f"{failed} of {len(checks)} checks failed" if failed else f"all {len(checks)} checks passed"
        )
    raise typer.Exit(code=1 if failed else 0)


def all_checks(*, warehouse: str, with_spark: bool) -> Iterator[Check]:
    """Run the checks one by one, so that a caller can show each result at once.

    `warehouse` is an absolute path or a URI. Of an object store, only put-if-absent is checked: it has no
    folders."""
    yield from machine_checks(with_spark=with_spark)
    if not is_uri(warehouse):
        yield check_writable(Path(warehouse))
    yield check_put_if_absent(warehouse)
    yield check_address(warehouse)
    yield from check_histories(warehouse)


def machine_checks(*, with_spark: bool) -> Iterator[Check]:
    """The checks of this machine, which don't depend on the warehouse."""
    yield Check("python", ok=True, found=platform.python_version())  # The package needs 3.11 to load.
    required = required_versions()
    for package in PACKAGES:
        yield check_package(package, *required.get(package, ("", "")))
    if find_spec("pyspark") is not None:
        yield from spark_checks(with_spark=with_spark)


def spark_checks(*, with_spark: bool) -> Iterator[Check]:
    """The checks for the extra `spark`."""
    yield check_same_version("pyspark", "pyspark-client")
    yield check_java()
    yield check_jars()
    if with_spark:
        yield check_spark()


def required_versions() -> dict[str, tuple[str, str]]:
    """The version specifier and the extra of each package that the installed tidemark requires."""
    from packaging.requirements import Requirement

    declared = [Requirement(line) for line in metadata.requires("tidemark") or []]
    return {one.name: (str(one.specifier), _extra_of(str(one.marker or ""))) for one in declared}


def _extra_of(marker: str) -> str:
    found = re.search(r"""extra == ['"](\w+)['"]""", marker)
    return found[1] if found is not None else ""


def check_package(
    name: str, specifier: str, extra: str = "", installed: Callable[[str], str] = metadata.version
) -> Check:
    """The package is installed in a version that tidemark supports. A package of an extra may be missing:
    code that needs it raises `MissingExtra`."""
    from packaging.specifiers import SpecifierSet

    try:
        version = installed(name)
    except metadata.PackageNotFoundError:
        if extra:
            return Check(name, ok=True, found=f"not installed, comes with tidemark[{extra}]")
        return Check(name, ok=False, found="not installed", remedy="run `make setup`")
    if not SpecifierSet(specifier).contains(version, prereleases=True):
        return Check(name, ok=False, found=f"{version}, needs {specifier}", remedy="run `make setup`")
    return Check(name, ok=True, found=version)


def check_same_version(left: str, right: str, installed: Callable[[str], str] = metadata.version) -> Check:
    """Two packages that install into one folder have the same version; else they overwrite each other."""
    name = f"{left} = {right}"
    try:
        versions = installed(left), installed(right)
    except metadata.PackageNotFoundError as error:
        return Check(name, ok=False, found=f"{error.name} is not installed", remedy="run `make setup`")
    if versions[0] != versions[1]:
        return Check(
            name,
            ok=False,
            found=f"{versions[0]} and {versions[1]}",
            remedy="pin both to one version: remove .venv and run `make setup`",
        )
    return Check(name, ok=True, found=versions[0])


def check_java() -> Check:
    """There is a Java version that Spark supports."""
    from tidemark.runtime.machine import find_java

    try:
        java = find_java()
    except TidemarkError as error:
        return _failed("java", error)
    return Check("java", ok=True, found=f"{java.version} in {java.home}")


def check_jars(folder: Path | None = None) -> Check:
    """Every jar of jars.lock is there, with the right checksum."""
    from tidemark.runtime import jars, machine

    folder = folder or machine.jars_folder()
    try:
        locked = jars.read_lock()
        jars.verify(folder, locked)
    except TidemarkError as error:
        return _failed("jars", error)
    return Check("jars", ok=True, found=f"{len(locked)} with the right checksums in {folder}")


def check_spark() -> Check:
    """Spark starts and can use a Delta table, tested in a process with a time limit."""
    with tempfile.TemporaryDirectory(prefix="tidemark-doctor-") as scratch:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tidemark.spark.provisioning", "test", scratch],
                capture_output=True,
                text=True,
                timeout=_SPARK_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            found = f"no answer within {_SPARK_SECONDS_MAX} s"
            return Check(
                "spark and delta", ok=False, found=found, remedy="check that the machine has enough memory"
            )
    if done.returncode != 0:
        printed = [line for line in done.stderr.strip().splitlines() if line.strip()]
        return Check(
            "spark and delta",
            ok=False,
            found=printed[-1] if printed else f"exit code {done.returncode}",
            remedy="run `python -m tidemark.spark.provisioning test FOLDER` to see the whole output of Spark",
        )
    return Check("spark and delta", ok=True, found=done.stdout.strip())


def check_writable(warehouse: Path) -> Check:
    """Files can be created, synced and deleted in the warehouse."""
    try:
        warehouse.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix="_tidemark_write_", dir=warehouse) as file:
            file.write(b"tidemark")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        found = f"{warehouse}: {error.strerror or error}"
        return Check(
            "warehouse", ok=False, found=found, remedy="make it writable, or give another --warehouse"
        )
    return Check("warehouse", ok=True, found=f"{warehouse} is writable")


def check_put_if_absent(warehouse: str) -> Check:
    """If several processes create the same Delta commit, exactly one succeeds, every time."""
    from tidemark.delta.probe import probe_put_if_absent

    try:
        result = probe_put_if_absent(warehouse)
    except TidemarkError as error:
        return _failed("put-if-absent", error)
    if not result.holds:
        return Check(
            "put-if-absent",
            ok=False,
            found=result.describe(),
            remedy="use a local disk or an object store with conditional puts for the warehouse",
        )
    return Check("put-if-absent", ok=True, found=result.describe())


def check_address(warehouse: str) -> Check:
    """Every pipeline of the warehouse is where its history says, so none is a copy."""
    from tidemark.delta.control import DeltaControl
    from tidemark.delta.store import Store, reading

    name, there = "warehouse address", 0
    try:
        with reading(warehouse):
            folders = Store(warehouse, {}).folders()
        for folder in filter(is_name, folders):
            control = DeltaControl(warehouse, folder)
            require_home(control)
            there += bool(control.made_at)
    except TidemarkError as error:
        return _failed(name, error)
    return Check(name, ok=True, found=f"as recorded by {there} pipelines" if there else "no pipeline yet")


def check_histories(warehouse: str) -> Iterator[Check]:
    """Every pipeline's history has what its checkpoint, the logs and states of all its shards have, also of
    shards that no pipeline file declares any more. Says what outside the warehouse would show that all of
    them were restored from one copy."""
    from tidemark.delta.control import DeltaControl
    from tidemark.delta.store import Store, reading

    try:
        with reading(warehouse):
            folders = Store(warehouse, {}).folders()
    except TidemarkError as error:
        yield _failed("histories", error)
        return
    for folder in filter(is_name, folders):
        name, control = f"history of {folder}", DeltaControl(warehouse, folder)
        try:
            upper = control.bindings.head().upper
            if not control.made_at:
                continue
            lost = losses(control, control.shards())
            shown_by = _shows_a_restore(control.bindings.read(upper - 1, upper))
        except TidemarkError as error:
            yield _failed(name, error)
            continue
        if lost:
            remedy = f"see `tidemark status {folder}`, then `tidemark recover {folder}`"
            yield Check(name, ok=False, found="; ".join(lost), remedy=remedy)
        else:
            yield Check(
                name, ok=True, found=f"{amount(upper - 1, 'transaction')}, every log agrees; {shown_by}"
            )


def _shows_a_restore(records: Sequence[Binding]) -> str:
    """What outside the warehouse shows a complete restore, by the settings of the newest binding."""
    kinds = [json.loads(one.configuration.text)["source"]["type"] for one in records]
    nothing = (
        "nothing would show that everything was restored from one copy: after that run"
        " `tidemark recover PIPELINE --restored`"
    )
    return _RESTORE_SHOWN_BY.get(kinds[-1] if kinds else "", nothing)


def _failed(name: str, error: TidemarkError) -> Check:
    return Check(name, ok=False, found=error.fact, remedy=error.hint)


def warehouse_to_check(given: str | None) -> str:
    """The absolute path or the URI of the warehouse, resolved as in a pipeline file; `InvalidUsage` if it is
    invalid there."""
    from tidemark.config.storage import WAREHOUSE, default_root, resolved

    chosen = given if given is not None else os.environ.get("TIDEMARK_WAREHOUSE") or WAREHOUSE
    return resolved(chosen, root=default_root())


def _show(checks: list[Check]) -> None:
    """Print the checks as a table, each remedy below its finding."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for check in checks:
        mark = Text("ok", style="green") if check.ok else Text("not ok", style="red")
        # A `Text` has no markup, so square brackets are printed.
        found = check.found if check.ok else f"{check.found}\n-> {check.remedy}"
        table.add_row(Text(check.name), mark, Text(found))
    Console().print(table)


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
