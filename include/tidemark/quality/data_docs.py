"""Self-contained pages for Data Docs.

Great Expectations' pages load styles and scripts from public addresses, and such a script draws the index:
without internet access it is empty. Here the index is a plain table, and the other pages have no external
resources. Content that a script would collapse is always shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any, Final

from great_expectations.render.view.view import DefaultJinjaIndexPageView, DefaultJinjaPageView

_LINK: Final = "_table_row_link_path"
_FOREIGN: Final = re.compile(
    r"<script\b.*?</script>|<footer\b.*?</footer>"
    r"|<(?:link|img|source)\b[^>]*?[\"']https?://[^>]*>",
    re.DOTALL | re.IGNORECASE,
)
_FOREIGN_IMAGE: Final = re.compile(r"url\([\"']?https?://[^)]*\)", re.IGNORECASE)
_STYLE: Final = """\
<style>
  body { font-family: sans-serif; margin: 1.5rem auto; max-width: 80rem; padding: 0 1rem; color: #222; }
  table { border-collapse: collapse; margin: 0.5rem 0; }
  th, td { border: 1px solid #ccc; padding: 0.3rem 0.6rem; text-align: left; vertical-align: top; }
  ul { padding-left: 1.2rem; }
  .fa-check-circle::before { content: "\\2713"; color: #17803d; font-style: normal; }
  .fa-times::before { content: "\\2717"; color: #b3261e; font-style: normal; }
  .sticky, .navbar button, .modal { display: none; }
  .identical { color: #17803d; }
  .failed { color: #b3261e; }
</style>
"""


def self_contained(page: str) -> str:
    """The page without external resources, and with its own style."""
    own = _FOREIGN_IMAGE.sub("none", _FOREIGN.sub("", page))
    return own.replace("</head>", f"{_STYLE}</head>", 1)


class PlainPage(DefaultJinjaPageView):
    """Great Expectations' page of a result, without external resources."""

    def render(self, document: Any, template: str | None = None, **kwargs: Any) -> str:
        page = super().render(document, template, **kwargs)  # type: ignore[no-untyped-call]
        return self_contained(page)


class PlainIndex(DefaultJinjaIndexPageView):
    """The list of results, newest first, as a plain table."""

    def render(self, document: Any, template: str | None = None, **kwargs: Any) -> str:
        rows = sorted(_rows(document.to_json_dict()), key=lambda row: row["_run_time_sort"], reverse=True)
        listed = "\n".join(_row(row) for row in rows) or "<tr><td colspan='4'>no results yet</td></tr>"
        return f"""\
<!DOCTYPE html>
<html>
<head><meta charset="UTF-8"><title>Data Docs</title>
{_STYLE}</head>
<body>
<h1>Data Docs</h1>
<table>
<tr><th>Status</th><th>Transactions</th><th>Checked</th><th>Suite</th></tr>
{listed}
</table>
</body>
</html>
"""


def _rows(content: Any) -> Iterator[dict[str, Any]]:
    """The rows of the index, found at any depth of Great Expectations' document."""
    if isinstance(content, dict):
        if _LINK in content:
            yield content
        else:
            for value in content.values():
                yield from _rows(value)
    elif isinstance(content, list):
        for value in content:
            yield from _rows(value)


def _row(row: dict[str, Any]) -> str:
    status = str(row["_validation_success_text"])
    kind = "failed" if status.lower() == "failed" else "identical"
    name, link = escape(str(row["run_name"])), escape(str(row[_LINK]), quote=True)
    suite = escape(str(row["_expectation_suite_name_sort"]))
    return (
        f'<tr><td class="{kind}">{escape(status)}</td><td><a href="{link}">{name}</a></td>'
        f"<td>{escape(str(row['run_time']))}</td><td>{suite}</td></tr>"
    )
