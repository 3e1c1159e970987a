"""Deletion vectors are read as they were written, and a damaged one is noticed."""

from __future__ import annotations

import struct
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from tests.delta.helpers import inline
from tidemark.core.errors import Determinate, InvalidUsage, InvariantViolation
from tidemark.delta.deletion_vectors import (
    Descriptor,
    decoded,
    decoded85,
    encoded,
    encoded85,
    name_for,
    pack,
    read_vectors,
    unpack,
    vector_path,
    version_in,
)
from tidemark.delta.store import Store

NAME = name_for(7, uuid.UUID(int=1))
rows = st.sets(st.integers(0, (1 << 32) - 1), max_size=50) | st.builds(
    lambda start, length: set(range(start, start + length)), st.integers(0, 1 << 20), st.integers(0, 5000)
)


def written(folder: Path, *vectors: set[int]) -> tuple[Path, dict[str, Descriptor]]:
    data, found = pack([BitMap(one) for one in vectors], NAME)
    file = folder / vector_path(NAME)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)
    return file, {f"f{at}": one for at, one in enumerate(found)}


@given(st.lists(rows, min_size=1, max_size=4))
def test_what_is_packed_is_unpacked(vectors: list[set[int]]) -> None:
    data, found = pack([BitMap(one) for one in vectors], NAME)
    assert [set(unpack(data, one)) for one in found] == vectors
    assert [one.cardinality for one in found] == [len(one) for one in vectors]


@given(rows)
def test_a_vector_in_the_log_says_the_same(hidden: set[int]) -> None:
    made = inline(BitMap(hidden))
    assert set(read_vectors(Store("unused", {}), {"f": made})["f"]) == hidden
    assert Descriptor.of({"deletionVector": made.action}) == made


@given(rows)
def test_the_bytes_are_a_portable_64_bit_bitmap_behind_the_magic_number(hidden: set[int]) -> None:
    data = encoded(BitMap(hidden))
    assert struct.unpack("<I", data[:4]) == (1681511377,)
    assert set(BitMap64.deserialize(data[4:])) == hidden
    assert set(decoded(data[:4] + BitMap64(hidden).serialize())) == hidden


def test_base85_is_that_of_the_protocol() -> None:
    """The specification's example of a vector in the log hides six rows. It is of an older format, which
    nothing writes into tables and which is refused; its Base85 is the same."""
    example = decoded85("wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", 40)
    assert struct.unpack("<6H", example[-12:]) == (3, 4, 7, 11, 18, 29)
    assert example[12:] == BitMap([3, 4, 7, 11, 18, 29]).serialize()
    with pytest.raises(ValueError, match="begins with 6439d3d0"):
        decoded(example)


@given(st.binary(max_size=40))
def test_base85_gives_the_bytes_back(data: bytes) -> None:
    assert decoded85(encoded85(data), len(data)) == data


@pytest.mark.parametrize(("text", "size"), [("abcd", 3), ("abcde", 5), ('ab"de', 4), ("#####", 4)])
def test_what_is_no_base85_is_refused(text: str, size: int) -> None:
    with pytest.raises(ValueError, match=r"Base85|bytes"):
        decoded85(text, size)


@given(st.integers(0, (1 << 48) - 1), st.uuids())
def test_a_vector_files_name_says_the_version_that_it_was_written_for(
    version: int, random: uuid.UUID
) -> None:
    assert version_in(name_for(version, random)) == version


def test_a_foreign_vector_file_has_no_version() -> None:
    assert version_in(uuid.uuid4()) is None
    with pytest.raises(InvalidUsage, match="not a version"):
        name_for(1 << 48, uuid.uuid4())


def test_every_changed_byte_and_every_cut_of_a_vector_file_is_noticed(tmp_path: Path) -> None:
    file, wanted = written(tmp_path, {1, 5, 70_000}, set(range(10, 400)))
    store, whole = Store(str(tmp_path), {}), file.read_bytes()
    assert set(read_vectors(store, wanted)["f0"]) == {1, 5, 70_000}
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(InvariantViolation, match="can't be used"):
            read_vectors(store, wanted)
        file.write_bytes(whole[:at])
        with pytest.raises(InvariantViolation, match="can't be used"):
            read_vectors(store, wanted)


def test_a_vector_of_another_number_of_rows_or_of_another_place_is_noticed(tmp_path: Path) -> None:
    _, wanted = written(tmp_path, {1, 2}, {3, 4})
    store, one, two = Store(str(tmp_path), {}), wanted["f0"], wanted["f1"]
    for wrong in (
        Descriptor("u", one.place, one.size, 3, one.offset),
        Descriptor("u", one.place, one.size + 1, 2, one.offset),
        Descriptor("u", one.place, one.size, 2, two.offset + 1),
        Descriptor("u", one.place, one.size, 2, 0),
    ):
        with pytest.raises(InvariantViolation, match="can't be used"):
            read_vectors(store, {"f": wrong})


def test_a_lost_vector_a_store_that_does_not_answer_and_a_clones_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, wanted = written(tmp_path, {1})
    store = Store(str(tmp_path), {})

    def fails(*_: object) -> bytes:
        raise OSError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "get", fails)
        with pytest.raises(Determinate, match="no answer"):
            read_vectors(store, wanted)
    file.unlink()
    with pytest.raises(InvariantViolation, match="it is gone"):
        read_vectors(store, wanted)
    with pytest.raises(InvalidUsage, match="not in the table"):
        read_vectors(store, {"f": Descriptor("p", "s3://elsewhere/x.bin", 1, 1, 1)})


def test_rows_that_no_file_can_have_are_refused() -> None:
    with pytest.raises(ValueError, match="4294967296"):
        decoded(encoded(BitMap())[:4] + BitMap64([1 << 32]).serialize())


def test_a_descriptor_that_lacks_something_is_a_damaged_log() -> None:
    with pytest.raises(InvariantViolation, match="is not one"):
        Descriptor.of({"path": "f", "deletionVector": {"storageType": "u"}})
