"""The wheel in an environment of its own: nothing of the checkout is on its path."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable, QueryBuilder

from tests.airflow.conftest import PIPELINE, PROJECT
from tests.airflow.test_dags import BAG, HEAVY
from tests.support.waiting import SECONDS_MAX
from tidemark.runtime.machine import archive_file, jars_folder

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
        self.built = built
        venv.create(folder / "venv", with_pip=True)
        self.python = folder / "venv" / "bin" / "python"
        self._lend_scripts()
        subprocess.run(
            ["bash", "-c", f"{self.python.parent}/pip install {built}/*.whl"],
            check=True,
            capture_output=True,
            env={**os.environ, "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1"},
        )
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

    def _lend_scripts(self) -> None:
        """The commands of the packages that are lent; pip sees its own environment only."""
        submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
        lent = {
            "pip": f'exec env -u PYTHONPATH "{self.python}" -m pip "$@"',
            "airflow": f'exec "{self.python}" -m airflow "$@"',
            "spark-submit": f'exec "{submit}" "$@"',
        }
        for name, line in lent.items():
            script = self.python.parent / name
            script.write_text(f"#!/bin/sh\n{line}\n")
            script.chmod(0o755)

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
    where = "import tidemark, tidemark.app.job as job; print(tidemark.__file__, job.job_file('ingest'))"
    package, job = map(Path, installed.run("-c", where, cwd=tmp_path).split())
    for path in (package, job, package.with_name("airflow") / "pages" / "files" / "page.html"):
        assert path.is_relative_to(installed.python.parents[1])
        assert path.is_file()
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "mine.yaml").write_text(PIPELINE.format(name="mine"))
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "mine.py").write_text(
        "from tidemark.airflow import pipeline_dags\n"
        f"globals().update(pipeline_dags({str(tmp_path / 'pipelines')!r}))  # dag\n"
    )
    folders = json.dumps({"mine": [str(tmp_path / "dags"), str(tmp_path / "pipelines")]})
    found = installed.run("-c", BAG, folders, " ".join(HEAVY), cwd=tmp_path)
    bag = json.loads(found.rpartition("RESULT")[2])["mine"]
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


PAGE = (PROJECT / "docs" / "airflow.md").read_text(encoding="utf-8")
NOT_NEEDED = "# not needed"
PLACES = {"home": "/opt/tidemark", "pipelines": "/path/to/pipelines"}


def block(language: str, beginning: str) -> str:
    """The code block of docs/airflow.md that begins so."""
    (found,) = re.findall(rf"```{language}\n({re.escape(beginning)}.*?)```", PAGE, re.DOTALL)
    return str(found)


def replaced(text: str, **values: object) -> str:
    """The text with a place of ours instead of one of the page's, which has to be there."""
    for name, value in values.items():
        before = PLACES[name]
        assert before in text
        text = text.replace(before, str(value))
    return text


def test_an_airflow_that_follows_the_page_has_a_green_run(
    installed: Installed, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """By the commands and the two lines of docs/airflow.md, in a folder that knows nothing of this project.
    What the page says is not needed is left out."""
    folder = tmp_path_factory.mktemp("user")
    airflow = Path(installed.environ["AIRFLOW_HOME"])
    commands = replaced(block("bash", "pip install"), home=installed.environ["TIDEMARK_HOME"])
    needed = [line for line in commands.splitlines() if NOT_NEEDED not in line]
    (folder / "dist").symlink_to(installed.built)
    (folder / "landing").mkdir()
    (folder / "landing" / "a.json").write_text('{"id": 1, "status": "new", "amount": 1.5}\n')
    (folder / "pipelines").mkdir()
    pipeline = PIPELINE.format(name="mine") + "    publish: manual\n"
    (folder / "pipelines" / "mine.yaml").write_text(pipeline)
    (airflow / "dags").mkdir(parents=True)
    lines = replaced(
        block("python", "from tidemark.airflow import pipeline_dags"), pipelines=folder / "pipelines"
    )
    (airflow / "dags" / "mine.py").write_text(lines)
    script = ["set -e", "airflow db migrate", *needed, "airflow dags test mine"]
    environ = {**installed.environ, "PATH": f"{installed.python.parent}{os.pathsep}{os.environ['PATH']}"}
    del environ["TIDEMARK_HOME"]
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder,
        env={**environ, "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    told = json.loads(
        installed.run("-m", "tidemark.cli", "status", "pipelines/mine.yaml", "--json", cwd=folder)
    )
    assert (told["checkpoint"], told["open"], told["blocked"]) == (1, [], [])
    log = QueryBuilder().register("log", DeltaTable(folder / "warehouse" / "mine" / "orders" / "log"))
    rows = log.execute("SELECT id, status, amount FROM log").read_all().to_struct_array().to_pylist()
    assert rows == [{"id": 1, "status": "new", "amount": 1.5}]
