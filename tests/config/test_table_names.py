"""Names of tables and columns as SQL writes them in quotes (scenario Q5)."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from tidemark.config.base import TablePattern, parts_of
from tidemark.config.schema import parse_schema
from tidemark.config.shard import matches_any, shard_name_of
from tidemark.core.ids import checked_name
from tidemark.sources.postgres.pgoutput import Relation, RelationColumn, plain_name


class Named(BaseModel):
    table: TablePattern


@pytest.mark.parametrize(
    ("schema", "table", "name", "shard"),
    [
        ("public", "orders", "public.orders", "public__orders"),
        ("public", "odd table", "public.odd table", "public__odd_table"),
        ("public", "Größe", "public.Größe", "public__gro_e"),
        ("Été", "1st", "Été.1st", "ete__1st"),
        ("public", "a.b", 'public."a.b"', "public__a__b"),
        ("a.b", 'c"d', '"a.b"."c""d"', "a__b__cd"),
        ("public", "tag[0]", "public.tag[0]", "public__tag_0_"),
        ("数", "表", "数.表", "t____"),
    ],
)
def test_q5_a_table_is_named_in_one_way_and_goes_to_a_shard_with_a_plain_name(
    schema: str, table: str, name: str, shard: str
) -> None:
    assert Relation(1, schema, table, "d", ()).name == name
    assert Named(table=name).table == name
    assert parts_of(name) == 2
    assert matches_any(name, (name,))
    assert checked_name(shard_name_of(name), what="shard") == shard


@pytest.mark.parametrize("name", ["", "a..b", 'a."b', "a.b\n", ".a", "a. b", "a.b.c.d"])
def test_what_is_no_name_of_a_table_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="is not a table name"):
        Named(table=name)


def test_q5_columns_keep_letters_of_any_script_and_nothing_that_a_delta_table_cannot_have() -> None:
    names = {"Col One": "Col_One", "größe": "größe", "a.b": "a_b", 'q"': "q_", "1st": "_1st", "名": "名"}
    assert {name: plain_name(name) for name in names} == names
    assert RelationColumn("a b", 23, -1, False).plain == "a_b"
    schema = parse_schema("größe INT, `名` STRING")
    assert parse_schema(schema.ddl) == schema
