"""`tidemark source check` says before a run what the run would say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.postgres_pipeline import PAIRS, PAIRS_SCHEMA, Rig, file_of, told
from tidemark.core.errors import InvalidUsage

pytestmark = pytest.mark.server


def test_what_the_log_does_not_carry_is_found_by_the_check_too(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    works = rig(pairs=(PAIRS_SCHEMA, ["id"]))
    works.ready(PAIRS.format("pairs"), "INSERT INTO pairs VALUES (1, 'a')")
    monkeypatch.setenv("TIDEMARK_ROOT", str(works.root))
    file = str(file_of(works))
    code, output = told("source", "check", file)
    assert (code, "catalog" in output) == (0, False), output
    works.bind()
    code, output = told("source", "check", file)
    assert (code, "no change of 1 tables" in output) == (0, True), output
    works.sql("ALTER TABLE pairs ALTER value TYPE text USING value || '!'")
    with pytest.raises(InvalidUsage, match="its rows were rewritten") as refused:
        works.bind()
    code, output = told("source", "check", file)
    assert (code, refused.value.fact in output) == (2, True), output
    assert "tidemark source reread PIPELINE public.pairs" in output
    assert told("source", "reread", file, "public.pairs")[0] == 0
    code, output = told("source", "check", file)
    assert (code, "catalog" in output) == (0, False), output
