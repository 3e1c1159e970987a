from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.config.schema import (
    RESERVED,
    SCALARS,
    Array,
    Column,
    DataType,
    Decimal,
    Map,
    Scalar,
    Schema,
    SchemaInvalid,
    Struct,
    parse_schema,
)

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)


def columns_of(types: st.SearchStrategy[DataType]) -> st.SearchStrategy[tuple[Column, ...]]:
    column = st.builds(Column, names, types, st.booleans())
    return st.lists(column, min_size=1, max_size=4, unique_by=lambda c: c.name).map(tuple)


data_types: st.SearchStrategy[DataType] = st.recursive(
    st.builds(Scalar, st.sampled_from(sorted(SCALARS)))
    | st.integers(1, 38).flatmap(lambda p: st.builds(Decimal, st.just(p), st.integers(0, p))),
    lambda inner: (
        st.builds(Array, inner) | st.builds(Map, inner, inner) | st.builds(Struct, columns_of(inner))
    ),
    max_leaves=8,
)


@given(columns_of(data_types))
def test_the_canonical_ddl_is_read_back_to_the_same_schema(columns: tuple[Column, ...]) -> None:
    schema = Schema(columns)
    assert parse_schema(schema.ddl) == schema


@given(st.text(max_size=200))
def test_any_text_is_a_schema_or_a_short_refusal(text: str) -> None:
    try:
        found: Schema | SchemaInvalid = parse_schema(text)
    except SchemaInvalid as error:
        found = error
    if isinstance(found, SchemaInvalid):
        assert len(str(found)) < 400
        assert 0 <= found.offset <= len(text)
    else:
        assert parse_schema(found.ddl) == found


def test_synonyms_and_case_have_one_canonical_form() -> None:
    schema = parse_schema("a integer, b Long not null, `c` numeric(5, 2), d struct<x int, y: string>, e dec")
    assert schema.ddl == (
        "`a` INT, `b` BIGINT NOT NULL, `c` DECIMAL(5,2), `d` STRUCT<`x`:INT,`y`:STRING>, `e` DECIMAL(10,0)"
    )


@pytest.mark.parametrize(
    ("text", "fact", "hint"),
    [
        ("", "expected a column name", ""),
        ("a", "expected a type", ""),
        ("a INTT", "'INTT' is not a type", "did you mean 'INT'"),
        ("a VARCHAR(10)", "'VARCHAR' is not a type", "write STRING"),
        ("a INT b INT", "expected a comma or the end, found 'b'", ""),
        ("a INT COMMENT 'x'", "expected a comma", "COMMENT"),
        ("a INT,", "expected a column name", ""),
        ("a INT, A STRING", "column 'A' is declared twice", "case"),
        ("a DECIMAL(39,0)", "DECIMAL(39,0) is not possible", "1 to 38"),
        ("a DECIMAL(3,4)", "DECIMAL(3,4) is not possible", ""),
        ("a ARRAY<INT", "expected '>'", ""),
        ("a INT NOT", "expected NULL after NOT", ""),
        ("a INT; DROP TABLE x", "character ';' has no meaning", ""),
        ("a' INT", "has no meaning", ""),
        ("na-ve INT", "has no meaning", ""),
        ("`a b` INT", "'a b' is not a column name", ""),
        ("`a``b` INT", "expected a type", ""),
        ("a" * 129 + " INT", "is not a column name", "128"),
        ("a " + "ARRAY<" * 30 + "INT" + ">" * 30, "nested more than", ""),
        ("a INT, " * 20_000, "characters", "split"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(text: str, fact: str, hint: str) -> None:
    with pytest.raises(SchemaInvalid) as caught:
        parse_schema(text)
    assert fact in caught.value.fact
    assert hint in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", sorted(RESERVED) + ["_TXN", "_Op"])
def test_reserved_names_are_refused_as_columns_but_not_inside_a_struct(name: str) -> None:
    with pytest.raises(SchemaInvalid, match="reserved"):
        parse_schema(f"id INT, {name} STRING")
    assert parse_schema(f"id INT, s STRUCT<{name}: STRING>")
