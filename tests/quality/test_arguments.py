"""What the configuration says of Great Expectations' checks is what the installed library says."""

from __future__ import annotations

import pytest

from tidemark.config.expectations import ARGUMENTS
from tidemark.quality import engine

# What every expectation takes, and no pipeline file may give: SQL, result formats, notes.
_NOT_FOR_FILES = {
    *("batch_id", "catch_exceptions", "condition_parser", "description", "id", "library_metadata", "meta"),
    *("notes", "rendered_content", "result_format", "row_condition", "severity", "windows"),
}


@pytest.mark.slow
def test_each_known_expectation_takes_the_arguments_that_the_library_takes() -> None:
    engine.load()
    from great_expectations.expectations.registry import get_expectation_impl

    for kind, listed in ARGUMENTS.items():
        fields = get_expectation_impl(kind).__fields__
        found = {
            f"{name}!" if field.required else name
            for name, field in fields.items()
            if name not in _NOT_FOR_FILES
        }
        assert set(listed.split()) == found, kind
