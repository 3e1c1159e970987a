"""A Spark Connect server that is not there: one sentence, to be retried, and no page of the client's own."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from tidemark.core.errors import Determinate
from tidemark.core.ids import Txn
from tidemark.spark.failures import translated

SAID = """<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:15002"
\tdebug_error_string = "UNKNOWN:Error received from peer"
>"""
# A process that has connected once can't have a Spark of its own any more.
CODE = """
from pyspark.sql.connect.logging import logger
from tidemark.spark import session
logger.disabled = False  # As Airflow leaves it when it sets up its logging.
session._RETRIES_MAX = 1
try:
    session.connect_session("sc://localhost:9/;user_id=me", token="very secret")
except Exception as error:
    print(type(error).__name__, error)
"""


def test_regression_a_server_that_is_not_there_is_one_sentence_and_to_be_retried() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert (
        done.stdout
        == "Determinate no Spark Connect server answers at sc://localhost:9: start it, then retry\n"
    )
    assert done.stderr == ""


def test_regression_a_server_that_goes_away_in_a_job_is_named_so() -> None:
    read: Any = SimpleNamespace(damage=lambda text: "")
    error = translated(RuntimeError(SAID), Txn(7), read)
    assert isinstance(error, Determinate)
    assert str(error).startswith("the job of transaction 7 failed: the Spark server has gone away")
