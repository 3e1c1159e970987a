"""A small client of Airflow's REST API: it triggers, clears and watches runs."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from tidemark.core.errors import Determinate, InvalidUsage

FINAL_STATES: Final = ("success", "failed")
POLL_SECONDS: Final = 0.5
_ANSWER_SECONDS_MAX: Final = 150
"""More than the minute for which one SQLite writer may wait for another."""
_TRIES_MAX: Final = 3
_BUSY_SECONDS_MAX: Final = 60.0


class Busy(Determinate):
    """The server failed (5xx). It may still have to roll back the request."""


class AirflowClient:
    """A client of one API server as one user. The token comes from the login and is sent only in a header."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._url = url.rstrip("/")
        self._login = {"username": user, "password": password}
        self._token = ""

    def healthy(self) -> bool:
        """Whether the server answers and reports every component as healthy."""
        try:
            found = self._ask("GET", "/api/v2/monitor/health", None, token="")
        except Determinate:
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return all((found.get(part) or {}).get("status") == "healthy" for part in parts)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        """One call of the API below /api/v2; `InvalidUsage` with the server's message if it rejects the call.

        On SQLite a concurrent write may fail at once. Calls are then repeated, except for POST."""
        if not self._token:
            self._token = self._ask("POST", "/auth/token", self._login, token="")["access_token"]
        given = f"?{urlencode(query, doseq=True)}" if query else ""
        deadline = time.monotonic() + _BUSY_SECONDS_MAX
        while True:
            try:
                return self._ask(method, f"/api/v2{path}{given}", body, token=self._token)
            except Busy:
                if method == "POST" or time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, *, token: str) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self._url + path, data=data, method=method)
        request.add_header("Content-Type", "application/json")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS_MAX) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:2000]
            kind = InvalidUsage if error.code < 500 else Busy
            raise kind(f"Airflow answered {error.code} to {method} {path}: {said}") from None
        except (OSError, TimeoutError) as error:
            raise Determinate(f"Airflow does not answer at {self._url}: {error}", hint="retry") from None
        return json.loads(text) if text else None

    # DAGs and runs.

    def unpause(self, dag_id: str, *, paused: bool = False) -> None:
        self.call("PATCH", f"/dags/{quote(dag_id)}", {"is_paused": paused})

    def trigger(
        self, dag_id: str, *, conf: Mapping[str, Any] | None = None, logical_date: str | None = None
    ) -> str:
        """Start a manual run; returns its id. The client chooses the id, so that after a lost response it can
        check whether the run exists."""
        run_id = f"manual__{datetime.now(UTC).isoformat()}"
        body = {"dag_run_id": run_id, "conf": dict(conf or {}), "logical_date": logical_date}
        for _ in range(_TRIES_MAX - 1):
            try:
                return self._triggered(dag_id, body)
            except Determinate:
                if self._has_run(dag_id, run_id):
                    return run_id
        return self._triggered(dag_id, body)

    def _triggered(self, dag_id: str, body: Mapping[str, Any]) -> str:
        return str(self.call("POST", f"/dags/{quote(dag_id)}/dagRuns", body)["dag_run_id"])

    def _has_run(self, dag_id: str, run_id: str) -> bool:
        try:
            return bool(self.run(dag_id, run_id))
        except (InvalidUsage, Determinate):
            return False

    def run(self, dag_id: str, run_id: str) -> Any:
        return self.call("GET", f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}")

    def tasks(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """The run's task instances by task id."""
        found = self.call("GET", f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances")
        return {one["task_id"]: one for one in found["task_instances"]}

    def states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        return {name: one["state"] for name, one in self.tasks(dag_id, run_id).items()}

    def wait(self, dag_id: str, run_id: str, *, seconds_max: float = 600.0) -> str:
        """The run's final state; `Determinate` if it does not end in time."""
        deadline = time.monotonic() + seconds_max
        while time.monotonic() < deadline:
            state = self.run(dag_id, run_id)["state"]
            if state in FINAL_STATES:
                return str(state)
            time.sleep(POLL_SECONDS)
        raise Determinate(f"run {run_id} of {dag_id} has not ended after {seconds_max:.0f} s")

    def clear(
        self, dag_id: str, run_id: str, *, tasks: Sequence[str] | None = None, downstream: bool = True
    ) -> None:
        """Clear a run, or some of its tasks, as the UI does."""
        body: dict[str, Any] = {
            "dry_run": False,
            "dag_run_id": run_id,
            "only_failed": False,
            "include_downstream": downstream,
            "reset_dag_runs": True,
        }
        if tasks is not None:
            body["task_ids"] = list(tasks)
        self.call("POST", f"/dags/{quote(dag_id)}/clearTaskInstances", body)

    def log(self, dag_id: str, run_id: str, task_id: str, *, try_number: int = 1) -> str:
        """The text of one try's log."""
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{quote(task_id)}"
        found = self.call("GET", f"{path}/logs/{try_number}", full_content="true")
        content = found.get("content") if isinstance(found, dict) else found
        lines = content if isinstance(content, list) else [content]
        return "\n".join(
            " ".join(str(value) for value in line.values()) if isinstance(line, dict) else str(line)
            for line in lines
        )

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{quote(task_id)}"
        return self.call("GET", f"{path}/xcomEntries/{quote(key)}", deserialize="true")["value"]
