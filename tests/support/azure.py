"""Azure's blob storage on loopback: Azurite, Microsoft's own emulator, which npm installs once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from scripts.local_airflow.processes import free_port
from tests.support import ROOT
from tests.support.waiting import wait_until

VERSION = "3.35.0"
CONTAINER = "lake"
ACCOUNT = "devstoreaccount1"
# The emulator's account, which its documentation names.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
PLACE = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net"


@contextmanager
def azure_store(folder: Path) -> Iterator[dict[str, str]]:
    """Start Azurite on a folder, with a container; the options that reach it."""
    program, port = _installed(), free_port()
    said = folder / "azurite.log"
    folder.mkdir(parents=True)
    with said.open("wb") as log:
        process = subprocess.Popen(
            [program, "--location", folder / "data", "--blobHost", "127.0.0.1", "--blobPort", str(port),
             "--disableTelemetry", "--skipApiVersionCheck", "--silent"],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip

    def is_up() -> bool:
        assert process.poll() is None, said.read_text()[-2000:]
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return True
        except OSError:
            return False

    try:
        wait_until(is_up, what="Azurite")
        _make_container(f"http://127.0.0.1:{port}")
        yield {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_ALLOW_HTTP": "true",
        }
    finally:
        process.terminate()
        process.wait(timeout=30)


def _installed() -> Path:
    """The emulator's program; it is installed on first use."""
    folder = ROOT / ".tidemark" / f"azurite-{VERSION}"
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    if program.exists():
        return program
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("Azure's emulator is installed with npm, which is not there")
    folder.mkdir(parents=True, exist_ok=True)
    words = ["install", "--no-audit", "--no-fund", "--prefix", str(folder), f"azurite@{VERSION}"]
    made = subprocess.run([npm, *words], cwd=folder, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"Azure's emulator can't be installed: {made.stderr[-500:]}")
    return program


def _make_container(endpoint: str) -> None:
    headers = {
        "x-ms-date": datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "x-ms-version": "2021-08-06",
    }
    told = "\n".join(f"{name}:{value}" for name, value in headers.items())
    signed = f"PUT{chr(10) * 12}{told}\n/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    code = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(code).decode()}"
    headers["Content-Length"] = "0"
    url = f"{endpoint}/{ACCOUNT}/{CONTAINER}?restype=container"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=60):
        pass
