"""What is used of other packages without being public there, and the versions that it was looked at in.

A new version of one of these packages fails here: look at each interface of it, at the tests beside it, and
write the new version down. A private interface that is not listed fails too: find a public way, or add it.
"""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("include/tidemark", "jobs", "dags", "plugins", "scripts")

LOOKED_AT = {
    "apache-airflow-core": "3.3.2",
    "apache-airflow-task-sdk": "1.3.2",
    "apache-airflow-providers-apache-spark": "6.3.4",
    "great_expectations": "1.24.1",
    "pyspark": "4.1.3",
    "pyspark-client": "4.1.3",
    "typer": "0.29.0",
}

# Imports of names that their package keeps to itself, each with the reason.
IMPORTS = {
    "airflow.sdk.definitions._internal.contextmanager.DagContext": "which DAGs a file has made so far",
    # The pages ask for what the API server's own routes ask for; there is no public way to protect a page.
    "airflow.api_fastapi.app.get_auth_manager": "who may see a page",
    "airflow.api_fastapi.auth.managers.models.resource_details.DagAccessEntity": "who may see a page",
    "airflow.api_fastapi.auth.managers.models.resource_details.DagDetails": "who may see a page",
    "airflow.api_fastapi.common.dagbag.create_dag_bag": "a run that a page starts",
    "airflow.api_fastapi.common.db.common.SessionDep": "the pages' database session",
    "airflow.api_fastapi.core_api.datamodels.dag_run.TriggerDAGRunPostBody": "a run that a page starts",
    "airflow.api_fastapi.core_api.routes.public.dag_run.trigger_dag_run": "a run that a page starts",
    "airflow.api_fastapi.core_api.security.GetUserDep": "who may see a page",
    "airflow.api_fastapi.core_api.security.get_user": "who may see a page",
    "airflow.api_fastapi.core_api.security.requires_access_dag": "who may see a page",
    # Airflow's tables by its models: the API server has no route that answers the pages' questions at once.
    "airflow.models.Connection": "what airflow_settings.yaml says",
    "airflow.models.Pool": "what airflow_settings.yaml says",
    "airflow.models.Variable": "what airflow_settings.yaml says",
    "airflow.models.dag.DagModel": "which pipelines have a DAG; pausing those of the project",
    "airflow.models.dag.DagTag": "which pipelines have a DAG",
    "airflow.models.dagrun.DagRun": "a page's run",
    "airflow.models.serialized_dag.SerializedDagModel": "which pipeline file a DAG is of",
    "airflow.utils.db.upgradedb": "the database of the project's own Airflow",
    "airflow.utils.session.create_session": "the database of the project's own Airflow",
    "pyspark.java_gateway.launch_gateway": "a JVM whose output goes into a log",
    "pyspark.sql.connect.client.retries.DefaultPolicy": "not waiting ten minutes for a dead server",
    "pyspark.sql.connect.logging.logger": "not logging every failed call",
}
PUBLIC_OF_AIRFLOW = ("sdk", "providers", "configuration", "plugins_manager", "triggers")

# Attributes, by their names: those of our own objects are here too where a method looks at another instance.
ATTRIBUTES = {
    "_PARTITION_EOF": "confluent-kafka, documented under this name",
    "_conn_id": "the Spark provider's operator",
    "_ensure_initialized": "pyspark: SparkContext takes the JVM that was started for it",
    "_exit": "os, documented under this name",
    "_gateway": "pyspark: SparkContext, whether this process has a JVM",
    "_jo": "pyspark: Observation, to wait for it with an end",
    "_root": "our own",
    "_shadow": "our own",
    "_without_files": "our own",
}


@cache
def trees() -> tuple[ast.Module, ...]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return tuple(ast.parse(path.read_text(encoding="utf-8")) for path in paths)


def is_private(name: str) -> bool:
    root, *rest = name.split(".")
    if root == "airflow":
        return rest[0] not in PUBLIC_OF_AIRFLOW or any(part.startswith("_") for part in rest)
    internal = ("pyspark.java_gateway", "pyspark.sql.connect", "deltalake._internal")
    return name.startswith(internal) or any(re.match(r"_[a-z]", part) for part in rest)


def private_imports() -> set[str]:
    nodes = [node for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    return {name for name in names if not name.startswith("tidemark.") and is_private(name)}


def private_attributes() -> set[str]:
    found: set[str] = set()
    for node in (node for tree in trees() for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            name = node.args[1]
            found |= {str(name.value)} if isinstance(name, ast.Constant) else set()
    return {name for name in found if re.match(r"_[A-Za-z]", name)}


@pytest.mark.parametrize("package", LOOKED_AT)
def test_the_installed_version_is_the_one_that_was_looked_at(package: str) -> None:
    assert version(package) == LOOKED_AT[package]


def test_the_private_interfaces_in_use_are_those_that_are_listed() -> None:
    assert private_imports() == IMPORTS.keys()
    assert private_attributes() == ATTRIBUTES.keys()


def test_no_class_is_found_by_its_place_among_the_bases() -> None:
    placed = [
        ast.unparse(node)
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and "__mro__" in ast.unparse(node.value)
    ]
    assert not placed


def test_airflow_says_which_dags_a_file_has_made() -> None:
    context = import_module("airflow.sdk.definitions._internal.contextmanager").DagContext
    assert hasattr(context.autoregistered_dags, "__iter__")


def test_pyspark_has_what_a_quiet_start_needs() -> None:
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    assert list(inspect.signature(launch_gateway).parameters) == ["conf", "popen_kwargs"]
    assert "gateway" in inspect.signature(SparkContext._ensure_initialized).parameters
    assert hasattr(SparkContext, "_gateway")


def test_an_observation_of_a_classic_session_has_the_jvms_own() -> None:
    from pyspark.sql import Observation

    assert "_jo" in vars(Observation())


def test_pysparks_client_has_the_policy_that_is_set() -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    assert {"max_retries", "max_backoff"} <= set(inspect.signature(DefaultPolicy).parameters)


def test_typers_mistakes_have_a_message_and_an_exit_code() -> None:
    from tidemark.cli.app import _MISTAKE

    mistake = _MISTAKE("no such option")
    assert (mistake.format_message(), mistake.exit_code) == ("no such option", 1)
