"""The doctor: every line true, every failure with its remedy, the exit code with the lines."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.delta.test_power_cut import newest, work
from tests.support.light import SHARD
from tidemark import __version__
from tidemark.cli import doctor
from tidemark.cli.app import app
from tidemark.core.binding import Binding, Configuration, Owner
from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import Frontier, Txn


def test_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"tidemark {__version__}\n")


def test_importing_the_command_loads_no_engine() -> None:
    program = "import sys, tidemark.cli.app; print(sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    for engine in ("pyspark", "deltalake", "airflow", "great_expectations", "pandas", "pyarrow"):
        assert repr(engine) not in loaded


def test_doctor_without_spark_reports_as_json_and_leaves_the_warehouse_empty(tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    result = CliRunner().invoke(app, ["doctor", "--json", "--no-spark", "--warehouse", str(warehouse)])
    report = json.loads(result.stdout)
    by_name = {check["name"]: check for check in report["checks"]}
    assert by_name["put-if-absent"]["ok"]
    assert "spark and delta" not in by_name
    assert report["ok"] == (result.exit_code == 0) == all(check["ok"] for check in report["checks"])
    assert list(warehouse.iterdir()) == []


@pytest.mark.parametrize("given", [["--warehouse", "s3://lake/x"], []])
def test_regression_a_warehouse_in_an_object_store_is_no_folder(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def probed(warehouse: object) -> doctor.Check:
        asked.append(warehouse)
        return doctor.Check("put-if-absent", ok=True, found="")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "check_put_if_absent", probed)
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", "/elsewhere" if given else "s3://lake/x")
    result = CliRunner().invoke(app, ["doctor", "--json", "--no-spark", *given])
    assert asked == ["s3a://lake/x"]
    assert "warehouse" not in [check["name"] for check in json.loads(result.stdout)["checks"]]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["ftp://lake/x", "s3://key:secret@lake/x", "../x", ""])
def test_a_warehouse_that_no_pipeline_could_have_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, ["doctor", "--no-spark", "--warehouse", place])
    assert isinstance(refused.exception, InvalidUsage)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_check_fails_the_command_and_shows_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = doctor.Check("jars", ok=False, found="[bold] is not markup", remedy="run `make setup`")
    monkeypatch.setattr(doctor, "all_checks", lambda **_: iter([failing]))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "not ok" in result.stdout
    assert "[bold] is not markup" in result.stdout
    assert "run `make setup`" in result.stdout
    assert "1 of 1 checks failed" in result.stdout


def test_unequal_pyspark_and_client_are_refused() -> None:
    versions = {"pyspark": "4.1.3", "pyspark-client": "4.1.2"}
    check = doctor.check_same_version("pyspark", "pyspark-client", versions.__getitem__)
    assert not check.ok
    assert check.found == "4.1.3 and 4.1.2"


def test_a_package_of_another_version_or_none_is_refused() -> None:
    assert not doctor.check_package("delta-spark", "==4.4.0", "spark", lambda _: "4.4.1").ok

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    missing = doctor.check_package("deltalake", ">=1.6.6", "", absent)
    assert (missing.ok, missing.found) == (False, "not installed")
    extra = doctor.check_package("delta-spark", "==4.4.0", "spark", absent)
    assert (extra.ok, extra.found) == (True, "not installed, comes with tidemark[spark]")
    assert doctor.required_versions()["delta-spark"] == ("==4.4.0", "spark")


def test_a_warehouse_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    check = doctor.check_writable(tmp_path / "file" / "warehouse")
    assert not check.ok
    assert str(tmp_path) in check.found


def test_every_log_of_every_pipeline_is_checked_and_what_would_show_a_restore_is_said(tmp_path: Path) -> None:
    """Also the log of a shard that no pipeline file declares."""
    work(tmp_path, 1)
    work(tmp_path, 2)
    warehouse = tmp_path / "wh"
    (warehouse / "no-pipeline").mkdir()
    [check] = doctor.check_histories(str(warehouse))
    assert (check.name, check.ok) == ("history of race", True)
    assert check.found.startswith("2 transactions, every log agrees; nothing would show that everything was")
    newest(tmp_path, f"{SHARD}/log").unlink()
    [check] = doctor.check_histories(str(warehouse))
    assert not check.ok
    assert "the log of shard points ends with transaction 1, and had 2" in check.found
    assert "`tidemark recover race`" in check.remedy
    newest(tmp_path, "_control/history").write_bytes(b"")
    [check] = doctor.check_histories(str(warehouse))
    assert not check.ok
    assert "is lost" in check.found


@pytest.mark.parametrize(
    ("kind", "found"), [("postgres", "its replication slot"), ("kafka", "its consumer group")]
)
def test_what_outside_of_a_warehouse_shows_a_restore_depends_on_the_source(kind: str, found: str) -> None:
    settings = Configuration.of(json.dumps({"source": {"type": kind}}))
    bound = Binding(Txn(1), Frontier(), Frontier(), Owner("r"), configuration=settings)
    assert doctor._shows_a_restore([bound]).startswith(found)


def test_missing_jars_are_reported_not_raised(tmp_path: Path) -> None:
    check = doctor.check_jars(tmp_path)
    assert (check.ok, check.remedy) == (False, "run `make setup`")


@pytest.mark.spark
@pytest.mark.slow
def test_spark_starts_offline_with_the_cached_jars_and_works_on_delta() -> None:
    check = doctor.check_spark()
    assert check.ok, check.found
