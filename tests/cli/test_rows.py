"""Rows as `read` shows them, without Spark: every digit of every decimal."""

from __future__ import annotations

import json

from pyspark.sql.types import StructType

from tidemark.cli.rows import row_of

NUMBER = "123456789012345678901234567890.12"
DECIMAL = "decimal(38,2)"


def schema(**kinds: object) -> StructType:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return StructType.fromJson({"type": "struct", "fields": fields})


def test_regression_decimals_inside_of_other_values_keep_their_digits() -> None:
    inner = json.loads(schema(d=DECIMAL, x="double", n="long").json())
    rows = {"type": "array", "elementType": inner, "containsNull": True}
    named = {"type": "map", "keyType": "string", "valueType": DECIMAL, "valueContainsNull": True}
    text = (
        f'{{"s": {{"d": {NUMBER}, "x": 0.1, "n": 9007199254740993}}, "a": [{{"d": 0E-10}}, null],'
        f' "m": {{"k": {NUMBER}, "none": null}}}}'
    )
    assert row_of(text, schema(s=inner, a=rows, m=named)) == {
        "s": {"d": NUMBER, "x": 0.1, "n": 9007199254740993},
        "a": [{"d": "0.0000000000"}, None],
        "m": {"k": NUMBER, "none": None},
    }


def test_numbers_of_other_types_stay_numbers_and_texts_stay_as_they_are() -> None:
    found = row_of(
        f'{{"d": "{NUMBER}", "n": 1, "x": 1.0, "f": 1.5E10, "odd": "NaN", "t": "1.50", "b": true}}',
        schema(
            d=DECIMAL, n="integer", x="double", f="float", odd="double", t="string", b="boolean", gone="date"
        ),
    )
    assert found == {"d": NUMBER, "n": 1, "x": 1.0, "f": 1.5e10, "odd": "NaN", "t": "1.50", "b": True}
    assert (type(found["n"]), type(found["x"])) == (int, float)
