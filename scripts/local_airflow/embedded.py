"""A private Airflow in one folder, for the demo, `make ui` and tests.

It is for one person on one machine: bound to loopback, with the local executor, the simple auth manager and
its own PostgreSQL (SQLite if that is not available).

It stops only the processes that it started: the folder's pid file has their ids and start times. The file
`started.json` has their ports and the name of the starter, for later commands.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scripts.local_airflow.client import AirflowClient
from scripts.local_airflow.postgres import LocalPostgres
from scripts.local_airflow.processes import is_listening, reap
from scripts.local_airflow.settings import SPARK_PORT, SPARK_TOKEN
from tidemark.app.job import started_at
from tidemark.core.errors import Determinate, InvalidUsage

USER: Final = "admin"
COMPONENTS: Final = ("api-server", "scheduler", "dag-processor", "triggerer")
PORT: Final = 8080
SPARK: Final = "spark"
DATABASE: Final = "postgres"
STARTED: Final = "started.json"
STOP_SECONDS_MAX: Final = 20.0
HEALTHY_SECONDS_MAX: Final = 300.0


@dataclass(frozen=True)
class EmbeddedAirflow:
    """One Airflow in a folder.

    With a `spark_port` it also has a Spark Connect server on that port and the connection
    `spark_connect_default` to it; `spark_confs` override that server's settings. `environ` overrides the
    environment of all processes. `starter` is the name of the command that starts it."""

    home: Path
    dags: Path
    settings: Path | None = None
    port: int = PORT
    plugins: Path | None = None
    spark_port: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)
    spark_confs: Mapping[str, str] = field(default_factory=dict)
    starter: str = ""

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    @property
    def _pids(self) -> Path:
        return self.home / "processes.json"

    def secret(self, name: str) -> str:
        """A secret of this Airflow: generated once, readable only by its owner."""
        file = self.home / "secrets" / name
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            made = secrets.token_urlsafe(24)
            if name == "fernet":
                from cryptography.fernet import Fernet

                made = Fernet.generate_key().decode()
            with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as sink:
                sink.write(made)
        return file.read_text()

    @property
    def database(self) -> LocalPostgres | None:
        """The server of Airflow's metadata database; None if the database is SQLite."""
        folder = self.home / DATABASE
        return LocalPostgres(folder, self.secret("database")) if LocalPostgres.available(folder) else None

    def _database_variables(self) -> dict[str, str]:
        if self.database is None:
            return {"DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db?timeout=60"}
        address = f"postgresql+psycopg://{self.database.address('airflow')}"
        return {"DATABASE__SQL_ALCHEMY_CONN": address, "DATABASE__SQL_ALCHEMY_CONN_ASYNC": address}

    @property
    def password(self) -> str:
        return self.secret("password")

    def environment(self) -> dict[str, str]:
        """The environment of every process of this Airflow."""
        passwords = self.home / "secrets" / "passwords.json"
        configured = {
            "CORE__DAGS_FOLDER": str(self.dags),
            "CORE__PLUGINS_FOLDER": str(self.plugins or self.home / "plugins"),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": "4",
            "CORE__FERNET_KEY": self.secret("fernet"),
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            **self._database_variables(),
            "API__HOST": "127.0.0.1",
            "API__PORT": str(self.port),
            "API__BASE_URL": self.url,
            "API__WORKERS": "1",
            "API__SECRET_KEY": self.secret("api"),
            "API_AUTH__JWT_SECRET": self.secret("jwt"),
            "DAG_PROCESSOR__REFRESH_INTERVAL": "30",
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
            "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "2",
            "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
            "LOGGING__BASE_LOG_FOLDER": str(self.home / "logs"),
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        folder = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": os.pathsep.join([folder, os.environ.get("PATH", "")]),
            "AIRFLOW_HOME": str(self.home),
            "PYTHONUNBUFFERED": "1",
            **{f"AIRFLOW__{name}": value for name, value in configured.items()},
            **self.environ,
        }

    def start_database(self) -> None:
        """Start the database server, unless it is running or the database is SQLite."""
        if self.database is not None and DATABASE not in self.running():
            self.home.mkdir(parents=True, exist_ok=True)
            self._remember(DATABASE, self.database.start().pid)
            self.database.make("airflow")

    def prepare(self, *, at_rest: Iterable[str] = ()) -> None:
        """Create or upgrade the database and load the settings; idempotent. The DAGs `at_rest` are paused, so
        that no earlier run continues when Airflow starts."""
        self.start_database()
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "plugins").mkdir(exist_ok=True)
        environment = self.environment()
        passwords = Path(environment["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
        passwords.write_text(json.dumps({USER: self.password}))
        passwords.chmod(0o600)
        settings = str(self.settings) if self.settings is not None else ""
        done = subprocess.run(
            [sys.executable, "-m", "scripts.local_airflow.project", "prepare", settings, *at_rest],
            env={**environment, **self._spark_variables()},
            cwd=Path(__file__).resolve().parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise Determinate(f"Airflow's database could not be prepared:\n{tail}", hint="retry")

    def _spark_variables(self) -> dict[str, str]:
        if not self.spark_port:
            return {}
        return {SPARK_PORT: str(self.spark_port), SPARK_TOKEN: self.secret("spark")}

    def start_spark(self) -> None:
        """Start the Spark Connect server, unless it is running or there is no `spark_port`."""
        if not self.spark_port or SPARK in self.running():
            return
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while is_listening(self.spark_port) and time.monotonic() < deadline:
            time.sleep(0.1)  # A server that was just killed may hold its port a moment longer.
        from tidemark.spark.connect_server import start_server

        token = self.secret("spark")
        server = start_server(self.spark_port, token, folder=self.home / "spark", confs=self.spark_confs)
        self._remember(SPARK, server.process.pid)

    def _remember(self, name: str, pid: int) -> None:
        try:
            known = json.loads(self._pids.read_text())
        except (OSError, ValueError):
            known = {}
        aside = self._pids.with_suffix(".new")
        aside.write_text(json.dumps({**known, name: [pid, started_at(pid)]}))
        aside.replace(self._pids)  # Atomic: a concurrent reader sees a whole file.

    def start(self) -> None:
        """Start the components that don't run, each in its own session, and wait until all are healthy."""
        self.start_database()
        running = self.running()
        missing = [name for name in COMPONENTS if name not in running]
        if "api-server" in missing and is_listening(self.port):
            raise InvalidUsage(f"port {self.port} is in use", hint="stop what uses it, or set PORT")
        if not set(running) & set(COMPONENTS):
            told = {"port": self.port, "spark_port": self.spark_port, "starter": self.starter}
            (self.home / STARTED).write_text(json.dumps(told))
        logs = self.home / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        for component in missing:
            with (logs / f"{component}.log").open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "airflow", component],
                    env=self.environment(),
                    cwd=self.home,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._remember(component, process.pid)
        self.start_spark()
        self.wait_healthy()

    def client(self) -> AirflowClient:
        return AirflowClient(self.url, USER, self.password)

    def wait_healthy(self) -> None:
        """Return when all components are healthy; `Determinate` if one has ended or at the deadline."""
        deadline = time.monotonic() + HEALTHY_SECONDS_MAX
        while time.monotonic() < deadline:
            missing = [name for name in COMPONENTS if name not in self.running()]
            if missing:
                log = self.home / "logs" / f"{missing[0]}.log"
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise Determinate(f"Airflow's {missing[0]} has ended:\n{tail}", hint="see its log")
            if self.client().healthy():
                return
            time.sleep(0.5)
        raise Determinate(f"Airflow is not healthy after {HEALTHY_SECONDS_MAX:.0f} s", hint="see its logs")

    def running(self) -> dict[str, int]:
        """The live processes of this Airflow: ids by name."""
        try:
            known: dict[str, list[Any]] = json.loads(self._pids.read_text())
        except (OSError, ValueError):
            return {}
        return {name: pid for name, (pid, began) in known.items() if began and started_at(pid) == began}

    def dead(self) -> list[str]:
        """The processes that have ended while others still run; empty if none runs."""
        wanted = [*COMPONENTS, *([SPARK] if self.spark_port else []), *([DATABASE] if self.database else [])]
        running = self.running()
        return [name for name in wanted if name not in running] if running else []

    def stop(self) -> None:
        """End the processes that this Airflow started, including their tasks; the database last."""
        self._end([name for name in self.running() if name != DATABASE], signal.SIGTERM)
        self._end([DATABASE], signal.SIGINT)  # A fast shutdown: it does not wait for open connections.
        self._pids.unlink(missing_ok=True)

    def _end(self, names: Iterable[str], first: signal.Signals) -> None:
        wanted = set(names)
        for signal_number in (first, signal.SIGKILL):
            for name, pid in self.running().items():
                if name in wanted:
                    # The process may have ended since `running` read it.
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal_number)
            deadline = time.monotonic() + STOP_SECONDS_MAX
            while wanted & set(self.running()) and time.monotonic() < deadline:
                reap()
                time.sleep(0.2)
