"""Digests as a table for Great Expectations: one row for each transaction and endpoint.

The table has counts and digests, never rows of data. Core decides and Great Expectations documents. The two
must agree on every endpoint: if they differ, one of them is wrong, and nothing may be sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemark.core.checksum import Digest, Digests, compare
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import Txn
from tidemark.core.replay import Finding, judge
from tidemark.quality import engine

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuiteValidationResult
    from great_expectations.expectations.expectation import Expectation

SUITE: Final = "digests"
COLUMNS: Final = (*("txn", "endpoint", "recorded_count", "found_count", "recorded_digest", "found_digest"),)
# Results may be complete, because the table has no values of rows.
_RESULT_FORMAT: Final = {"result_format": "COMPLETE", "unexpected_index_column_names": ["txn", "endpoint"]}

Pair = tuple[Txn, Digests, Digests]
Row = tuple[str, str, str, str, str, str]


def check_digests(pairs: Sequence[Pair], *, site: Path | None) -> tuple[Finding, ...]:
    """The finding of `core.replay.judge` on each transaction, checked and documented by Great Expectations
    (Invariants 7 and 8). Raises `InvariantViolation` if the two disagree."""
    findings = tuple(judge(txn, recorded=recorded, found=found) for txn, recorded, found in pairs)
    rows = summary(pairs)
    result = _validated(rows, site)
    _require_agreement(pairs, findings, result)
    if site is not None and pairs:
        first, last = min(txn for txn, _, _ in pairs), max(txn for txn, _, _ in pairs)
        engine.document([result], site=site, run_name=run_name(first, last))
    return findings


def run_name(first: Txn, last: Txn | None = None) -> str:
    """The name of a transaction, or of a range of them, in Data Docs."""
    return f"txn-{first}" if last is None or last == first else f"txn-{first}-to-{last}"


def summary(pairs: Sequence[Pair]) -> list[Row]:
    """The rows of the table, as text. The fields of a side that lacks the endpoint are empty."""
    return [
        (
            str(txn),
            endpoint,
            *_count(recorded.get(endpoint), found.get(endpoint)),
            *_digest(recorded.get(endpoint), found.get(endpoint)),
        )
        for txn, recorded, found in pairs
        for endpoint in sorted({*recorded, *found})
    ]


def _count(recorded: Digest | None, found: Digest | None) -> tuple[str, str]:
    return "" if recorded is None else str(recorded.count), "" if found is None else str(found.count)


def _digest(recorded: Digest | None, found: Digest | None) -> tuple[str, str]:
    return "" if recorded is None else str(recorded), "" if found is None else str(found)


def _validated(rows: Sequence[Row], site: Path | None) -> ExpectationSuiteValidationResult:
    engine.load()
    import pandas

    # With another dtype, pandas could turn an empty text into a missing value.
    frame = pandas.DataFrame(list(rows), columns=list(COLUMNS), dtype=object)
    return engine.validate(
        frame, _suite(len(rows)), site=site, engine="pandas", name=SUITE, result_format=_RESULT_FORMAT
    )


def _suite(row_count: int) -> list[Expectation]:
    counts = {"column_A": "recorded_count", "column_B": "found_count"}
    digests = {"column_A": "recorded_digest", "column_B": "found_digest"}
    absent = [""]
    return [
        engine.expectation("expect_table_row_count_to_equal", {"value": row_count}),
        *(
            engine.expectation("expect_column_values_to_not_be_in_set", {"column": side, "value_set": absent})
            for side in digests.values()
        ),
        engine.expectation("expect_column_pair_values_to_be_equal", counts),
        engine.expectation("expect_column_pair_values_to_be_equal", digests),
    ]


def _require_agreement(
    pairs: Sequence[Pair], findings: Sequence[Finding], result: ExpectationSuiteValidationResult
) -> None:
    by_core = {
        (str(mismatch.txn), mismatch.endpoint)
        for txn, recorded, found in pairs
        for mismatch in compare(txn, recorded=recorded, found=found)
    }
    by_library = {
        (row["txn"], row["endpoint"])
        for one in result.results
        for row in one.result.get("unexpected_index_list") or ()
    }
    passed = all(finding.passed for finding in findings)
    if by_core != by_library or bool(result.success) != passed:
        parted = sorted(by_core ^ by_library)[:5]
        raise InvariantViolation(
            f"the gate's two comparisons disagree: core says {'passed' if passed else 'not passed'},"
            f" great expectations says {'passed' if result.success else 'not passed'}; they differ at"
            f" {parted}",
            hint="nothing was sealed; report this with the versions of `tidemark doctor`",
        )
