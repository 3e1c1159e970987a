"""The jars that Spark needs and does not carry: Delta, the Kafka reader and Avro's functions.

`jars.lock`, beside this file, lists every one with its SHA-256 sum. Set-up downloads them once into a folder;
after that no job resolves anything from a network.

Promises:

- exactly the listed jars land in the folder, each under its final name only when its sum is right;
- a jar whose sum is wrong is never used: the error names the jar, both sums and the remedy;
- an interrupted download leaves nothing that a later one takes for done.

`python -m tidemark.spark.jars fetch | verify | lock` is what set-up and `make jars-lock` call.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError
from tidemark.home import home, jars_folder

LOCK = Path(__file__).with_name("jars.lock")

Download = Callable[[list["Coordinate"], Path], dict["Coordinate", Path]]
"""Resolves coordinates, as they are, into files below the given folder."""


@dataclass(frozen=True, order=True)
class Coordinate:
    """One artifact: `group:artifact:version`."""

    group: str
    artifact: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Coordinate:
        """Read `group:artifact:version`."""
        fields = text.split(":")
        if len(fields) != 3 or not all(fields):
            raise InvalidUsage(f"{text!r} is not a coordinate", hint="write group:artifact:version")
        return cls(*fields)

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def filename(self) -> str:
        """The name it has in the folder; the group keeps two artifacts of one name apart."""
        return f"{self.group}_{self.artifact}-{self.version}.jar"


@dataclass(frozen=True)
class LockedJar:
    """One line of jars.lock."""

    coordinate: Coordinate
    sha256: str


class WrongSum(Determinate):
    """A jar's bytes are not the ones that jars.lock lists."""

    def __init__(self, jar: LockedJar, found: str, *, where: str) -> None:
        super().__init__(
            f"{jar.coordinate} {where} has sha256 {found}, expected {jar.sha256}",
            hint="run `make setup` to fetch it again; if the sum stays the same, the download is not the "
            "artifact that was locked: don't use it, and look at the mirror or proxy in between",
        )
        self.jar = jar
        self.found = found


def read_lock(path: Path = LOCK) -> list[LockedJar]:
    """The locked jars, in file order."""
    jars = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if len(fields) != 2 or not fields[1].startswith("sha256:") or len(fields[1]) != len("sha256:") + 64:
            raise InvalidUsage(
                f"{path.name} line {number} is not `group:artifact:version sha256:<64 hex digits>`: {line!r}",
                hint="run `make jars-lock` to write the file again",
            )
        jars.append(LockedJar(Coordinate.parse(fields[0]), fields[1].removeprefix("sha256:")))
    return jars


def jar_paths(folder: Path | None = None) -> list[Path]:
    """The jars' paths, for a session. Looks only that they are there: names appear only on whole files.

    Raises `InvalidUsage` with the missing ones.
    """
    folder = folder or jars_folder()
    paths = [folder / jar.coordinate.filename for jar in read_lock()]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise InvalidUsage(
            f"{len(missing)} of {len(paths)} jars are missing in {folder} (first: {missing[0]})",
            hint="run `make setup`",
        )
    return paths


def verify(folder: Path, jars: Iterable[LockedJar]) -> None:
    """Every jar is there and has its sum, or `InvalidUsage` or `WrongSum` for the first that hasn't."""
    for jar in jars:
        path = folder / jar.coordinate.filename
        if not path.is_file():
            raise InvalidUsage(f"{jar.coordinate} is missing in {folder}", hint="run `make setup`")
        found = sha256_of(path)
        if found != jar.sha256:
            raise WrongSum(jar, found, where=f"in {folder}")


def fetch(folder: Path, jars: list[LockedJar], download: Download) -> list[Coordinate]:
    """Bring the folder to exactly the listed jars; return those that had to be downloaded.

    A present jar with a wrong sum is downloaded again. Every download is checked before any is placed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [jar for jar in jars if not _is_right(folder / jar.coordinate.filename, jar.sha256)]
    if wanted:
        # On the folder's own file system, so that placing a jar is one rename.
        with tempfile.TemporaryDirectory(prefix="jars-", dir=folder.parent) as scratch:
            files = download([jar.coordinate for jar in wanted], Path(scratch))
            for jar in wanted:
                found = sha256_of(files[jar.coordinate])
                if found != jar.sha256:
                    raise WrongSum(jar, found, where="as downloaded")
            for jar in wanted:
                _place(files[jar.coordinate], folder / jar.coordinate.filename)
    listed = {jar.coordinate.filename for jar in jars}
    for stray in folder.iterdir():
        if stray.name not in listed:
            stray.unlink()
    return [jar.coordinate for jar in wanted]


def sha256_of(path: Path) -> str:
    """The file's SHA-256 sum in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_right(path: Path, sha256: str) -> bool:
    return path.is_file() and sha256_of(path) == sha256


def _place(source: Path, target: Path) -> None:
    """Move a file to its final name, its bytes on disk first: a name must never outlive its content."""
    with source.open("rb") as file:
        os.fsync(file.fileno())
    source.replace(target)


def _sweep_scratch(parent: Path) -> None:
    """Remove what an interrupted download left. Set-up runs one at a time, so none of it is in use."""
    for leftover in parent.glob("jars-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Run `fetch`, `verify` or `lock`."""
    from tidemark.spark import ivy

    try:
        match arguments:
            case ["fetch"]:
                home().mkdir(parents=True, exist_ok=True)
                _sweep_scratch(home())
                fetched = fetch(jars_folder(), read_lock(), ivy.download)
                sys.stdout.write(f"jars: {len(fetched)} downloaded, {len(read_lock())} in place\n")
            case ["verify"]:
                verify(jars_folder(), read_lock())
                sys.stdout.write(f"jars: all {len(read_lock())} have their sums\n")
            case ["lock"]:
                home().mkdir(parents=True, exist_ok=True)
                LOCK.write_text(ivy.resolved_lock(home()), encoding="utf-8")
                sys.stdout.write(f"jars: {LOCK.name} lists {len(read_lock())}\n")
            case _:
                raise InvalidUsage(f"unknown arguments {arguments}", hint="say fetch, verify or lock")
    except TidemarkError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
