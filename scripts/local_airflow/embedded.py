"""An Airflow of one's own, in one folder, for the demo, for a look at the UI, and for tests.

A PostgreSQL of its own (SQLite where that can't be had), the local executor and the simple login manager: for
one person on one machine, bound to loopback.
What it started, it stops, and nothing else: the processes are known by the folder's pid file and their start
times. Beside that stands where they listen and who started them, for whoever comes next.
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
from tidemark.app.job import start_spark, started_at
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

    With a `spark_port` it has a warm Spark of its own, a Spark Connect server on that port, and the
    connection `spark_connect_default` to it; `spark_confs` are on top of what is set for it anyway. `environ`
    goes to all processes, on top of what is set here. `starter` names who starts it."""

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
        """A secret of this Airflow: made once, readable by its owner only."""
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
        """The server that has Airflow's data; None where that is a file of SQLite's."""
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
        """Start the database, if this Airflow has a server for it that does not run."""
        if self.database is not None and DATABASE not in self.running():
            self.home.mkdir(parents=True, exist_ok=True)
            self._remember(DATABASE, self.database.start().pid)
            self.database.make("airflow")

    def prepare(self, *, at_rest: Iterable[str] = ()) -> None:
        """Make the database and load the settings; again and again, whatever is there. The DAGs `at_rest` are
        paused, so that no run of before goes on once this is started."""
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
        """Start the warm Spark, if this Airflow has one and it does not run."""
        if not self.spark_port or SPARK in self.running():
            return
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while is_listening(self.spark_port) and time.monotonic() < deadline:
            time.sleep(0.1)  # One that was killed a moment ago lets its port go a moment later.
        pid = start_spark(
            self.spark_port, self.secret("spark"), folder=self.home / "spark", confs=self.spark_confs
        )
        self._remember(SPARK, pid)

    def _remember(self, name: str, pid: int) -> None:
        try:
            known = json.loads(self._pids.read_text())
        except (OSError, ValueError):
            known = {}
        aside = self._pids.with_suffix(".new")
        aside.write_text(json.dumps({**known, name: [pid, started_at(pid)]}))
        aside.replace(self._pids)  # Whoever looks meanwhile finds all of it.

    def start(self) -> None:
        """Start what does not run, each in a session of its own, and wait until all are healthy."""
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
        """Return when all components say that they are well; an end that never comes has a deadline."""
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
        """The processes of this Airflow that are alive."""
        try:
            known: dict[str, list[Any]] = json.loads(self._pids.read_text())
        except (OSError, ValueError):
            return {}
        return {name: pid for name, (pid, began) in known.items() if began and started_at(pid) == began}

    def dead(self) -> list[str]:
        """What should run beside the others and does not."""
        wanted = [*COMPONENTS, *([SPARK] if self.spark_port else []), *([DATABASE] if self.database else [])]
        running = self.running()
        return [name for name in wanted if name not in running] if running else []

    def stop(self) -> None:
        """End the processes that this folder's Airflow started, with the tasks below them; the database
        last."""
        self._end([name for name in self.running() if name != DATABASE], signal.SIGTERM)
        self._end([DATABASE], signal.SIGINT)  # A fast shutdown: it does not wait for open connections.
        self._pids.unlink(missing_ok=True)

    def _end(self, names: Iterable[str], first: signal.Signals) -> None:
        wanted = set(names)
        for signal_number in (first, signal.SIGKILL):
            for name, pid in self.running().items():
                if name in wanted:
                    # Gone since we looked is as good as gone now.
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal_number)
            deadline = time.monotonic() + STOP_SECONDS_MAX
            while wanted & set(self.running()) and time.monotonic() < deadline:
                reap()
                time.sleep(0.2)
