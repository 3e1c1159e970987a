"""The commands of docs/airflow.md are ones that Airflow takes."""

from __future__ import annotations

import re
import shlex
import sys

import pytest
from airflow.cli.cli_parser import get_parser

from scripts.local_airflow.settings import read_settings
from tests.airflow.conftest import PROJECT

pytestmark = pytest.mark.airflow
TEXT = (PROJECT / "docs" / "airflow.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"(?:^|`)(airflow (?:connections|pools) [^`\n]+)", TEXT, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_airflow_takes_a_command_as_it_is_written(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    taken = get_parser().parse_args(shlex.split(command)[1:])
    assert callable(taken.func)


def test_the_commands_make_what_the_settings_file_has() -> None:
    settings = read_settings(PROJECT / "airflow_settings.yaml")
    for one in settings.connections:
        kind = f"airflow connections add {one.conn_id} --conn-type {one.conn_type}"
        assert any(command.startswith(kind) for command in COMMANDS)
    for pool in settings.pools:
        assert any(
            command.startswith(f"airflow pools set {pool.pool_name} {pool.pool_slot} ")
            for command in COMMANDS
        )
