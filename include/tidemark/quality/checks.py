"""What the gate checks by Great Expectations: recorded and found digests, and the user's expectations.

Digests are a table of one row for each transaction and endpoint. It has counts and digests, never rows of
data. Core decides and Great Expectations documents. The two must agree on every endpoint: if they differ, one
of them is wrong, and nothing may be sealed.

Expectations run on Spark, on staged rows. A suite sees the upserted rows, with the declared columns.
Deletions have only keys and would look like rows full of NULLs, so they are left out.

Values of rows leave Spark only in aggregates. Results have counts. An observed value is kept only if it is an
aggregate, such as a count, share, mean or sum, or part of the schema, and no column of the expectation is
masked. An exception is reduced to its kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidemark.config.row_rules import broken_when, described
from tidemark.config.shard import Expectation, ShardConfig
from tidemark.core.checksum import Digest, Digests, compare
from tidemark.core.errors import InvariantViolation
from tidemark.core.ids import ShardId, Txn
from tidemark.core.replay import Finding, judge
from tidemark.core.seal import Opinion
from tidemark.core.text import amount
from tidemark.quality import engine

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuiteValidationResult, ExpectationValidationResult
    from great_expectations.expectations.expectation import Expectation as LibraryExpectation
    from pyspark.sql import DataFrame


SUITE: Final = "digests"
COLUMNS: Final = (*("txn", "endpoint", "recorded_count", "found_count", "recorded_digest", "found_digest"),)
# Results may be complete, because the table has no values of rows.
_DIGEST_RESULTS: Final = {"result_format": "COMPLETE", "unexpected_index_column_names": ["txn", "endpoint"]}

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
        frame, _suite(len(rows)), site=site, engine="pandas", name=SUITE, result_format=_DIGEST_RESULTS
    )


def _suite(row_count: int) -> list[LibraryExpectation]:
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


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of one expectation on one shard's staged rows.

    `detail` is the observed value, or why the expectation could not be evaluated; it never has a value of a
    row. `broken_when` is, for the action quarantine, the SQL condition for the rows that break it.
    """

    shard: ShardId
    expectation: str
    action: str
    success: bool
    unexpected_count: int | None = None
    element_count: int | None = None
    detail: str = ""
    broken_when: str = ""

    def __str__(self) -> str:
        counted = self.unexpected_count is not None and self.element_count is not None
        counts = f"{self.unexpected_count} of {self.element_count} rows break it" if counted else ""
        why = "; ".join(part for part in (counts, self.detail) if part) or "does not hold"
        return f"shard {self.shard}: {self.expectation}: {'holds' if self.success else why}"


def opinion_of(checked: Sequence[Checked]) -> Opinion:
    """The effect of the results on the gate: failures, shards to pause, and warnings."""
    broken = [one for one in checked if not one.success]
    reasons: dict[ShardId, list[str]] = {}
    for one in broken:
        if one.action == "pause":
            reasons.setdefault(one.shard, []).append(_reason(one))
    return Opinion(
        # Staging has quarantined the rows that break such an expectation, so it must hold now.
        failed=tuple(str(one) for one in broken if one.action in ("fail", "quarantine")),
        held={shard: "; ".join(found) for shard, found in reasons.items()},
        warned=tuple(str(one) for one in broken if one.action == "warn"),
        checked=len(checked),
    )


def _reason(checked: Checked) -> str:
    count = "" if checked.unexpected_count is None else f", {amount(checked.unexpected_count, 'row')}"
    return f"{checked.expectation}{count}"


# Counts without unexpected values: with a limit of 0, Spark runs no job for them.
_ROW_RESULTS: Final = {"result_format": "BASIC", "partial_unexpected_count": 0}
_COUNTS: Final = frozenset(
    {"element_count", "unexpected_count", "unexpected_percent", "missing_count", "missing_percent"}
    | {"unexpected_percent_total", "unexpected_percent_nonmissing"}
)
# The observed value comes from many rows or from the schema. A maximum would be the value of a single row.
_OBSERVED: Final = frozenset(
    {
        "expect_column_mean_to_be_between",
        "expect_column_proportion_of_non_null_values_to_be_between",
        "expect_column_proportion_of_unique_values_to_be_between",
        "expect_column_stdev_to_be_between",
        "expect_column_sum_to_be_between",
        "expect_column_type_to_be",
        "expect_column_unique_value_count_to_be_between",
        "expect_column_values_to_be_in_type_list",
        "expect_column_values_to_be_of_type",
        "expect_table_column_count_to_be_between",
        "expect_table_column_count_to_equal",
        "expect_table_columns_to_match_ordered_list",
        "expect_table_columns_to_match_set",
        "expect_table_row_count_to_be_between",
        "expect_table_row_count_to_equal",
    }
)
_POSITION: Final = "position"
# Matched at the beginning only, because the rest of a message may quote a row.
_ERROR_CLASS = re.compile(r"\s*(?:[\w.]+(?:Error|Exception):\s*)?\[([A-Z][A-Z0-9_]{3,}(?:\.[A-Z0-9_]+)*)\]")
_ERROR_NAME = re.compile(r"^(?:\w+\.)*([A-Z]\w*(?:Error|Exception))(?::|$)", re.MULTILINE)


def check_rows(
    frame_of: Callable[[ShardId], DataFrame],
    shards: Sequence[ShardConfig],
    *,
    txn: Txn,
    site: Path | None,
) -> tuple[Checked, ...]:
    """The results of each shard's suite on its staged rows, in the order of declaration.

    The rows of a shard without expectations are not read. An expectation that can't be evaluated has
    failed."""
    checked: list[Checked] = []
    documents: list[ExpectationSuiteValidationResult] = []
    for shard in shards:
        if not shard.expectations:
            continue
        rows = frame_of(ShardId(shard.name)).where("_op = 'U'").select(*shard.columns.names)
        found, document = _check_shard(shard, rows, site)
        checked += found
        documents += document
    if site is not None and documents:
        engine.document(documents, site=site, run_name=run_name(txn))
    return tuple(checked)


def _check_shard(
    shard: ShardConfig, rows: DataFrame, site: Path | None
) -> tuple[list[Checked], list[ExpectationSuiteValidationResult]]:
    built, refused = _built(shard.expectations)
    if not built:
        return [_refused(shard, position, refused) for position in sorted(refused)], []
    name = f"rows-{shard.name}"
    result = engine.validate(rows, built, site=site, engine="spark", name=name, result_format=_ROW_RESULTS)
    stripped = {_position_of(one): _stripped(one, shard) for one in result.results}
    result.results = [stripped[position] for position in sorted(stripped)]
    checked = [
        _checked(shard, shard.expectations[position], stripped[position])
        if position in stripped
        else _refused(shard, position, refused)
        for position in range(len(shard.expectations))
    ]
    return checked, [result]


def _built(expectations: Sequence[Expectation]) -> tuple[list[LibraryExpectation], Mapping[int, str]]:
    """The library's objects, and by position the reasons why others can't be built."""
    built: list[LibraryExpectation] = []
    refused: dict[int, str] = {}
    for position, expectation in enumerate(expectations):
        meta = {_POSITION: position, "action": expectation.action}
        try:
            made = engine.expectation(expectation.type, expectation.kwargs, meta)
        except Exception as error:  # The message may be shown: it comes from the file's kwargs, not a row.
            refused[position] = " ".join(str(error).split())[:300]
        else:
            built.append(made)
    return built, refused


def _position_of(result: ExpectationValidationResult) -> int:
    config = result.expectation_config
    meta = (config.meta if config is not None else None) or {}
    return int(meta[_POSITION])


def _stripped(result: ExpectationValidationResult, shard: ShardConfig) -> ExpectationValidationResult:
    """The result without values of rows."""
    expectation = shard.expectations[_position_of(result)]
    kept = {key: value for key, value in result.result.items() if key in _COUNTS}
    is_masked = not set(shard.masked).isdisjoint(expectation.columns)
    if expectation.type in _OBSERVED and not is_masked and "observed_value" in result.result:
        kept["observed_value"] = result.result["observed_value"]
    problem = "; ".join(sorted(set(exception_kinds(result.exception_info))))
    result.result = kept
    result.exception_info = {
        "raised_exception": bool(problem),
        "exception_message": problem or None,
        "exception_traceback": None,
    }
    return result


def exception_kinds(info: Mapping[str, Any] | None) -> Iterator[str]:
    """The kinds of the raised exceptions; there may be one, or one for each metric."""
    if not info:
        return
    if "raised_exception" in info:
        if info["raised_exception"]:
            message, trace = (str(info.get(f"exception_{part}") or "") for part in ("message", "traceback"))
            kind = _ERROR_CLASS.match(message) or _ERROR_NAME.search(trace)
            yield f"could not be evaluated, {kind[1] if kind else 'an exception was raised'}"
        return
    for inner in info.values():
        if isinstance(inner, Mapping):
            yield from exception_kinds(inner)


def _checked(shard: ShardConfig, expectation: Expectation, result: ExpectationValidationResult) -> Checked:
    detail = str((result.exception_info or {}).get("exception_message") or "")
    if not detail and "observed_value" in result.result:
        detail = f"observed {result.result['observed_value']}"
    return Checked(
        shard=ShardId(shard.name),
        expectation=described(expectation),
        action=expectation.action,
        success=bool(result.success),
        unexpected_count=result.result.get("unexpected_count"),
        element_count=result.result.get("element_count"),
        detail=detail,
        broken_when=_condition(expectation),
    )


def _refused(shard: ShardConfig, position: int, refused: Mapping[int, str]) -> Checked:
    expectation = shard.expectations[position]
    why = refused.get(position, "great expectations gave no result for it")
    return Checked(
        shard=ShardId(shard.name),
        expectation=described(expectation),
        action=expectation.action,
        success=False,
        detail=f"could not be evaluated, {why}",
        broken_when=_condition(expectation),
    )


def _condition(expectation: Expectation) -> str:
    return (broken_when(expectation) or "") if expectation.action == "quarantine" else ""
