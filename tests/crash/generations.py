"""Replacing a pipeline's settings in processes that die: the verbs, as a command does them, and their story.

A job (`tests.support.workers`) has the pipeline's `root`, the `verb`, the run that asks for it, and at which
durable step to die. Everything is real but the rows, which pyarrow reads (`tests.support.light_generations`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import pandas  # noqa: F401  # pyarrow imports it, when it first makes an array

import tidemark.app.maintenance  # noqa: F401
from tests.support import light
from tests.support.light import LightPlane
from tests.support.light_generations import RuleGenerations, config_at, opened
from tests.support.steps import Fuse, Steps, wrap, wrap_control
from tidemark.app.deployment import Deployment, new_token
from tidemark.app.publish import run_and_publish
from tidemark.core.binding import Owner
from tidemark.core.errors import InvalidUsage
from tidemark.core.generation import Candidate, PromotionOpen
from tidemark.delta.store import Store
from tidemark.pipeline.context import Attempt
from tidemark.spark.state import SparkStatePlane
from tidemark.spark.state_table import NextVersion

OLD: Final = {"a": "gone", "b": "gone", "c": "none"}
NEW: Final = {"a": "away", "b": "away", "c": "none"}
WORDS: Final = {0: OLD, 1: NEW, 2: OLD, 3: NEW}
"""The values of each shard that delete, by generation. The second one takes the first one back."""
FILE, TRACE = "generation", "trace"
RECORDS: Final = 12


def land(root: Path) -> None:
    """One more file; the same number has the same records."""
    folder = root / "in"
    number = len(list(folder.iterdir()))
    rng = random.Random(number)
    values = ("gone", "away", f"v{number}")
    lines = [
        json.dumps({"kind": rng.choice("abc"), "id": rng.randrange(6), "value": rng.choice(values)})
        for _ in range(RECORDS)
    ]
    path = folder / f"{number:06}.json"
    path.with_suffix(".tmp").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    path.with_suffix(".tmp").rename(path)


def deploy(root: Path, generation: int) -> None:
    """Let the pipeline file be that of a generation."""
    (root / "in").mkdir(parents=True, exist_ok=True)
    (root / FILE).write_text(str(generation))


def deployment_at(root: Path) -> Deployment:
    generation = int((root / FILE).read_text())
    return opened(config_at(root, generation, WORDS[generation]))


def generations_at(root: Path) -> RuleGenerations:
    return RuleGenerations(deployment_at(root))


# The verbs: each can be repeated, whatever another process has done of it.


def run(root: Path, owner: str) -> None:
    run_and_publish(deployment_at(root), Attempt(Owner(owner), new_token()))


def start(root: Path, owner: str) -> None:
    works = generations_at(root)
    if works.candidate is None:
        works.start(reason="another rule")


def rollback(root: Path, owner: str) -> None:
    works = generations_at(root)
    if works.candidate is None:
        works.rollback(reason="the rule was right")


def follow(root: Path, owner: str) -> None:
    works = generations_at(root)
    list(works.pair(works.required()).follow(Attempt(Owner(owner), new_token())))


def promote(root: Path, owner: str) -> None:
    """No run waits for it: the next one that meets it gives it up."""
    works = generations_at(root)
    candidate: Candidate | None = works.candidate
    if candidate is None:  # Another try has done it; the next run publishes it.
        run(root, f"{owner}-after")
        return
    works.pair(candidate).promote(Attempt(Owner(owner), new_token()), grace_seconds=0.0)


def abort(root: Path, owner: str) -> None:
    """A promotion that is bound has to be decided first; the pipeline's next run gives it up."""
    with suppress(InvalidUsage):  # Another try has done it.
        try:
            generations_at(root).abort(reason="not needed")
        except PromotionOpen:
            run(root, f"{owner}-before")
            generations_at(root).abort(reason="not needed")


VERBS: Final[Mapping[str, Callable[[Path, str], None]]] = {
    one.__name__: one for one in (run, start, rollback, follow, promote, abort)
}

# Dying.


def wrap_all(steps: Steps) -> None:
    """Everything that a verb leaves behind or takes away."""
    wrap_control(steps)
    numbers = count(1)
    wrap(light, "write_part", lambda log, path, *_: f"part {log.parent.name} {path[5:25]}", steps)
    wrap(LightPlane, "read_back", lambda plane, staged, **kwargs: f"gate {staged.txn}", steps)
    wrap(NextVersion, "put", lambda version, rows: f"rows {next(numbers)}", steps)
    wrap(
        SparkStatePlane,
        "_commit",
        lambda plane, shard, version, commit, **change: f"state {shard} {commit.txn}",
        steps,
    )
    remove = Store.delete_all

    def half_removed(store: Store) -> None:
        """Files go one by one; a process may die between two of them."""
        name = Path(store.uri).name
        steps.around(f"remove half of {name}", lambda: _remove_half(Path(store.uri)))
        steps.around(f"remove {name}", lambda: remove(store))

    Store.delete_all = half_removed  # type: ignore[method-assign]


def _remove_half(folder: Path) -> None:
    for path in sorted(path for path in folder.rglob("*") if path.is_file())[::2]:
        path.unlink()


def preload() -> None:
    """The imports of this module are all that a worker needs."""


def work(job: Mapping[str, Any]) -> None:
    root = Path(job["root"])
    wrap_all(Steps(root / TRACE, Fuse(job["when"], number=job["number"])))
    VERBS[job["verb"]](root, job["owner"])
