"""Find a Java that Spark runs on.

Spark 4.1 needs Java 17 or later, and stops at start-up from 24 on: its Hadoop client asks for a security
manager that those versions no longer have. Candidates are asked for their version by running them, because
a path says little (launchers, shims, symbolic links).

`python -m tidemark.runtime.java` prints the chosen home, or the reason why there is none.
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
from tidemark.runtime.home import java_folder

JAVA_VERSION_MIN = 17
JAVA_VERSION_MAX = 23
_ANSWER_SECONDS_MAX = 60


@dataclass(frozen=True)
class Java:
    """A Java installation that Spark runs on; `home` is fit for `JAVA_HOME`."""

    home: Path
    version: int


def find_java() -> Java:
    """The first fit Java of: `$JAVA_HOME`, `java` on the PATH, the one that set-up fetched.

    Raises `InvalidUsage`, with every candidate that was looked at, where none is fit.
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
    """Find a fit Java and point this process and its children at it."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def _candidates() -> Iterator[tuple[str, Path, Path | None]]:
    """(where it comes from, the launcher, its home where that is known without asking)."""
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        yield "JAVA_HOME", Path(java_home) / "bin" / "java", Path(java_home)
    on_path = shutil.which("java")
    if on_path:
        yield "java on the PATH", Path(on_path), None
    fetched = java_folder()
    if (fetched / "bin" / "java").exists():
        # Its launcher is a wrapper; the home it reports is the bare runtime, without the wrapper.
        yield "the fetched Java", fetched / "bin" / "java", fetched


def _ask(launcher: Path) -> tuple[int, Path] | None:
    """The version and home that a launcher reports, or None where it doesn't run."""
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
    # "1.8" is how versions before 9 spell themselves.
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", done.stderr)
    home = re.search(r"java\.home = (.+)", done.stderr)
    if done.returncode != 0 or version is None or home is None:
        return None
    return int(version[1]), Path(home[1].strip())


def main() -> int:
    """Print the chosen home; 1 and the reason on standard error where there is none."""
    try:
        java = find_java()
    except InvalidUsage as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{java.home}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
