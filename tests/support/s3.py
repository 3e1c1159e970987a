"""An object store on loopback: moto's server, as a process of its own.

It checks the plumbing of conditional puts. It is no proof of atomicity: its check-then-store has no lock.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tidemark.airflow.processes import free_port

BUCKET = "warehouse"
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
