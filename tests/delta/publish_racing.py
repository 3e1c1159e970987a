"""One of several processes that append to one log and publish one state at once:
`python -m tests.delta.publish_racing ROOT NAME ROUNDS`, with a store's options as JSON in `OPTIONS`.

Each round is a transaction of a key that all share and of one of its own, and a publish. It prints the
numbers that its transactions have got.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from tests.support.keyed_log import SHARD, Change, KeyedLog
from tidemark.core.errors import Determinate
from tidemark.core.ids import WriterToken
from tidemark.pipeline.publish import publish


def changes(name: str, number: int) -> list[Change]:
    """Every third time the shared key is deleted."""
    shared = None if number % 3 == 2 else f"{name}/{number}"
    return [Change(("shared", 0), shared), Change((name, 1), str(number))]


def main(root: str, name: str, rounds: int) -> None:
    log = KeyedLog(root, options=json.loads(os.environ.get("OPTIONS", "{}")))
    for number in range(rounds):
        log.append(*changes(name, number))
        sys.stdout.write(f"{log.txn}\n")
        # One that has lost too often in a row is to try again.
        published = False
        while not published:
            with suppress(Determinate):
                publish(log.control, log.plane, SHARD, token=WriterToken(f"{name}-{number}"))
                published = True


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
