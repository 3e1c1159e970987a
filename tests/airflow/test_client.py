"""The client of Airflow's API, where answers get lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock

import pytest

from scripts.local_airflow.client import AirflowClient, Busy
from tidemark.core.errors import Determinate, InvalidUsage


class Server:
    """An API server that has runs, and whose answers to the first triggers get lost, before or after it has
    made the run."""

    def __init__(self, *, lost: int, made: bool) -> None:
        self.runs: list[str] = []
        self.asked = 0
        self._lost, self._made = lost, made

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **_: Any) -> Any:
        if method == "GET":
            if path.rsplit("/", 1)[-1].replace("%3A", ":").replace("%2B", "+") not in self.runs:
                raise InvalidUsage("Airflow answered 404")
            return {"state": "queued"}
        assert body is not None
        self.asked += 1
        if self.asked > self._lost or self._made:
            self.runs.append(body["dag_run_id"])
        if self.asked <= self._lost:
            raise Determinate("Airflow does not answer")
        return body


def client_of(server: Server, monkeypatch: pytest.MonkeyPatch) -> AirflowClient:
    client = AirflowClient("http://localhost:1", "user", "password")
    monkeypatch.setattr(client, "call", server.call)
    return client


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_run_is_triggered_once_however_answers_get_lost(
    monkeypatch: pytest.MonkeyPatch, lost: int, made: bool
) -> None:
    server = Server(lost=lost, made=made)
    assert [client_of(server, monkeypatch).trigger("dag")] == server.runs


def test_a_server_that_never_answers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(lost=99, made=False)
    with pytest.raises(Determinate, match="does not answer"):
        client_of(server, monkeypatch).trigger("dag")
    assert (server.asked, server.runs) == (3, [])


@pytest.mark.parametrize(("method", "asked"), [("PATCH", 3), ("GET", 3), ("POST", 1)])
def test_regression_what_may_be_said_twice_is_said_again_to_a_busy_server(
    monkeypatch: pytest.MonkeyPatch, method: str, asked: int
) -> None:
    """On SQLite a write fails at once where another one came between; a trigger has its own way."""
    answers = Mock(
        side_effect=[Busy("Airflow answered 500"), Busy("Airflow answered 503"), {"is_paused": False}]
    )
    client = AirflowClient("http://localhost:1", "user", "password")
    monkeypatch.setattr(client, "_token", "t")
    monkeypatch.setattr(client, "_ask", answers)
    monkeypatch.setattr("time.sleep", lambda _: None)
    if method == "POST":
        with pytest.raises(Busy):
            client.call(method, "/dags/a", {})
    else:
        assert client.call(method, "/dags/a", {}) == {"is_paused": False}
    assert answers.call_count == asked
