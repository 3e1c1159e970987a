"""Processes that work over Spark Connect: a process has classic sessions or these, never both."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

from tidemark.spark.connect import TOKEN_VARIABLE

TOKEN = secrets.token_hex(16)
SECONDS_MAX = 600


def python(*words: str, folder: Path, token: str = TOKEN, **more: str) -> subprocess.CompletedProcess[str]:
    """A module in a process of its own, which may have no classic session."""
    found = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, TOKEN_VARIABLE: token, "PYTHONPATH": found, **more}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
