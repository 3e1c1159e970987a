"""The wheel in an environment of its own: nothing of the checkout is on its path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.airflow.conftest import PIPELINE, PROJECT
from tests.airflow.test_dags import BAG, HEAVY
from tidemark.home import archive_file, jars_folder

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow]


class Installed:
    """A virtual environment with the wheel; the packages that it depends on are lent to it."""

    def __init__(self, folder: Path) -> None:
        built = folder / "dist"
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(built)],
            cwd=PROJECT,
            check=True,
            capture_output=True,
        )
        venv.create(folder / "venv", with_pip=False)
        (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        (wheel,) = built.glob("*.whl")
        zipfile.ZipFile(wheel).extractall(site)
        self.python = folder / "venv" / "bin" / "python"
        (folder / "home").mkdir()
        for there in (jars_folder(), archive_file().parent):
            (folder / "home" / there.name).symlink_to(there)
        # Path files of a folder that is only on PYTHONPATH do nothing: the checkout stays out.
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            "PYTHONPATH": sysconfig.get_path("purelib"),
            "TIDEMARK_HOME": str(folder / "home"),
            "AIRFLOW_HOME": str(folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        }

    def run(self, *arguments: str, cwd: Path) -> str:
        done = subprocess.run(
            [str(self.python), *arguments],
            cwd=cwd,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_all_that_a_users_airflow_needs(installed: Installed, tmp_path: Path) -> None:
    where = "import tidemark, tidemark.job as job; print(tidemark.__file__, job.job_file('ingest'))"
    for path in installed.run("-c", where, cwd=tmp_path).split():
        assert Path(path).is_relative_to(installed.python.parents[1])
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "mine.yaml").write_text(PIPELINE.format(name="mine"))
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "mine.py").write_text(
        "from tidemark.airflow import pipeline_dags\n"
        f"globals().update(pipeline_dags({str(tmp_path / 'pipelines')!r}))  # dag\n"
    )
    found = installed.run("-c", BAG, str(tmp_path / "dags"), " ".join(HEAVY), cwd=tmp_path)
    bag = json.loads(found.rpartition("RESULT")[2])
    assert (set(bag["dags"]), bag["errors"]) == ({"mine"}, {})


ENTRIES = """
import sys
from importlib.metadata import Distribution
found = {one.group: one.load() for one in Distribution.at(sys.argv[1]).entry_points}
print(found["airflow.plugins"].name, found["apache_airflow_provider"]()["name"])
"""


def test_airflow_finds_the_wheels_plugin_and_provider(installed: Installed, tmp_path: Path) -> None:
    (told,) = installed.python.parents[1].glob("lib/python*/site-packages/tidemark-*.dist-info")
    assert installed.run("-c", ENTRIES, str(told), cwd=tmp_path).split()[-2:] == ["tidemark", "Tidemark"]


SUBMIT = """
import os, subprocess
from pathlib import Path
import pyspark
from tidemark.airflow.operators import IngestOperator
from tidemark.job import Order, submission
from tidemark.tasks import open_pipeline, reclock
order = Order("mine.yaml", "r", "first-try")
reclock(open_pipeline("mine.yaml", None), order.attempt)
how = submission(IngestOperator.step, master="local[1]")
confs = [word for name, value in how.confs.items() for word in ("--conf", f"{name}={value}")]
binary = Path(pyspark.__file__).parent / "bin" / "spark-submit"
command = [str(binary), "--jars", how.jars, *confs, how.application, *order.arguments()]
done = subprocess.run(command, env={**os.environ, **how.environment}, capture_output=True, text=True)
print(how.application, done.stdout.strip().splitlines()[-1:] or done.stderr[-3000:], sep="\\n")
"""


def test_the_wheels_own_job_is_submitted_and_stages(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.json").write_text('{"id": 1, "status": "new", "amount": 1.5}\n')
    (tmp_path / "mine.yaml").write_text(PIPELINE.format(name="mine"))
    job, told = installed.run("-c", SUBMIT, cwd=tmp_path).splitlines()[-2:]
    assert Path(job).is_relative_to(installed.python.parents[1])
    assert '"staged": [{"txn": 1, "read": 1, "rows": {"orders": 1}}]' in told
    (part,) = (tmp_path / "warehouse").rglob("_txn-*/first-try/*.parquet")
    assert part.stat().st_size > 0


def test_the_wheel_runs_a_pipeline_on_spark(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.json").write_text('{"id": 1, "status": "new", "amount": 1.5}\n')
    (tmp_path / "mine.yaml").write_text(PIPELINE.format(name="mine"))
    told = json.loads(installed.run("-m", "tidemark.cli", "run", "mine.yaml", "--json", cwd=tmp_path))
    assert told["report"]["checkpoint"] == 1
    read = installed.run("-m", "tidemark.cli", "read", "mine.yaml", "orders", "--json", cwd=tmp_path)
    assert json.loads(read) == [{"id": 1, "status": "new", "amount": 1.5}]
