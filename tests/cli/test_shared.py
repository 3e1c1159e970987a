"""What the commands share."""

from __future__ import annotations

import pytest

from tidemark.cli.shared import rows_text
from tidemark.core.checksum import Digest
from tidemark.core.ids import ShardId
from tidemark.core.seal import Part, ShardParts


@pytest.mark.parametrize(
    ("deletes", "text"),
    [(None, "t 2"), (0, "t 2"), (1, "t 2 (1 delete)"), (2, "t 2 (2 deletes)")],
)
def test_deletes_are_counted_in_words_that_fit(deletes: int | None, text: str) -> None:
    added = ShardParts((Part("p", 2, 9),), Digest.of([1, 2]), deletes=deletes)
    assert rows_text({ShardId("t"): added}) == text
