"""What each task's log ends with: what the task has done, with its numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.airflow.test_operators import Bench, bench  # noqa: F401
from tests.support.memory.world import rec
from tidemark.airflow.operators import IngestOperator, ReclockOperator, UpsertOperator, ValidateOperator
from tidemark.app.job import Order, perform

pytestmark = pytest.mark.airflow


class Lines:
    """A task's log."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def info(self, text: str, *values: object) -> None:
        self.told.append(text % values)

    warning = info


def last_line(kind: Any, name: str, context: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    lines = Lines()
    monkeypatch.setattr(kind, "log", lines)
    kind(task_id=name, pipeline_file="shop.yaml").execute(context)
    return lines.told[-1]


@pytest.mark.parametrize("round_", [0, 1])
def test_each_task_ends_its_log_with_what_it_has_done(
    bench: Bench,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    round_: int,
) -> None:
    monkeypatch.setattr("tidemark.app.tasks.publish_due", lambda *args, **kwargs: {})
    monkeypatch.setattr(
        "tidemark.app.tasks.open_to_bind", lambda file, environment, attempt: bench.deployment()
    )
    bench.world.feed(rec("k", 1), rec("j", 2))

    def does(step: str) -> None:
        bench.job = lambda order: void(perform(step, bench.deployment(), order))

    def void(told: dict[str, Any]) -> None:
        assert told

    said: list[str] = []
    for number in range(round_ + 1):
        said = []
        context = bench.context(clear_number=number)
        for kind, name in (
            (ReclockOperator, "reclock"),
            (IngestOperator, "ingest"),
            (ValidateOperator, "validate"),
            (UpsertOperator, "upsert"),
        ):
            does(name)
            said.append(last_line(kind, name, context, monkeypatch))
    assert (
        said
        == [
            [
                "bound transaction 1 for this run",
                "staged transaction 1: 2 read = 2 applied + 0 quarantined",
                "transaction 1: identical, 2 digests compared, 2 rows",
                "sealed transaction 1",
            ],
            [
                "found transaction 1 for this run",
                "read the input of transaction 1 again, 0 bytes written",
                "replay of transaction 1: identical, 3 digests compared, 2 rows",
                "sealed transaction 1",
            ],
        ][round_]
    )


def test_a_submitted_job_leaves_the_numbers_of_its_verdict_in_the_journal(bench: Bench) -> None:  # noqa: F811
    bench.world.feed(rec("k", 1))
    order = Order("shop.yaml", "r", "w1")
    from tidemark.pipeline.reclock import mint
    from tidemark.pipeline.validate import verdicts_of

    mint(bench.world.process(), order.attempt)
    perform("ingest", bench.deployment(), order)
    perform("validate", bench.deployment(), order)
    (judged,) = verdicts_of(bench.world.process(), order.attempt)
    assert (judged.gated.compared, judged.gated.rows, judged.gated.opinion.checked) == (2, 1, 0)
