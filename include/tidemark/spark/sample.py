"""A sample of the rows that differ between a transaction's input and its parts, by key.

Both sides are combined by a union and grouped by key, so a NULL part equals a NULL part (U13). Columns are
compared by their hashes, as in digests, so that every change of a digest is found, in any type. Only the
limited sample reaches the driver, as truncated text; text of masked columns is never produced. A masked key
is a digest with a salt of this sample: it tells keys apart, and no key can be looked up by it.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StructField, StructType

from tidemark.config.shard import ShardConfig
from tidemark.core.ids import ShardId, Txn
from tidemark.core.replay import Difference
from tidemark.spark.columns import literal, quoted
from tidemark.spark.decode import hashed_columns
from tidemark.spark.digest import row_hash_sql

MASK: Final = "***"
DIGEST_CHARACTERS: Final = 8
VALUE_CHARACTERS_MAX: Final = 80
INPUT, TABLE = "input", "table"

_SIDE: Final = "_tidemark_side"
_HASH: Final = "_tidemark_hash"
_HASHES: Final = "_tidemark_hashes"
_TEXTS: Final = "_tidemark_texts"
_KEY: Final = "_tidemark_key_"


@dataclass(frozen=True, slots=True)
class Sampler:
    """Compares and shows the rows of one shard in one transaction. `sides` names the two sides, for people.

    With the append envelope there are no keys, and the whole row is the key."""

    shard: ShardConfig
    txn: Txn
    keys: Sequence[str]
    masked: Collection[str]
    sides: tuple[str, str] = (INPUT, TABLE)
    salt: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def fields(self) -> list[StructField]:
        return list(hashed_columns(self.shard).fields)

    def differing(
        self, given: DataFrame | None, kept: DataFrame | None, *, parts: int, limit: int
    ) -> tuple[Difference, ...]:
        """Up to `limit` keys, in key order, whose rows differ between the two sides."""
        sides = [(INPUT, given), (TABLE, kept)]
        there = [self._side(side, frame) for side, frame in sides if frame is not None]
        if not there:
            return ()
        both = there[0] if len(there) == 1 else there[0].unionAll(there[1])
        keys = [name for name in both.columns if name.startswith(_KEY)] or [_HASH]
        counted = both.repartition(parts or 1, *keys).groupBy(*keys).agg(*_counts())
        differs = f"{INPUT}_count != {TABLE}_count OR NOT {INPUT}_hash <=> {TABLE}_hash"
        sample = counted.where(differs).orderBy(*keys).drop(*keys).limit(limit).collect()
        return tuple(self._difference(row.asDict(recursive=True)) for row in sample)

    def _side(self, side: str, frame: DataFrame) -> DataFrame:
        hashes = ", ".join(row_hash_sql(StructType([field])) for field in self.fields)
        texts = ", ".join(map(self._text, self.fields))
        keys = [f"{quoted(key)} AS {_KEY}{index}" for index, key in enumerate(self.keys)]
        return frame.selectExpr(
            f"{literal(side)} AS {_SIDE}",
            f"{row_hash_sql(StructType(self.fields))} AS {_HASH}",
            f"array({hashes}) AS {_HASHES}",
            f"array({texts}) AS {_TEXTS}",
            *keys,
        )

    def _text(self, field: StructField) -> str:
        name = quoted(field.name)
        text = f"hex({name})" if isinstance(field.dataType, BinaryType) else f"cast({name} as string)"
        if field.name not in self.masked:
            return f"substring({text}, 1, {VALUE_CHARACTERS_MAX})"
        if field.name not in self.keys:
            return literal(MASK)
        digest = f"sha2(concat_ws('', {literal(self.salt)}, {text}), 256)"
        return f"concat({literal(MASK)}, substring({digest}, 1, {DIGEST_CHARACTERS}))"

    def _difference(self, found: dict[str, Any]) -> Difference:
        names = [field.name for field in self.fields]  # The operation is the last one.
        counts = {side: found[f"{side}_count"] for side in (INPUT, TABLE)}
        rows = {side: found[f"{side}_row"] for side in (INPUT, TABLE) if counts[side]}
        texts = {side: dict(zip(names, row[_TEXTS], strict=True)) for side, row in rows.items()}
        known = next(iter(texts.values()))
        key = {name: known[name] for name in self.keys or names[:-1]}
        shard, txn, (ours, theirs) = ShardId(self.shard.name), self.txn, self.sides
        keyed = bool(self.keys)
        if len(rows) == 1:
            what = f"only in the {ours if INPUT in rows else theirs}"
            return Difference(txn, shard, key, what, is_keyed=keyed)
        hashed = zip(names, rows[INPUT][_HASHES], rows[TABLE][_HASHES], strict=True)
        changed = [name for name, one, other in hashed if one != other]
        times = f"{counts[INPUT]} times in the {ours}, {counts[TABLE]} times in the {theirs}"
        changes = [", ".join(changed)] if changed else []
        values = {name: (texts[INPUT][name], texts[TABLE][name]) for name in changed}
        several = [times] if counts[INPUT] != counts[TABLE] else []
        return Difference(txn, shard, key, "; ".join([*changes, *several]), values, keyed)


def _counts() -> list[Any]:
    """Aggregates per key and side: the number of rows, their combined hash, and the first row by its text."""
    found = []
    for side in (INPUT, TABLE):
        here = f"{_SIDE} = {literal(side)}"
        row = f"struct({_HASHES}, {_TEXTS})"
        found += [
            F.expr(f"count_if({here}) AS {side}_count"),
            F.expr(f"bit_xor(CASE WHEN {here} THEN {_HASH} END) AS {side}_hash"),
            F.expr(f"min(CASE WHEN {here} THEN {row} END) AS {side}_row"),
        ]
    return found
