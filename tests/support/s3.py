"""Object stores on loopback, as processes of their own.

moto's server checks the plumbing of conditional puts, and is no proof of atomicity: its check-then-store has
no lock. versitygw's are atomic; it is built from source once, and needs Go.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts.local_airflow.processes import free_port
from tests.support import ROOT

BUCKET, VERSIONED = "warehouse", "landing"
GATEWAY_VERSION = "v1.8.0"
ACCESS_LOG = "access.log"
"""Every request to the server, a line each."""
READY_SECONDS_MAX = 180


@dataclass(frozen=True)
class ObjectStore:
    """A running store, and the options that reach it."""

    endpoint: str
    bucket: str

    @property
    def options(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_CONDITIONAL_PUT": "etag",
        }

    def client(self) -> Any:
        """Amazon's own client, for what only the owner of a bucket does."""
        import boto3

        options = self.options
        return boto3.client(
            "s3", endpoint_url=self.endpoint, region_name=options["AWS_REGION"],
            aws_access_key_id=options["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=options["AWS_SECRET_ACCESS_KEY"],
        )  # fmt: skip


def _make_bucket(endpoint: str) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        try:
            request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
            with urllib.request.urlopen(request, timeout=30):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@dataclass(frozen=True)
class AtomicStore(ObjectStore):
    """One whose conditional puts are atomic."""


@contextmanager
def atomic_store(
    folder: Path, *, ignores_conditions: bool = False, has_versions: bool = False
) -> Iterator[AtomicStore]:
    """Start versitygw on a folder. Without its metadata it answers a conditional put that it did not look
    at. Where asked for, one of its two buckets has versions."""
    gateway = _built()
    root = folder / "root"
    for name in (root / BUCKET, root / VERSIONED, folder / "beside", folder / "versions"):
        name.mkdir(parents=True)
    port = free_port()
    metadata = ["--nometa"] if ignores_conditions else ["--sidecar", str(folder / "beside")]
    if has_versions:
        metadata += ["--versioning-dir", str(folder / "versions")]
    with (folder / "versitygw.log").open("wb") as said:
        process = subprocess.Popen(
            [gateway, "--port", f"127.0.0.1:{port}", "--access", "test", "--secret", "test", "--quiet",
             "--access-log", str(folder / ACCESS_LOG), "posix", *metadata, str(root)],
            stdout=said, stderr=said,
        )  # fmt: skip
    try:
        _wait_for(port, process, folder / "versitygw.log")
        store = AtomicStore(f"http://127.0.0.1:{port}", BUCKET)
        if has_versions:
            enabled = {"Status": "Enabled"}
            store.client().put_bucket_versioning(Bucket=VERSIONED, VersioningConfiguration=enabled)
        yield store
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_for(port: int, process: subprocess.Popen[bytes], said: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS_MAX
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return
        assert process.poll() is None, said.read_text()[-2000:]
        assert time.monotonic() < deadline, said.read_text()[-2000:]
        time.sleep(0.1)


def _built() -> Path:
    """The gateway's program; it is built on first use."""
    folder = ROOT / ".tidemark" / f"versitygw-{GATEWAY_VERSION}"
    program = folder / "versitygw"
    if program.exists():
        return program
    if shutil.which("go") is None:
        pytest.skip("an S3 server with atomic conditional puts is built with Go, which is not installed")
    package = f"github.com/versity/versitygw/cmd/versitygw@{GATEWAY_VERSION}"
    made = subprocess.run(
        ["go", "install", package], env=os.environ | {"GOBIN": str(folder)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"versitygw can't be built: {made.stderr[-500:]}")
    return program


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Start the server, make a bucket, stop the server again."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _make_bucket(endpoint)
        yield ObjectStore(endpoint, BUCKET)
    finally:
        process.terminate()
        process.wait(timeout=30)
