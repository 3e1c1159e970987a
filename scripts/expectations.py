"""Read the signatures of Great Expectations' checks into the data file that pipeline files are checked with.

`make expectations` writes it again from the installed version; a test compares the two. The library itself is
too slow to import for every check of a pipeline file, and a reader's environment doesn't have it.

An expectation that a new version brings gets into the file by itself: look at the difference, and name it in
`LEFT_OUT` when a pipeline file must not name it.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic.v1 import BaseModel

from tidemark.config.expectations import data_file
from tidemark.quality import engine

LEFT_OUT: Final = {
    "expect_column_kl_divergence_to_be_less_than": "a statistical test",
    "expect_column_values_to_be_dateutil_parseable": "not on Spark",
    "expect_column_values_to_be_decreasing": "needs an order of rows",
    "expect_column_values_to_be_increasing": "needs an order of rows",
    "expect_column_values_to_match_json_schema": "runs Python for each row",
    "expect_column_values_to_match_like_pattern": "not on Spark",
    "expect_column_values_to_match_like_pattern_list": "not on Spark",
    "expect_column_values_to_not_match_like_pattern": "not on Spark",
    "expect_column_values_to_not_match_like_pattern_list": "not on Spark",
    "expect_query_results_to_match_comparison": "takes SQL",
    "expect_table_row_count_to_equal_other_table": "needs a second table",
    "unexpected_rows_expectation": "takes SQL",
}
# Every expectation takes these, and no pipeline file may give them: SQL, result formats, notes.
_NOT_FOR_FILES: Final = {
    *("batch_id", "catch_exceptions", "condition_parser", "description", "id", "library_metadata", "meta"),
    *("notes", "rendered_content", "result_format", "row_condition", "severity", "windows"),
}
# In this order: a flag is an integer too, and a text is a sequence.
_KINDS: Final[dict[str, Any]] = {
    "flag": bool,
    "text": str,
    "integer": int,
    "number": float,
    "mapping": (Mapping, BaseModel),
    "list": Sequence,
}
# Where the library's type says less than the check itself takes.
_NARROWER: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("expect_column_value_lengths_to_equal", "value"): {"type": "integer"},
    ("expect_select_column_values_to_be_unique_within_record", "ignore_row_if"): {
        "words": ["all_values_are_missing", "any_value_is_missing", "never"]
    },
}


def rendered() -> str:
    """The data file's text, of the installed version: one line for each expectation."""
    library = engine.load()
    from great_expectations.expectations.registry import (
        get_expectation_impl,
        list_registered_expectation_implementations,
    )

    kinds = sorted(set(list_registered_expectation_implementations()) - LEFT_OUT.keys())
    lines = [
        f"  {json.dumps(kind)}: {json.dumps(_signature(kind, get_expectation_impl(kind)))}" for kind in kinds
    ]
    version = json.dumps(library.__version__)
    return f'{{"great_expectations": {version}, "expectations": {{\n' + ",\n".join(lines) + "\n}}\n"


def _signature(kind: str, implementation: Any) -> dict[str, dict[str, Any]]:
    return {
        name: {**_argument(field), **_NARROWER.get((kind, name), {})}
        for name, field in implementation.__fields__.items()
        if name not in _NOT_FOR_FILES
    }


def _argument(field: Any) -> dict[str, Any]:
    found: dict[str, Any] = _type(field.outer_type_)
    if field.required:
        found["required"] = True
    elif field.default is not None:
        found["default"] = field.default
    if field.allow_none:
        found["nullable"] = True
    return found


def _type(annotation: Any) -> dict[str, Any]:
    """The first type of a union. A mapping beside others stands for a parameter, which no file has."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, types.UnionType):
        return _type(arguments[0])
    if origin is Literal:
        return {"type": "text", "words": list(arguments)}
    plain = origin or annotation
    for name, kinds in _KINDS.items():
        if isinstance(plain, type) and issubclass(plain, kinds):
            return {"type": name}
    raise TypeError(f"{annotation} has no name in the data file: add it to _KINDS")


def main() -> None:
    path = Path(str(data_file()))
    path.write_text(rendered(), encoding="utf-8")
    print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
