"""Ports for servers that are about to be started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from scripts.local_airflow import processes
from scripts.local_airflow.processes import free_port


def test_no_port_is_given_twice_nor_one_that_the_system_hands_out() -> None:
    """Else a connection that is opened before the server listens may be on it."""
    given = [free_port() for _ in range(300)]
    assert len(set(given)) == 300
    with socket.create_server(("127.0.0.1", 0)) as any_port:
        assert max(given) < processes._first_handed_out() <= any_port.getsockname()[1]


def test_a_port_that_is_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", first := free_port())):
        monkeypatch.setattr(processes, "_given", set())
        monkeypatch.setattr(processes, "_PORT_MIN", first)
        monkeypatch.setattr(processes, "_first_handed_out", lambda: first + 2)
        assert free_port() != first


def test_where_the_system_hands_out_every_port_one_of_those_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_HANDED_OUT", tmp_path / "range")
    (tmp_path / "range").write_text("1024\t65535\n")
    assert free_port() > 1024
