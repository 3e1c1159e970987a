"""The folder for Tidemark's downloads and local files; it is safe to delete."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The folder for jars, a downloaded Java, Data Docs and logs. It may not exist yet.

    `$TIDEMARK_HOME` if it is set, else `.tidemark` in the checkout that this package runs from, else (for a
    wheel, which has no checkout) `.tidemark` in the user's home folder. It does not depend on the working
    directory.
    """
    chosen = os.environ.get("TIDEMARK_HOME")
    if chosen:
        return Path(chosen).absolute()
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file() and (checkout / "include" / "tidemark").is_dir():
        return checkout / ".tidemark"
    return Path.home() / ".tidemark"


def jars_folder() -> Path:
    """The folder for the jars of jars.lock."""
    return home() / "jars"


def java_folder() -> Path:
    """The folder for the Java that set-up downloads if the machine has none that Spark supports."""
    return home() / "java"


def archive_file() -> Path:
    """The class archive from which Spark's JVMs start, if set-up has made one."""
    return home() / "cache" / "spark.jsa"
