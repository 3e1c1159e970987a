"""`python -m tests.cluster.connected ROOT`: the command and a consumer over the server that is named."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.shop import expected, land, make, opened, seen, tell
from tests.support.cluster import EXECUTORS_MAX
from tidemark.app.consume import Consumer


def main() -> None:
    root = Path(sys.argv[1])
    file = make(root)
    land(root, 0)
    (decided,) = tell("run", str(file))["report"]["decided"]
    deployment = opened(file)
    # The server has read Spark's own file of settings.
    assert deployment.session().conf.get("spark.cores.max") == str(EXECUTORS_MAX)
    assert seen(deployment) == expected(1)
    with Consumer(deployment, "scanned", "copy") as copy:
        (batch,) = [(one.txn, one.frame.count()) for one in copy.listen()]
    assert batch == (1, decided["seal"]["shards"]["scanned"]["digest"]["count"])
    sys.stdout.write(f"loaded {decided['seal']['source']['count']}\n")


if __name__ == "__main__":
    main()
