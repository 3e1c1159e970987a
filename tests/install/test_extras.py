"""The wheel in a clean environment with the base only: what works there, what a missing extra says."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tidemark.core.errors import EXTRAS, InvalidUsage, MissingExtra, require

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCES = {
    "files": "{type: files, path: in, format: json, settle_seconds: 0}",
    "kafka": "{type: kafka, bootstrap_servers: 'localhost:1', topics: [t], key_format: string}",
    "postgres": "{type: postgres, postgres_conn_id: db, slot: s, publication: p}\nenvelope: debezium",
}
PIPELINE = """\
name: {name}
source: {source}
warehouse: {warehouse}
shards:
- {{name: t, schema: "id BIGINT NOT NULL, v STRING", keys: [id]{more}}}
"""


def needed(lines: list[str]) -> dict[str, metadata.Distribution]:
    """The installed distributions that a list of requirements comes to, without anybody's extras."""
    found: dict[str, metadata.Distribution] = {}
    wanted = [Requirement(line) for line in lines]
    while wanted:
        one = wanted.pop()
        if one.name in found or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        found[one.name] = metadata.distribution(one.name)
        wanted += map(Requirement, found[one.name].requires or [])
    return found


class Base:
    """A virtual environment with the wheel and what the wheel itself says that it needs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        built = folder / "dist"
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(built)],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        (wheel,) = built.glob("*.whl")
        venv.create(folder / "venv", with_pip=False)
        self.python = folder / "venv" / "bin" / "python"
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
        (about,) = site.glob("tidemark-*.dist-info")
        self.requires = metadata.Distribution.at(about).requires or []
        for distribution in needed(self.requires).values():
            for name in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
                if not (site / name).exists():
                    (site / name).symlink_to(distribution.locate_file(name).absolute())  # type: ignore[attr-defined]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TIDE"))}
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=self.folder,
            env={**kept, "TIDEMARK_HOME": str(self.folder / "home"), "AIRFLOW_CONN_DB": "postgresql://u@h/d"},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    made = Base(tmp_path_factory.mktemp("base"))
    for name, source in SOURCES.items():
        more = ", route: {table: public.t}" if name == "postgres" else ""
        text = PIPELINE.format(name=name, source=source, warehouse="wh", more=more)
        (made.folder / f"{name}.yaml").write_text(text)
    text = PIPELINE.format(name="lake", source=SOURCES["files"], warehouse="wh", more="")
    (made.folder / "lake.yaml").write_text(text + "environments: {prod: {warehouse: 's3://lake/x'}}\n")
    (made.folder / "in").mkdir()
    return made


WORKS = """
import json, tidemark
from importlib.util import find_spec
from tidemark.core.errors import EXTRAS

names = [name for name in tidemark.__all__ if getattr(tidemark, name) is None]
there = [name for names in EXTRAS.values() for name in names if find_spec(name) is not None]
frontiers = {}
for pipeline in ("files", "kafka", "postgres"):
    config = tidemark.load_pipeline(pipeline)
    with tidemark.Consumer(config, "t", "billing") as billing:
        frontiers[pipeline] = [billing.frontier, billing.is_new, len(list(billing.listen()))]
idle = tidemark.run("files").report.checkpoint
print(json.dumps([names, there, frontiers, idle, tidemark.quarantine("files")]))
"""


@pytest.mark.slow
def test_the_base_loads_pipelines_follows_logs_and_has_nothing_else(base: Base) -> None:
    """A consumer needs the library of no source; a run that finds nothing needs no Spark."""
    done = base.run("-c", WORKS)
    assert done.returncode == 0, done.stderr
    names, there, frontiers, idle, quarantined = json.loads(done.stdout)
    assert (names, there, idle, quarantined) == ([], [], 0, [])
    assert frontiers == {name: [1, False, 0] for name in SOURCES}


@pytest.mark.slow
def test_the_command_works_with_the_base(base: Base) -> None:
    told = base.run("-m", "tidemark.cli", "status", "files", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["checkpoint"] == 0
    doctor = base.run("-m", "tidemark.cli", "doctor", "--no-spark", "--json", "--warehouse", "wh")
    found = {one["name"]: one["found"] for one in json.loads(doctor.stdout)["checks"]}
    assert (doctor.returncode, found["pyspark"]) == (0, "not installed, comes with tidemark[spark]")


MISSING = """
import json, tidemark
from pathlib import Path

def gate():
    from tidemark.quality import engine
    engine.load()

def dags():
    import tidemark.airflow

uses = {
    "airflow": dags,
    "kafka": lambda: tidemark.run("kafka"),
    "postgres": lambda: tidemark.run("postgres"),
    "quality": gate,
    "s3": lambda: tidemark.read(tidemark.load_pipeline("lake", "prod"), "t"),
    "spark": lambda: tidemark.read("files", "t"),
    "spark of a run": lambda: Path("in/a.json").write_text('{"id": 1}') and tidemark.run("files"),
}
told = {}
for name, use in uses.items():
    try:
        told[name] = repr(use())
    except tidemark.InvalidUsage as error:
        told[name] = str(error)
    except Exception as error:
        told[name] = repr(error)
print(json.dumps(told))
"""


@pytest.mark.slow
def test_a_missing_extra_is_named_with_how_to_install_it(base: Base) -> None:
    done = base.run("-c", MISSING)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for name, text in told.items():
        extra = name.split()[0]
        remedy = f"install the extra: pip install 'tidemark[{extra}]'"
        assert text == f"{EXTRAS[extra][0]} is not installed: {remedy}"
    assert EXTRAS.keys() <= told.keys()


def test_every_extra_is_declared_and_all_has_every_one() -> None:
    extras = PROJECT["optional-dependencies"]
    assert extras.keys() - {"all"} == EXTRAS.keys()
    (every,) = map(Requirement, extras["all"])
    assert every.extras == EXTRAS.keys()


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_the_modules_that_are_asked_for(extra: str) -> None:
    require(extra)
    packages = metadata.packages_distributions()
    declared = {Requirement(line).name for line in PROJECT["optional-dependencies"][extra]}
    for module in EXTRAS[extra]:
        assert declared & {name.replace("_", "-") for name in packages[module]}, module


def test_an_extra_that_is_missing_is_an_import_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.core.errors.find_spec", lambda _: None)
    with pytest.raises(ImportError) as found:
        require("kafka")
    assert isinstance(found.value, MissingExtra)
    assert isinstance(found.value, InvalidUsage)
    assert str(found.value).startswith("confluent_kafka is not installed: install the extra")


# Where a library of an extra may be imported at the top of a module: behind the place that asks for it.
BEHIND = {
    "airflow": ("airflow/", "plugin.py"),
    "kafka": ("sources/kafka",),
    "postgres": ("sources/postgres/",),
    "quality": ("quality/",),
    "s3": ("delta/objects",),
    "spark": ("spark/",),
}
# What comes along with an extra, and is used too.
ALONG = {"fastapi": "airflow", "sqlalchemy": "airflow", "py4j": "spark", "pandas": "quality"}


def test_no_library_of_an_extra_is_imported_before_it_is_asked_for() -> None:
    package = ROOT / "include" / "tidemark"
    owner = {module: extra for extra, modules in EXTRAS.items() for module in modules} | ALONG
    wrong = []
    for path in sorted(package.rglob("*.py")):
        named = path.relative_to(package).as_posix()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            extras = {owner[root] for module in modules if (root := module.split(".")[0]) in owner}
            wrong += [f"{named}:{node.lineno}" for extra in extras if not named.startswith(BEHIND[extra])]
    assert not wrong
