"""A PostgreSQL server for tests: in a folder of its own, loopback only, with logical replication."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psycopg

from scripts.local_airflow.postgres import LocalPostgres

PASSWORD = "swordfish-4711"
SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "40",
    "max_wal_senders": "10",
    "fsync": "off",
    "shared_buffers": "16MB",
    "autovacuum": "off",
    "wal_writer_delay": "10ms",
}
STOP_SECONDS_MAX = 180


@dataclass(frozen=True)
class Postgres:
    """A running server. Databases are cheap: each test makes its own."""

    server: LocalPostgres
    process: subprocess.Popen[bytes]

    @property
    def port(self) -> int:
        return self.server.port

    def conninfo(self, database: str = "postgres") -> str:
        return self.server.conninfo(database)

    def uri(self, database: str) -> str:
        """As Airflow spells a connection in the environment."""
        return f"postgres://{self.server.address(database)}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(self.conninfo(database), autocommit=True)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)  # A fast shutdown: it does not wait for open connections.
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.server.folder.parent, ignore_errors=True)


def start() -> Postgres:
    """A new server on an empty folder; ready when this returns."""
    # Root's server runs as nobody, who can't reach the folders that pytest makes.
    folder = Path(tempfile.mkdtemp(prefix="tidemark-pg-"))
    folder.chmod(0o711)
    server = LocalPostgres(folder / "server", PASSWORD, SETTINGS)
    return Postgres(server, server.start())
