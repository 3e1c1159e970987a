"""Where Tidemark keeps what it fetched: one folder, inside the project, safe to delete."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The folder for jars, a fetched Java, Data Docs and logs.

    `$TIDEMARK_HOME` if it is set, else `.tidemark` in the checkout that this package runs from, else
    `.tidemark` in the user's home folder (a wheel has no checkout): the same for all processes of one user,
    wherever they run. The folder may not exist yet.
    """
    chosen = os.environ.get("TIDEMARK_HOME")
    if chosen:
        return Path(chosen).absolute()
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file() and (checkout / "include" / "tidemark").is_dir():
        return checkout / ".tidemark"
    return Path.home() / ".tidemark"


def jars_folder() -> Path:
    """Where the jars of jars.lock lie."""
    return home() / "jars"


def java_folder() -> Path:
    """The Java that set-up fetched, on a machine that had none that Spark runs on."""
    return home() / "java"


def archive_file() -> Path:
    """The archive of Spark's classes that JVMs start from, where set-up has made one."""
    return home() / "cache" / "spark.jsa"
