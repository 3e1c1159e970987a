"""Pipeline files: reading and checking them, with every mistake reported at its line.

`load_pipeline` reads one file, `load_pipelines` a folder. Neither needs Spark, and both are fast enough for
DAG parsing.
"""

from tidemark.config.base import Predicate
from tidemark.config.document import ConfigInvalid, Problem
from tidemark.config.kafka import KafkaSource
from tidemark.config.load import LoadedPipelines, environments_of, load_pipeline, load_pipelines, name_in
from tidemark.config.model import PipelineConfig, Retention, Transaction
from tidemark.config.schema import Column, Schema
from tidemark.config.shard import Expectation, Publish, Route, ShardConfig, Tables
from tidemark.config.source import CsvOptions, FilesSource, PostgresSource, SourceConfig

__all__ = [
    "Column",
    "ConfigInvalid",
    "CsvOptions",
    "Expectation",
    "FilesSource",
    "KafkaSource",
    "LoadedPipelines",
    "PipelineConfig",
    "PostgresSource",
    "Predicate",
    "Problem",
    "Publish",
    "Retention",
    "Route",
    "Schema",
    "ShardConfig",
    "SourceConfig",
    "Tables",
    "Transaction",
    "environments_of",
    "load_pipeline",
    "load_pipelines",
    "name_in",
]
