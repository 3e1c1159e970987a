"""How a line of CSV is cut into fields, and which lines can't be: the quotes of a field have to be closed.

Spark's parser has an answer for every line. A field whose quote is not closed on its line, because it goes on
in the next one or because a quote in it was not escaped, is taken as it stands, quote and all, and nobody is
told. So such a line is not given to the parser: it is a bad record as a whole, and its key is not known.
"""

from __future__ import annotations

import re

from tidemark.config import CsvOptions
from tidemark.spark.read import RAW
from tidemark.spark.sql import case, literal
from tidemark.spark.values import reader_options


def fields_of(schema: str, csv: CsvOptions) -> str:
    """The fields of a record as a struct, as SQL text; NULL where a quote is not closed."""
    options = {
        "sep": csv.delimiter,
        "quote": csv.quote,
        "escape": csv.escape or csv.quote,
        "nullValue": csv.null_value,
        "maxCharsPerColumn": "-1",
        "maxColumns": "20480",
    }
    return f"from_csv({case(f'NOT {unclosed(csv)}', RAW)}, {literal(schema)}, {reader_options(options)})"


def unclosed(csv: CsvOptions) -> str:
    """Whether a field begins with a quote and does not end with one. Most lines have no quote at all.

    What is well quoted is taken out; no other field may begin with a quote then. Quotes in the middle of a
    field that does not begin with one are text. The quantifiers never give back, so a line is read once.
    """
    delimiter, quote, escape = (re.escape(one) for one in (csv.delimiter, csv.quote, csv.escape or csv.quote))
    text = f"[^{quote}{escape}]*+"
    inner = quote + quote if escape == quote else f"{escape}."
    well_quoted = f"(?s)(\\A|{delimiter}){quote}{text}(?:{inner}{text})*+{quote}(?={delimiter}|\\z)"
    rest = f"regexp_replace({RAW}, {literal(well_quoted)}, '$1')"
    begun = f"(\\A|{delimiter}){quote}"
    return f"(contains({RAW}, {literal(csv.quote)}) AND {rest} rlike {literal(begun)})"
