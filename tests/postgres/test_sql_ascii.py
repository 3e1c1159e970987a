"""A database whose encoding is SQL_ASCII may hold any bytes, also those that are no text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.postgres_pipeline import CONN_ID, Rig
from tidemark.core.errors import InvalidUsage

pytestmark = pytest.mark.server


def test_regression_bytes_that_are_not_utf8_are_no_reason_to_retry(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    works = rig(t=("id INT NOT NULL, v STRING", ["id"]))
    ascii_only = f"{works.database}_ascii"
    works.sql(f"CREATE DATABASE {ascii_only} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    before, works.database = works.database, ascii_only
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", works.postgres.uri(ascii_only))
    try:
        works.ready("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, E'\\xff')")
        refused = "correct the row, then run `tidemark source reread`"
        with pytest.raises(InvalidUsage, match=refused):
            works.bind()
        # The slot has the old row of the deletion, which the reading is past.
        works.sql("DELETE FROM t", "INSERT INTO t VALUES (2, 'a')")
        assert works.changes(*works.bind()) == [("t", "c", (2, "a"))]
        works.sql("INSERT INTO t VALUES (3, E'\\xff')")
        with pytest.raises(InvalidUsage, match=refused):
            works.bind()
    finally:
        works.sql(f"SELECT pg_drop_replication_slot('{ascii_only}')")
        works.database = before
        works.sql(f"DROP DATABASE {ascii_only} WITH (FORCE)")
