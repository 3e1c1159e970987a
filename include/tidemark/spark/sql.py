"""SQL text made by code: quoted names and literals.

Expressions over many columns are written as text and parsed by Spark once. Built column by column through
Python, one transaction took more than five thousand calls into the JVM, and half of a small one's time.
Nothing of a pipeline file gets in here but through these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def quoted(name: str) -> str:
    """A column name that Spark takes as it is, with dots, spaces and backticks in it."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str | int | bool) -> str:
    """A value as SQL writes it. Text assumes the default of `spark.sql.parser.escapedStringLiterals`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value}L"
    escaped = "".join(_ESCAPED.get(character, character) for character in value)
    return f"'{escaped}'"


# A dollar might begin a `${variable}`, which Spark would put in.
_ESCAPED = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0", "$": "\\u0024"}


def texts(values: Sequence[str]) -> str:
    """An array of texts."""
    if not values:
        return "cast(array() as array<string>)"
    return f"array({', '.join(map(literal, values))})"


def coalesced(values: Iterable[str]) -> str:
    """The first of these that is not NULL."""
    return f"coalesce({', '.join(values)}, cast(null as string))"


def case(condition: str, value: str) -> str:
    """The value where the condition holds, else NULL."""
    return f"CASE WHEN {condition} THEN {value} END"


def bytes_text(value: str) -> str:
    """Bytes as text that gives them back: as they are where they are UTF-8, else as `base64:…`."""
    text = f"cast({value} as string)"
    is_text = f"isnull({value}) OR is_valid_utf8({text})"
    return f"CASE WHEN {is_text} THEN {text} ELSE concat('base64:', base64({value})) END"


def opaque(value: int, *, beside: str) -> str:
    """A number that stays out of the code which Spark generates, since the next transaction has another.

    A literal would be written into that code, so every transaction's would be compiled anew. `beside` names
    a column that is never negative; Spark can't know that, and so can't fold the expression.
    """
    return f"get(from_json('[{value}]', 'array<bigint>'), cast({beside} < 0 as int))"


def key_text(values: Mapping[str, str]) -> str:
    """A key as JSON text, from expressions by name; equal for equal keys only, in any session's time zone."""
    fields = ", ".join(f"{value} AS {quoted(name)}" for name, value in values.items())
    return f"to_json(struct({fields}), {JSON_OPTIONS})"


_EXACT = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    # By default a timestamp's text ends at its milliseconds, and two values could have the same one.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
JSON_OPTIONS = f"map({', '.join(literal(text) for pair in _EXACT.items() for text in pair)})"
"""For `to_json`: a text that loses nothing, in any session's time zone."""
