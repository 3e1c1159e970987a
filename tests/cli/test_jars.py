"""The jars: exactly the locked bytes are used, and nothing half-done is taken for done."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tidemark.core.errors import InvalidUsage
from tidemark.runtime import jars
from tidemark.runtime.jars import Coordinate, LockedJar, WrongSum, fetch, jar_paths, read_lock, verify

ALPHA = Coordinate("org.example", "alpha", "1.0")
BETA = Coordinate("org.example", "beta_2.13", "2.0")


def locked(coordinate: Coordinate, content: bytes) -> LockedJar:
    return LockedJar(coordinate, hashlib.sha256(content).hexdigest())


class Repository:
    """Stands in for the resolver: hands out the bytes it was given, and counts what it was asked for."""

    def __init__(self, contents: dict[Coordinate, bytes]) -> None:
        self.contents = contents
        self.asked: list[Coordinate] = []

    def __call__(self, coordinates: list[Coordinate], scratch: Path) -> dict[Coordinate, Path]:
        self.asked += coordinates
        files = {}
        for coordinate in coordinates:
            files[coordinate] = scratch / coordinate.filename
            files[coordinate].write_bytes(self.contents[coordinate])
        return files


def test_fetch_places_the_listed_jars_and_a_second_fetch_downloads_nothing(tmp_path: Path) -> None:
    jars = [locked(ALPHA, b"a"), locked(BETA, b"b")]
    repository = Repository({ALPHA: b"a", BETA: b"b"})
    folder = tmp_path / "jars"

    assert fetch(folder, jars, repository) == [ALPHA, BETA]
    assert fetch(folder, jars, repository) == []
    assert repository.asked == [ALPHA, BETA]
    verify(folder, jars)
    assert [path.name for path in tmp_path.iterdir()] == ["jars"], "scratch is left behind"


def test_a_download_with_a_wrong_sum_places_nothing_and_names_jar_and_sums(tmp_path: Path) -> None:
    jars = [locked(ALPHA, b"a"), locked(BETA, b"b")]
    folder = tmp_path / "jars"

    with pytest.raises(WrongSum) as caught:
        fetch(folder, jars, Repository({ALPHA: b"a", BETA: b"tampered"}))

    message = str(caught.value)
    assert "org.example:beta_2.13:2.0" in message
    assert jars[1].sha256 in message
    assert hashlib.sha256(b"tampered").hexdigest() in message
    assert "make setup" in caught.value.hint
    assert list(folder.iterdir()) == []


def test_a_damaged_jar_is_refused_by_verify_and_mended_by_fetch(tmp_path: Path) -> None:
    jars = [locked(ALPHA, b"whole"), locked(BETA, b"b")]
    repository = Repository({ALPHA: b"whole", BETA: b"b"})
    fetch(tmp_path / "jars", jars, repository)
    (tmp_path / "jars" / ALPHA.filename).write_bytes(b"who")

    with pytest.raises(WrongSum, match=r"org\.example:alpha:1\.0"):
        verify(tmp_path / "jars", jars)
    assert fetch(tmp_path / "jars", jars, repository) == [ALPHA]
    verify(tmp_path / "jars", jars)


def test_a_missing_jar_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsage, match=r"org\.example:alpha:1\.0 is missing") as caught:
        verify(tmp_path, [locked(ALPHA, b"a")])
    assert caught.value.hint == "run `make setup`"
    with pytest.raises(InvalidUsage, match="jars are missing"):
        jar_paths(tmp_path)


def test_a_jar_that_the_list_no_longer_has_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    repository = Repository({ALPHA: b"a", BETA: b"b"})
    fetch(folder, [locked(ALPHA, b"a"), locked(BETA, b"b")], repository)
    fetch(folder, [locked(ALPHA, b"a")], repository)
    assert [path.name for path in folder.iterdir()] == [ALPHA.filename]


def test_a_broken_line_of_the_list_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "jars.lock"
    broken.write_text("# fine\norg.example:alpha:1.0 sha256:abc\n", encoding="utf-8")
    with pytest.raises(InvalidUsage, match="line 2"):
        read_lock(broken)


def test_the_shipped_list_has_delta_and_the_kafka_reader() -> None:
    coordinates = {str(jar.coordinate) for jar in read_lock()}
    assert "io.delta:delta-spark_4.1_2.13:4.4.0" in coordinates
    assert "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3" in coordinates
    assert len({jar.coordinate.filename for jar in read_lock()}) == len(coordinates)


def test_sweeping_leaves_the_jars_of_the_s3_connector_which_sessions_then_have(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    for jar in jars.read_lock():
        (folder / jar.coordinate.filename).parent.mkdir(exist_ok=True)
        (folder / jar.coordinate.filename).touch()
    s3 = jars.s3_jars_folder(folder)
    assert not any(path.parent == s3 for path in jars.jar_paths(folder))
    s3.mkdir()
    jars._sweep_scratch(tmp_path)
    with pytest.raises(InvalidUsage, match="jars are missing") as refused:
        jars.jar_paths(folder)
    assert refused.value.hint == "run `python -m tidemark.runtime.jars fetch s3`"
    for jar in jars.read_lock(jars.S3_LOCK):
        (s3 / jar.coordinate.filename).touch()
    assert sum(path.parent == s3 for path in jars.jar_paths(folder)) == len(jars.read_lock(jars.S3_LOCK))
