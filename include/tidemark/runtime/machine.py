"""This machine: the folder for Tidemark's downloads and local files, and a Java that Spark supports.

The folder is safe to delete.

Spark 4.1 needs Java 17 or later. From Java 24 on it fails at start-up, because its Hadoop client needs a
security manager, which these versions don't have. Candidates are run to get their version: a path may be a
launcher, a shim or a symbolic link.

`python -m tidemark.runtime.machine` prints the chosen Java's home, or the reason why there is none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemark.core.errors import InvalidUsage


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


JAVA_VERSION_MIN = 17
JAVA_VERSION_MAX = 23
_ANSWER_SECONDS_MAX = 60


@dataclass(frozen=True)
class Java:
    """A Java installation that Spark supports; `home` is a value for `JAVA_HOME`."""

    home: Path
    version: int


def find_java() -> Java:
    """The first supported Java of: `$JAVA_HOME`, `java` on the PATH, the one that set-up downloaded.

    Raises `InvalidUsage`, with all candidates, if none is supported.
    """
    seen: list[str] = []
    for origin, launcher, home in _candidates():
        answer = _ask(launcher)
        if answer is None:
            seen.append(f"{origin} ({launcher}) does not run")
            continue
        version, reported_home = answer
        if JAVA_VERSION_MIN <= version <= JAVA_VERSION_MAX:
            return Java(home=home or reported_home, version=version)
        seen.append(f"{origin} is Java {version}")
    wanted = f"Java {JAVA_VERSION_MIN} to {JAVA_VERSION_MAX}"
    raise InvalidUsage(
        f"no {wanted} found ({'; '.join(seen) or 'JAVA_HOME is not set and no java is on the PATH'})",
        hint="run `make setup`, which fetches one, or install a Java 17 runtime and set JAVA_HOME",
    )


def use_java() -> Java:
    """Find a supported Java, and set `JAVA_HOME` for this process and its children."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def _candidates() -> Iterator[tuple[str, Path, Path | None]]:
    """The candidates: description, launcher, and home if that is known without running the launcher."""
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        yield "JAVA_HOME", Path(java_home) / "bin" / "java", Path(java_home)
    on_path = shutil.which("java")
    if on_path:
        yield "java on the PATH", Path(on_path), None
    fetched = java_folder()
    if (fetched / "bin" / "java").exists():
        # Its launcher is a wrapper, and would report the home of the runtime without the wrapper.
        yield "the fetched Java", fetched / "bin" / "java", fetched


def _ask(launcher: Path) -> tuple[int, Path] | None:
    """The version and home that a launcher reports; None if it doesn't run."""
    try:
        done = subprocess.run(
            [str(launcher), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Versions before 9 have the form "1.8".
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", done.stderr)
    home = re.search(r"java\.home = (.+)", done.stderr)
    if done.returncode != 0 or version is None or home is None:
        return None
    return int(version[1]), Path(home[1].strip())


def main() -> int:
    """Print the chosen home. If there is none, print the reason to standard error and return 1."""
    try:
        java = find_java()
    except InvalidUsage as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{java.home}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
