"""A small interface to Great Expectations: late import, one context per process and site, no network access.

The import is the gate's largest cost. Most of it is spent on libraries that only draw charts and compare
distributions. Their import is deferred until first use; no expectation that a pipeline file may name uses
them. Progress bars and log messages are off, because an exception's text may quote a row. The context is in
memory; only the validation results that are passed to `document` are written to disk.

Maintenance removes old pages of Data Docs (`old_pages`, `remove_pages`) without importing Great Expectations:
a page's age is the age of its file. The verdicts themselves stay in the journal.
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

from tidemark.core.errors import require

if TYPE_CHECKING:
    from great_expectations.core import ExpectationSuiteValidationResult
    from great_expectations.core.batch_definition import BatchDefinition
    from great_expectations.data_context.data_context.abstract_data_context import AbstractDataContext
    from great_expectations.expectations.expectation import Expectation


SITE: Final = "site"
RESULTS_ON_INDEX_MAX: Final = 200
"""Limited because building the index page reads every listed result again."""

_PAGES: Final = "tidemark.quality.data_docs"
_LATER: Final = ("altair", "scipy.stats")
_QUERY_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's loggers, which print every failed query with its message."""


class _Later(ModuleType):
    """A placeholder that imports its module on first use of an attribute."""

    def __getattr__(self, name: str) -> Any:
        # `inspect` reads __file__ of every module in the process; that is not a use.
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _put_off(names: Sequence[str]) -> Iterator[None]:
    """Within this context, an import of one of these modules gives a placeholder. Afterwards `sys.modules`
    has none of the placeholders."""
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
    """Import the library, once. The extra `quality`."""
    require("quality")
    # It logs hundreds of registered types, which would hide other messages in a task's log.
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    with _put_off(_LATER):
        import great_expectations
    return great_expectations


@cache
def context_for(site: Path | None) -> AbstractDataContext:
    """This process's context, with a Data Docs site or without one."""
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
    """The batch definition that passes a DataFrame of `engine` (pandas or spark) under the asset's name."""
    sources = context_for(site).data_sources
    if engine == "spark":
        # Persisting would copy the staged rows into memory and never release them.
        frames = sources.add_or_update_spark(f"{engine}_{asset}", persist=False).add_dataframe_asset(asset)
        return frames.add_batch_definition_whole_dataframe("all")
    tables = sources.add_or_update_pandas(f"{engine}_{asset}").add_dataframe_asset(asset)
    return tables.add_batch_definition_whole_dataframe("all")


def expectation(
    kind: str, kwargs: Mapping[str, Any], meta: Mapping[str, object] | None = None
) -> Expectation:
    """The library's object for an expectation. Raises the library's own error if the kwargs don't fit."""
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
    """The results of all expectations on one DataFrame, in one pass if possible."""
    gx = load()
    with _silent():
        batch = batch_definition(site, engine, name).get_batch({"dataframe": frame})
        suite = gx.ExpectationSuite(name, expectations=list(expectations))
        result: ExpectationSuiteValidationResult = batch.validate(suite, result_format=dict(result_format))
    return result


@contextmanager
def _silent() -> Iterator[None]:
    """Within this context, loggers that could quote a row are off."""
    loggers = [logging.getLogger("great_expectations")]
    if "pyspark" in sys.modules:
        from pyspark.logger import PySparkLogger

        # PySpark's own function must create them: PySpark can't log a failed query to a plain logger.
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
    """Store the results, build a page for each, and return the index's path. Results are written to disk
    unchanged: strip values of rows before."""
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


# Removal of old pages.

_FOLDERS: Final = ("results", "validations")
_LINKED: Final = re.compile(r"^<tr>.*?<a href=\"([^\"]+)\".*</tr>\n?", re.MULTILINE)


def old_pages(site: Path, *, before_ms: int) -> list[tuple[Path, int]]:
    """The results and pages that were written before a time, with their sizes."""
    found: list[tuple[Path, int]] = []
    for name in _FOLDERS:
        for folder, _, files in os.walk(site / name):
            for file in files:
                path = Path(folder, file)
                with suppress(FileNotFoundError):  # Another process may run maintenance at the same time.
                    its = path.stat()
                    if its.st_mtime_ns < before_ms * 1_000_000:
                        found.append((path, its.st_size))
    return found


def remove_pages(site: Path, pages: Sequence[tuple[Path, int]]) -> None:
    """Remove pages, the folders that become empty, and the rows of the index whose pages are gone."""
    for path, _ in pages:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # A folder that is not empty stays, and so do those above it.
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
