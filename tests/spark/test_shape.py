"""A file whose columns can't be told stops its transaction by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.config import PipelineConfig
from tidemark.core.errors import Determinate, InvalidUsage
from tidemark.sources.files.bound_files import BoundFile
from tidemark.spark.inputs import form_of


def header_of(folder: Path, name: str, **csv: str) -> tuple[str, ...]:
    form = "parquet" if name.endswith(".parquet") else "csv"
    source = {"type": "files", "path": "in", "format": form, **({"csv": csv} if csv else {})}
    shards = [{"name": "t", "schema": "k STRING", "keys": ["k"]}]
    config = PipelineConfig.model_validate({"name": "p", "source": source, "shards": shards}).at(folder)
    return form_of(config, str(folder), [BoundFile(0, name, 1, "", 0)]).header


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("latin.csv", "k;größe\n".encode("latin-1")),
        ("mac.csv", b"k,v\ra,1\r"),
        ("cut.csv.gz", b"\x1f\x8b\x08"),
        ("none.csv.gz", b"k,v\n"),
        ("cut.parquet", b"PAR1" + bytes(10) + (10**6).to_bytes(4, "little") + b"PAR1"),
        ("none.parquet", b"PAR1" + bytes(10) + (8).to_bytes(4, "little") + b"PAR1"),
    ],
)
def test_regression_a_file_that_is_not_what_it_should_be_is_named(
    tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidUsage, match=f"the columns of file '{name}' can't be read"):
        header_of(tmp_path, name)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_file_that_goes_while_its_columns_are_asked_for_may_be_tried_again(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(Determinate, match=f"the columns of file '{name}' can't be read"):
        header_of(tmp_path, name)


def test_regression_a_quote_that_escapes_itself_is_a_doubled_one_in_the_header_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'"k","a ""v"""\n')
    assert header_of(tmp_path, "a.csv", escape='"') == ("k", 'a "v"')


def test_the_header_is_what_the_first_line_says(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfk,v\r\na,1\r\n")
    assert header_of(tmp_path, "a.csv") == ("k", "v")
