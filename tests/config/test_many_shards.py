"""Configurations of many shards: as many steps as there are shards, and the same answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.config import PipelineConfig
from tidemark.config.shard import ShardConfig, Tables
from tidemark.core.errors import TidemarkError

SHARD = {"schema": "id INT", "keys": ["id"]}
TABLES = [".".join(parts) for count in (1, 2, 3) for parts in product("ab", repeat=count)]


def config(tables: list[str]) -> PipelineConfig:
    shards = [{"name": f"s{at}", "route": {"table": table}, **SHARD} for at, table in enumerate(tables)]
    source = {"type": "files", "path": "in", "format": "json"}
    return PipelineConfig.model_validate(
        {"name": "p", "source": source, "envelope": "debezium", "shards": shards}
    )


def calls_in(work: Callable[[], object]) -> int:
    """How many functions the work calls: a cost that no machine's speed changes."""
    counted = 0

    def count(*_: object) -> None:
        nonlocal counted
        counted += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize(
    "work",
    [
        config,
        lambda tables: [one.shard(f"s{at}") for one in [config(tables)] for at in range(len(tables))],
        lambda tables: [one.shard_for_table(name) for one in [config(tables)] for name in tables],
        lambda tables: [one.takes(name) for one in [Tables(include=tuple(tables))] for name in tables],
    ],
    ids=["built", "shards by name", "shards by table", "tables taken"],
)
def test_regression_ten_times_the_shards_cost_ten_times_as_much(
    work: Callable[[list[str]], object],
) -> None:
    few, many = ([f"public.t{at}" for at in range(count)] for count in (50, 500))
    work(few)
    assert calls_in(lambda: work(many)) < 11 * calls_in(lambda: work(few))


@given(
    st.lists(st.sampled_from([".".join(p) for n in (1, 2, 3) for p in product("ab", repeat=n)]), max_size=4)
)
def test_routes_overlap_where_one_table_is_the_end_of_another(tables: list[str]) -> None:
    def overlap(one: str, other: str) -> bool:
        return f".{one}".endswith(f".{other}") or f".{other}".endswith(f".{one}")

    overlapping = [
        (at, min(before for before in range(at) if overlap(tables[before], tables[at])))
        for at in range(len(tables))
        if any(overlap(tables[before], tables[at]) for before in range(at))
    ]
    try:
        config(tables)
        said = ""
    except (TidemarkError, ValueError) as error:
        said = str(error)
    for _, other in overlapping:
        assert f"shards[{other}] takes the same records" in said
    assert ("takes the same records" in said) == bool(overlapping)


def test_a_lookup_makes_no_difference_between_configurations_and_a_copy_has_its_own() -> None:
    one, other = config(["a", "b"]), config(["a", "b"])
    assert one.shard("s1").name == "s1"
    assert one.shard_for_table("public.b") is one.shards[1]
    assert one == other
    fewer = one.model_copy(update={"shards": one.shards[:1]})
    assert fewer.shard_for_table("b") is None
    assert isinstance(one.shard("s1"), ShardConfig)
    with pytest.raises(TidemarkError, match="has no shard 's1'"):
        fewer.shard("s1")
