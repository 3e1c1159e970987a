"""The jars that Spark needs and does not include: Delta, the Kafka reader and the Avro functions.

`jars.lock`, beside this file, lists every jar with its SHA-256 sum. Set-up downloads them once into a folder;
after that no job needs the network to resolve jars. Set-up and `make jars-lock` call
`python -m tidemark.runtime.jars fetch | verify | lock`.

Promises:

- the folder has exactly the listed jars; a jar gets its final name only once its sum is verified;
- a jar with a wrong sum is never used: the error names the jar, both sums and the remedy;
- a later download never takes the remains of an interrupted one for complete.

`python -m tidemark.runtime.jars fetch | verify | lock` is what set-up and `make jars-lock` call. `fetch s3`
brings Hadoop's S3 connector, of `jars-s3.lock`, into a folder of its own; every session has it from then on.

Spark includes Apache Ivy and knows the public repositories. This module downloads with it, through a JVM
gateway without a Spark session. To use a mirror, name an Ivy settings file in `$TIDEMARK_IVY_SETTINGS`.

Known limitation: `MavenUtils` is internal to Spark. Only this module calls it, and only at set-up, so a Spark
upgrade that changes it fails at set-up and not in a job.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.core.errors import Determinate, InvalidUsage, TidemarkError
from tidemark.runtime.machine import home, jars_folder, use_java

LOCK = Path(__file__).with_name("jars.lock")
S3_LOCK = Path(__file__).with_name("jars-s3.lock")
"""Hadoop's S3 connector, for who has tables or landing files on S3."""

FETCH_S3 = "run `python -m tidemark.runtime.jars fetch s3`"

Download = Callable[[list["Coordinate"], Path], dict["Coordinate", Path]]
"""Downloads exactly these coordinates into files below the given folder."""


@dataclass(frozen=True, order=True)
class Coordinate:
    """One artifact: `group:artifact:version`."""

    group: str
    artifact: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Coordinate:
        """Parse `group:artifact:version`. Raises `InvalidUsage` for other text."""
        fields = text.split(":")
        if len(fields) != 3 or not all(fields):
            raise InvalidUsage(
                f"{text!r} is not the coordinate of a jar", hint="write group:artifact:version"
            )
        return cls(*fields)

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def filename(self) -> str:
        """The file name in the folder. It includes the group, because two groups may have an artifact of the
        same name."""
        return f"{self.group}_{self.artifact}-{self.version}.jar"


@dataclass(frozen=True)
class LockedJar:
    """One line of jars.lock."""

    coordinate: Coordinate
    sha256: str


class WrongSum(Determinate):
    """A jar does not have the sum that jars.lock lists."""

    def __init__(self, jar: LockedJar, found: str, *, where: str) -> None:
        super().__init__(
            f"{jar.coordinate} {where} has sha256 {found}, expected {jar.sha256}",
            hint="run `make setup` to fetch it again; if the checksum stays the same, don't use the"
            " download: "
            "it is not the locked artifact; check the mirror or proxy",
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
    """The paths of the jars, for a session, with those of the S3 connector if they were fetched. Raises
    `InvalidUsage` if one is missing.

    Does not verify sums: only verified files get their final names.
    """
    folder = folder or jars_folder()
    found = _present(folder, read_lock(), hint="run `make setup`")
    s3 = s3_jars_folder(folder)
    return found + (_present(s3, read_lock(S3_LOCK), hint=FETCH_S3) if s3.is_dir() else [])


def s3_jars_folder(folder: Path | None = None) -> Path:
    """Where the jars of the S3 connector lie, beside the others."""
    beside = folder or jars_folder()
    return beside.with_name(f"s3-{beside.name}")


def _present(folder: Path, jars: list[LockedJar], *, hint: str) -> list[Path]:
    paths = [folder / jar.coordinate.filename for jar in jars]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        fact = f"{len(missing)} of {len(paths)} jars are missing in {folder} (first: {missing[0]})"
        raise InvalidUsage(fact, hint=hint)
    return paths


def verify(folder: Path, jars: Iterable[LockedJar]) -> None:
    """Raise `InvalidUsage` for the first jar that is missing, or `WrongSum` if its sum is wrong."""
    for jar in jars:
        path = folder / jar.coordinate.filename
        if not path.is_file():
            raise InvalidUsage(f"{jar.coordinate} is missing in {folder}", hint="run `make setup`")
        found = sha256_of(path)
        if found != jar.sha256:
            raise WrongSum(jar, found, where=f"in {folder}")


def fetch(folder: Path, jars: list[LockedJar], download: Download) -> list[Coordinate]:
    """Make the folder have exactly the listed jars; return those that were downloaded.

    A jar with a wrong sum is downloaded again. All downloads are verified before the first one is placed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [jar for jar in jars if not _is_right(folder / jar.coordinate.filename, jar.sha256)]
    if wanted:
        # On the same file system as the folder, so that placing a jar is one rename.
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
    """Move a file to its final name. Its content is synced first: the name must not exist without it."""
    with source.open("rb") as file:
        os.fsync(file.fileno())
    source.replace(target)


def _sweep_scratch(parent: Path) -> None:
    """Remove the remains of interrupted downloads. Only one set-up runs at a time, so none is in use."""
    for leftover in parent.glob("jars-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Run `fetch`, `verify` or `lock`."""

    try:
        match arguments:
            case ["fetch"]:
                home().mkdir(parents=True, exist_ok=True)
                _sweep_scratch(home())
                fetched = fetch(jars_folder(), read_lock(), download_jars)
                sys.stdout.write(f"jars: {len(fetched)} downloaded, {len(read_lock())} in place\n")
            case ["fetch", "s3"]:
                _sweep_scratch(home())
                fetched = fetch(s3_jars_folder(), read_lock(S3_LOCK), download_jars)
                sys.stdout.write(
                    f"jars of S3: {len(fetched)} downloaded, {len(read_lock(S3_LOCK))} in place\n"
                )
            case ["verify"]:
                verify(jars_folder(), read_lock())
                sys.stdout.write(f"jars: all {len(read_lock())} have the right checksums\n")
            case ["lock"]:
                home().mkdir(parents=True, exist_ok=True)
                LOCK.write_text(resolved_lock(home()), encoding="utf-8")
                sys.stdout.write(f"jars: {LOCK.name} lists {len(read_lock())}\n")
            case ["lock", "s3"]:
                S3_LOCK.write_text(resolved_s3_lock(home()), encoding="utf-8")
                sys.stdout.write(f"jars of S3: {S3_LOCK.name} lists {len(read_lock(S3_LOCK))}\n")
            case _:
                hint = "use fetch, verify or lock; or fetch s3, lock s3"
                raise InvalidUsage(f"unknown arguments {arguments}", hint=hint)
    except TidemarkError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


# Download with Spark's Ivy.

DELTA = Coordinate("io.delta", "delta-spark_4.1_2.13", "4.4.0")

KAFKA = [
    Coordinate("org.apache.commons", "commons-pool2", "2.12.1"),
    Coordinate("org.apache.kafka", "kafka-clients", "3.9.1"),
    # The latest release is 4.1.1. Everything except its expressions is in Spark's own jars.
    Coordinate("org.apache.spark", "spark-avro_2.13", "4.1.1"),
    Coordinate("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.1.3"),
    # The latest release is 4.0.0. The reader requires its own version, but works with this one.
    Coordinate("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
]

_SDK = "2.29.52"
S3 = [
    # Not its bundle of all services, which is 600 MB: what the connector calls, with what that needs.
    *(
        Coordinate("software.amazon.awssdk", artifact, _SDK)
        for artifact in ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
    ),
]
S3_CONNECTOR = [
    Coordinate("org.apache.hadoop", "hadoop-aws", "3.4.2"),
    Coordinate("org.wildfly.openssl", "wildfly-openssl", "2.1.4.Final"),
    Coordinate("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.2.1"),
]
"""Of the version of Hadoop that Spark carries."""

_S3_HEADER = """\
# Hadoop's S3 connector and what it calls, each with the sum of its bytes. Written by
# `python -m tidemark.runtime.jars lock s3`.
"""
_HEADER = """\
# The jars that Spark needs and does not carry, each with the sum of its bytes. Written by `make jars-lock`.
"""


def download_jars(coordinates: list[Coordinate], scratch: Path) -> dict[Coordinate, Path]:
    """Download exactly these artifacts, without dependencies, into files below `scratch`."""
    files = _resolve(coordinates, scratch, transitive=False)
    by_name = {path.name: path for path in files}
    absent = [str(coordinate) for coordinate in coordinates if coordinate.filename not in by_name]
    if absent:
        raise Determinate(
            f"the resolver returned no file for {', '.join(absent)}", hint="run `make setup` again"
        )
    return {coordinate: by_name[coordinate.filename] for coordinate in coordinates}


def resolved_lock(parent: Path) -> str:
    """Resolve Delta with its dependencies and the Kafka reader's fixed list; return the text of jars.lock."""
    return _HEADER + _locked([DELTA], KAFKA, parent)


def resolved_s3_lock(parent: Path) -> str:
    """Resolve the S3 client with its dependencies and the connector; return the text of jars-s3.lock."""
    return _S3_HEADER + _locked(S3, S3_CONNECTOR, parent)


def _locked(roots: list[Coordinate], fixed: list[Coordinate], parent: Path) -> str:
    """The lines of a lock: the roots with their dependencies, and the fixed ones alone.

    Artifacts that Spark includes are left out in any version: Spark's own jars come first in class loading,
    so a second copy would never be used.
    """
    with tempfile.TemporaryDirectory(prefix="jars-", dir=parent) as scratch:
        tree = Path(scratch) / "tree"
        flat = Path(scratch) / "flat"
        files = _resolve(roots, tree, transitive=True)
        coordinates = {_coordinate_of(path, tree) for path in files} | set(fixed)
        wanted = sorted(c for c in coordinates if not _ships_with_spark(c))
        lines = [f"{c} sha256:{sha256_of(path)}\n" for c, path in download_jars(wanted, flat).items()]
    return "".join(lines)


def _resolve(coordinates: list[Coordinate], ivy_home: Path, *, transitive: bool) -> list[Path]:
    """Resolve and download with Ivy. Its cache and its files stay below `ivy_home`."""
    with _jvm() as jvm:
        transcript = jvm.java.io.ByteArrayOutputStream()
        stream = jvm.java.io.PrintStream(transcript)
        some, none = jvm.scala.Option.apply, jvm.scala.Option.empty()
        maven = jvm.org.apache.spark.util.MavenUtils
        from py4j.protocol import Py4JJavaError

        try:
            mirror = os.environ.get("TIDEMARK_IVY_SETTINGS")
            if mirror:
                settings = maven.loadIvySettings(mirror, none, some(str(ivy_home)), stream)
            else:
                settings = maven.buildIvySettings(none, some(str(ivy_home)), False, stream)
            nothing = jvm.org.apache.spark.util.Utils.stringToSeq("")
            joined = ",".join(str(coordinate) for coordinate in coordinates)
            found = maven.resolveMavenCoordinates(joined, settings, none, transitive, nothing, False, stream)
        except Py4JJavaError as error:
            raise Determinate(
                f"{len(coordinates)} jars could not be resolved: "
                f"{_first_reason(transcript.toString()) or error.java_exception.getMessage()}",
                hint="check the network, name a mirror's settings file in TIDEMARK_IVY_SETTINGS or the "
                "network's certificates in SSL_CERT_FILE, and run `make setup` again",
            ) from error
        return [Path(str(path)) for path in jvm.scala.jdk.javaapi.CollectionConverters.asJava(found)]


@contextmanager
def _jvm() -> Iterator[Any]:
    """A JVM with Spark's classes and without a session. It ends with this context."""
    use_java()
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway(popen_kwargs={"stderr": subprocess.DEVNULL})
    try:
        _trust_what_the_user_trusts(gateway.jvm)
        yield gateway.jvm
    finally:
        gateway.shutdown()
        # The JVM ends when its standard input is closed.
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=30)


def _trust_what_the_user_trusts(jvm: Any) -> None:
    """Verify servers against `$SSL_CERT_FILE` if it is set, as pip and uv do.

    A JVM has its own certificates and ignores that variable, so behind a proxy with its own authority every
    download but the jars would succeed. This affects only this short-lived JVM.
    """
    bundle = os.environ.get("SSL_CERT_FILE")
    if not bundle:
        return
    store = jvm.java.security.KeyStore.getInstance("PKCS12")
    store.load(None, None)
    stream = jvm.java.io.FileInputStream(bundle)
    factory = jvm.java.security.cert.CertificateFactory.getInstance("X.509")
    for number, certificate in enumerate(factory.generateCertificates(stream)):
        store.setCertificateEntry(f"certificate-{number}", certificate)
    stream.close()
    security = jvm.javax.net.ssl
    managers = security.TrustManagerFactory.getInstance(security.TrustManagerFactory.getDefaultAlgorithm())
    managers.init(store)
    context = security.SSLContext.getInstance("TLS")
    context.init(None, managers.getTrustManagers(), None)
    security.SSLContext.setDefault(context)


def _first_reason(transcript: str) -> str:
    """The resolver's first error; the others repeat it for every artifact. Empty if there is none."""
    lines = [line.strip() for line in transcript.splitlines()]
    # An exception is more informative than a repository that doesn't have the artifact.
    for word in ("Exception", "access error", "not found"):
        for line in lines:
            if word in line:
                return line
    return ""


def _coordinate_of(path: Path, ivy_home: Path) -> Coordinate:
    """The coordinate of a downloaded jar, from Ivy's cache, because the file's name alone is ambiguous."""
    for cached in (ivy_home / "cache").glob("*/*/*/*.jar"):
        group, artifact = cached.parts[-4], cached.parts[-3]
        coordinate = Coordinate(group, artifact, cached.stem.removeprefix(f"{artifact}-"))
        if coordinate.filename == path.name:
            return coordinate
    raise Determinate(f"Ivy's cache has no artifact for {path.name}", hint="run `make jars-lock` again")


def _ships_with_spark(coordinate: Coordinate) -> bool:
    """Whether Spark includes this artifact in any version."""
    import pyspark

    own = Path(pyspark.__file__).parent / "jars"
    return any(own.glob(f"{coordinate.artifact}-[0-9]*.jar"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
