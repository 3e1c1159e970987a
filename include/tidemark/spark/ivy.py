"""Download jars with the resolver that is inside Spark.

Spark carries Apache Ivy and knows the public repositories; this module asks it, through a bare JVM gateway
(no Spark session), for artifacts. A mirror is a matter of Ivy's own settings file, named by
`$TIDEMARK_IVY_SETTINGS`.

Known limitation: `MavenUtils` is internal to Spark. It is called here only, at set-up only, and a Spark
upgrade that changes it fails at set-up, not in a job.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidemark.core.errors import Determinate
from tidemark.spark.jars import Coordinate, sha256_of
from tidemark.spark.java import use_java

DELTA = Coordinate("io.delta", "delta-spark_4.1_2.13", "4.4.0")

KAFKA = [
    Coordinate("org.apache.commons", "commons-pool2", "2.12.1"),
    Coordinate("org.apache.kafka", "kafka-clients", "3.9.1"),
    # Published last as 4.1.1. All but its expressions is in Spark's own jars.
    Coordinate("org.apache.spark", "spark-avro_2.13", "4.1.1"),
    Coordinate("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.1.3"),
    # Published last as 4.0.0. The reader asks for its own version and works with this one.
    Coordinate("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
]

_HEADER = """\
# The jars that Spark needs and does not carry, each with the sum of its bytes. Written by `make jars-lock`.
"""


def download(coordinates: list[Coordinate], scratch: Path) -> dict[Coordinate, Path]:
    """Fetch exactly these artifacts, without their dependencies, into files below `scratch`."""
    files = _resolve(coordinates, scratch, transitive=False)
    by_name = {path.name: path for path in files}
    absent = [str(coordinate) for coordinate in coordinates if coordinate.filename not in by_name]
    if absent:
        raise Determinate(
            f"the resolver returned no file for {', '.join(absent)}", hint="run `make setup` again"
        )
    return {coordinate: by_name[coordinate.filename] for coordinate in coordinates}


def resolved_lock(parent: Path) -> str:
    """Resolve Delta with its dependencies and the Kafka reader's fixed list; return the text of jars.lock.

    An artifact that Spark ships is left out, whatever its version: class loading asks Spark's jars first, so
    a second copy would only be carried about.
    """
    with tempfile.TemporaryDirectory(prefix="jars-", dir=parent) as scratch:
        tree = Path(scratch) / "tree"
        flat = Path(scratch) / "flat"
        files = _resolve([DELTA], tree, transitive=True)
        coordinates = {_coordinate_of(path, tree) for path in files} | set(KAFKA)
        wanted = sorted(c for c in coordinates if not _ships_with_spark(c))
        lines = [f"{c} sha256:{sha256_of(path)}\n" for c, path in download(wanted, flat).items()]
    return _HEADER + "".join(lines)


def _resolve(coordinates: list[Coordinate], ivy_home: Path, *, transitive: bool) -> list[Path]:
    """Let Ivy resolve and retrieve; its cache and its output stay below `ivy_home`."""
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
                f"{len(coordinates)} jars could not be resolved, the reason being: "
                f"{_first_reason(transcript.toString()) or error.java_exception.getMessage()}",
                hint="check the network, name a mirror's settings file in TIDEMARK_IVY_SETTINGS or the "
                "network's certificates in SSL_CERT_FILE, and run `make setup` again",
            ) from error
        return [Path(str(path)) for path in jvm.scala.jdk.javaapi.CollectionConverters.asJava(found)]


@contextmanager
def _jvm() -> Iterator[Any]:
    """A JVM with Spark's classes on its path and no session; gone at the end."""
    use_java()
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway(popen_kwargs={"stderr": subprocess.DEVNULL})
    try:
        _trust_what_the_user_trusts(gateway.jvm)
        yield gateway.jvm
    finally:
        gateway.shutdown()
        # Its standard input is what the JVM watches: closed, it ends.
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=30)


def _trust_what_the_user_trusts(jvm: Any) -> None:
    """Verify servers against `$SSL_CERT_FILE` where it is set, as pip and uv do.

    A JVM has certificates of its own and knows nothing of that variable, so behind a proxy with its own
    authority everything but the jars would arrive. Only this short-lived JVM is told.
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
    """What the resolver said went wrong first: the rest repeats it for every artifact."""
    lines = [line.strip() for line in transcript.splitlines()]
    # An exception says more than a repository that merely doesn't have the artifact.
    for word in ("Exception", "access error", "not found"):
        for line in lines:
            if word in line:
                return line
    return ""


def _coordinate_of(path: Path, ivy_home: Path) -> Coordinate:
    """The coordinate of a retrieved jar, from Ivy's cache: the file's name alone is ambiguous."""
    for cached in (ivy_home / "cache").glob("*/*/*/*.jar"):
        group, artifact = cached.parts[-4], cached.parts[-3]
        coordinate = Coordinate(group, artifact, cached.stem.removeprefix(f"{artifact}-"))
        if coordinate.filename == path.name:
            return coordinate
    raise Determinate(f"no cached artifact belongs to {path.name}", hint="run `make jars-lock` again")


def _ships_with_spark(coordinate: Coordinate) -> bool:
    """Whether one of Spark's own jars is this artifact, in any version."""
    import pyspark

    own = Path(pyspark.__file__).parent / "jars"
    return any(own.glob(f"{coordinate.artifact}-[0-9]*.jar"))
