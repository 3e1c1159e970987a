"""Landing files on an object store, as a pipeline file names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.config import ConfigInvalid, load_pipeline

PIPELINE = """\
name: p
source: {type: files, path: in, format: json}
shards: [{name: t, schema: id BIGINT NOT NULL, keys: [id]}]
environments:
"""


def loaded(folder: Path, environment: str) -> str:
    """Where the pipeline's files are in an environment that has this text, and maybe lines after it."""
    (folder / "p.yaml").write_text(f"{PIPELINE}  prod: {environment}\n")
    return load_pipeline(folder / "p.yaml", "prod").source_location


@pytest.mark.parametrize(
    ("place", "location"),
    [
        ("s3://lake/landing/", "s3a://lake/landing"),
        ("gs://lake/landing", "gs://lake/landing"),
        ("abfss://c@account.dfs.core.windows.net/x", "abfss://c@account.dfs.core.windows.net/x"),
    ],
)
def test_an_environment_may_name_an_object_store(place: str, location: str, tmp_path: Path) -> None:
    assert loaded(tmp_path, f"{{source: {{path: '{place}', incremental_listing: true}}}}") == location


@pytest.mark.parametrize(
    ("environment", "fact"),
    [
        (
            "{source: {path: 's3://lake/x'}}\ntransaction: {max_records: 10}",
            "max_records counts lines, which are not read in objects",
        ),
        (
            "{source: {path: 's3://lake/x', incremental_listing: true, ready_marker: _SUCCESS}}",
            "may miss a ready_marker",
        ),
        ("{source: {path: 's3://key:secret@lake/x'}}", "carries a user or a query"),
    ],
)
def test_what_an_object_store_can_not_do_is_refused_at_definition(
    environment: str, fact: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        loaded(tmp_path, environment)
    assert fact in str(refused.value)
    assert "secret" not in str(refused.value)
