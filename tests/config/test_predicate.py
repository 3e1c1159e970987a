from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.config.base import Predicate, parse_predicate
from tidemark.core.errors import InvalidUsage

values = (
    st.lists(st.text(max_size=20), max_size=4)
    | st.lists(st.integers(-(10**17), 10**17), max_size=4)
    | st.lists(st.booleans(), max_size=2)
)


@given(st.from_regex(r"[a-z_][a-z0-9_]{0,10}", fullmatch=True), values.map(tuple))
def test_the_canonical_text_is_read_back_to_the_same_predicate(column: str, found: tuple) -> None:
    predicate = Predicate(column, found)
    assert parse_predicate(predicate.text) == predicate


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("op = 'D'", Predicate("op", ("D",))),
        ("  op='it''s' ", Predicate("op", ("it's",))),
        ("deleted = TRUE", Predicate("deleted", (True,))),
        ("flag = -1", Predicate("flag", (-1,))),
        ("`op` IN ('a','b')", Predicate("op", ("a", "b"))),
        ("code in (1, 2)", Predicate("code", (1, 2))),
        ("value is  null", Predicate("value")),
    ],
)
def test_the_familiar_forms_are_read(text: str, expected: Predicate) -> None:
    assert parse_predicate(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "op",
        "op = D",
        "op = NULL",
        "op = 'a' OR 1 = 1",
        "op = 'a'; DROP TABLE x",
        "op IN ()",
        "op IN ('a', 1)",
        "a.b = 1",
        "op = 1.5",
        "op <> 'a'",
        "opIS NULL",
        "opIN ('a')",
        "1 = 1",
        "é = 1",
        "op = '" + "x" * 10_000_000,
    ],
)
def test_anything_else_is_refused_shortly(text: str) -> None:
    with pytest.raises(InvalidUsage) as caught:
        parse_predicate(text)
    assert len(str(caught.value)) < 300


def test_a_condition_compares_with_literals_of_one_type() -> None:
    assert [parse_predicate(t).type_name for t in ("x = 1", "x = true", "x = 'a'", "x IS NULL")] == [
        "BIGINT", "BOOLEAN", "STRING", "STRING",
    ]  # fmt: skip
