"""Great Expectations, kept small: imported late, one context per process and site, no network, no noise.

Its import is the gate's largest cost, and most of that is compiling and loading libraries that only draw
charts and compare distributions. Those are put off until something asks for them, which none of the
expectations that a pipeline file may name does. Progress bars and log messages are off: an exception's text
may quote a row. The context is in memory; only the validation results that `document` is given reach a disk.

Old pages of Data Docs: which they are, and their removal. The verdicts themselves stay in the journal.

Needs no Great Expectations: the files' times tell their age, and the index is a plain table, of which the
rows go whose pages are gone.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from tidemark.core.extras import require

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuiteValidationResult
    from great_expectations.core.batch_definition import BatchDefinition
    from great_expectations.data_context.data_context.abstract_data_context import AbstractDataContext
    from great_expectations.expectations.expectation import Expectation


SITE: Final = "site"
RESULTS_ON_INDEX_MAX: Final = 200
"""The index page reads every result that it lists again."""

_PAGES: Final = "tidemark.quality.data_docs"
_LATER: Final = ("altair", "scipy.stats")
_QUERY_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's, which print every failed query with its message."""


class _Later(ModuleType):
    """Stands for a module that is imported when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        # `inspect` asks every module of the process for its __file__; that is not a use.
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _put_off(names: Sequence[str]) -> Iterator[None]:
    """Within, importing one of the modules costs nothing; nobody else sees the stand-ins afterwards."""
    placed = {name: _Later(name) for name in names if name not in sys.modules}
    sys.modules.update(placed)
    try:
        yield
    finally:
        for name, module in placed.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


@cache
def load() -> ModuleType:
    """The library, imported once, silent. The extra `quality`."""
    require("quality")
    # It tells of hundreds of types that it registers; in a task's log that hides what matters.
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    with _put_off(_LATER):
        import great_expectations
    return great_expectations


@cache
def context_for(site: Path | None) -> AbstractDataContext:
    """This process's context for a Data Docs site, or for none."""
    gx = load()
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    config = DataContextConfig(
        analytics_enabled=False,
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        progress_bars=ProgressBarsConfig(globally=False, metric_calculations=False),
    )
    if site is not None:
        config.stores[config.validation_results_store_name]["store_backend"] = _folder(site / "results")
        config.data_docs_sites = {
            SITE: {
                "class_name": "SiteBuilder",
                "show_how_to_buttons": False,
                "store_backend": _folder(site),
                "site_index_builder": {
                    "class_name": "DefaultSiteIndexBuilder",
                    "validation_results_limit": RESULTS_ON_INDEX_MAX,
                    "view": {"module_name": _PAGES, "class_name": "PlainIndex"},
                },
                "site_section_builders": {
                    "validations": {"view": {"module_name": _PAGES, "class_name": "PlainPage"}},
                    "expectations": "None",
                    "profiling": "None",
                },
            }
        }
    context: AbstractDataContext = gx.get_context(project_config=config, mode="ephemeral")
    return context


def _folder(path: Path) -> dict[str, object]:
    return {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(path)}


@cache
def batch_definition(site: Path | None, engine: str, asset: str) -> BatchDefinition[Any]:
    """How a DataFrame of `engine` (pandas or spark) is handed over, under the asset's name."""
    sources = context_for(site).data_sources
    if engine == "spark":
        # Persisting would copy the staged rows into memory, and nothing would ever release them.
        frames = sources.add_or_update_spark(f"{engine}_{asset}", persist=False).add_dataframe_asset(asset)
        return frames.add_batch_definition_whole_dataframe("all")
    tables = sources.add_or_update_pandas(f"{engine}_{asset}").add_dataframe_asset(asset)
    return tables.add_batch_definition_whole_dataframe("all")


def expectation(
    kind: str, kwargs: Mapping[str, Any], meta: Mapping[str, object] | None = None
) -> Expectation:
    """The library's own object for an expectation; raises what it raises when the kwargs don't fit."""
    load()
    from great_expectations.expectations.registry import get_expectation_impl

    build: Callable[..., Expectation] = get_expectation_impl(kind)
    return build(**kwargs, meta=dict(meta or {}))


def validate(
    frame: object,
    expectations: Sequence[Expectation],
    *,
    site: Path | None,
    engine: str,
    name: str,
    result_format: Mapping[str, object],
) -> ExpectationSuiteValidationResult:
    """The results of all expectations on one DataFrame, in one pass over it where that can be."""
    gx = load()
    with _silent():
        batch = batch_definition(site, engine, name).get_batch({"dataframe": frame})
        suite = gx.ExpectationSuite(name, expectations=list(expectations))
        result: ExpectationSuiteValidationResult = batch.validate(suite, result_format=dict(result_format))
    return result


@contextmanager
def _silent() -> Iterator[None]:
    """Within, nothing is logged that could quote a row."""
    loggers = [logging.getLogger("great_expectations")]
    if "pyspark" in sys.modules:
        from pyspark.logger import PySparkLogger

        # Made by PySpark's own function: a plain logger of that name would break every later failed query.
        loggers += [PySparkLogger.getLogger(name) for name in _QUERY_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def document(results: Sequence[ExpectationSuiteValidationResult], *, site: Path, run_name: str) -> str:
    """Keep the results, make a page of each, and return the index's path. What is given here is on disk
    afterwards as it is: strip it first."""
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.data_context.types.resource_identifiers import (
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    context = context_for(site)
    run = RunIdentifier(run_name=run_name, run_time=datetime.now(UTC))
    pages = []
    for result in results:
        suite = ExpectationSuiteIdentifier(result.suite_name)
        page = ValidationResultIdentifier(suite, run, result.batch_id)
        result.meta["run_id"] = run
        result.meta["validation_time"] = run.run_time
        context.validation_results_store.store_validation_results(result, page, suite)
        pages.append(page)
    context.build_data_docs(site_names=[SITE], resource_identifiers=pages)
    return str(site / "index.html")


_FOLDERS: Final = ("results", "validations")
_LINKED: Final = re.compile(r"^<tr>.*?<a href=\"([^\"]+)\".*</tr>\n?", re.MULTILINE)


def old_pages(site: Path, *, before_ms: int) -> list[tuple[Path, int]]:
    """The results and pages that were written before some time, with their sizes."""
    found: list[tuple[Path, int]] = []
    for name in _FOLDERS:
        for folder, _, files in os.walk(site / name):
            for file in files:
                path = Path(folder, file)
                with suppress(FileNotFoundError):  # Another maintenance may be at it.
                    its = path.stat()
                    if its.st_mtime_ns < before_ms * 1_000_000:
                        found.append((path, its.st_size))
    return found


def remove_pages(site: Path, pages: Sequence[tuple[Path, int]]) -> None:
    """Remove pages, the folders that are empty after that, and their rows of the index."""
    for path, _ in pages:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # One that is not empty stays, with all above it.
            for folder in path.parents:
                if folder.parent == site:
                    break
                folder.rmdir()
    index = site / "index.html"
    if pages and index.exists():
        text = index.read_text(encoding="utf-8")
        left = _LINKED.sub(lambda row: row[0] if (site / unquote(row[1])).exists() else "", text)
        if left != text:
            aside = index.with_name(f".{os.getpid()}.tmp")
            aside.write_text(left, encoding="utf-8")
            aside.replace(index)
