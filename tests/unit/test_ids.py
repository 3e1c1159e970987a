"""Names and numbers."""

from __future__ import annotations

import pytest

from tidemark.core.errors import InvalidUsage
from tidemark.core.ids import NAME_CHARACTERS_MAX, TXN_FIRST, TXN_NONE, checked_name, next_txn


def test_transactions_count_from_one() -> None:
    assert next_txn(TXN_NONE) == TXN_FIRST == 1


@pytest.mark.parametrize("name", ["a", "orders", "orders_2", "a" * NAME_CHARACTERS_MAX])
def test_a_name_is_lowercase_letters_digits_and_underscores(name: str) -> None:
    assert checked_name(name, what="shard") == name


@pytest.mark.parametrize(
    "name",
    ["", "A", "2a", "_a", "a-b", "a.b", "../a", "a/b", "a b", "a\n", "é", "a" * (NAME_CHARACTERS_MAX + 1)],
)
def test_anything_else_is_refused(name: str) -> None:
    with pytest.raises(InvalidUsage, match=r"shard '.*' is not a name: use a lowercase letter") as error:
        checked_name(name, what="shard")
    assert len(str(error.value)) < 300
