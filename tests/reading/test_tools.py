"""Consumers in Airflow tasks, in the command, and through a repair: the same frontier everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tests.support.deployed import attempt
from tests.support.shelf import SHARD, Shelf, changes_in, expected
from tidemark.airflow import ShardConsumerOperator, shard_task
from tidemark.app.consume import Batch, Consumer, leases_of
from tidemark.app.tasks import replay_range
from tidemark.cli.app import app
from tidemark.core.ids import Txn
from tidemark.core.reading import Frozen
from tidemark.pipeline.run import run

pytestmark = [pytest.mark.spark, pytest.mark.airflow]


@pytest.fixture
def shelf(spark: SparkSession, tmp_path: Path) -> Shelf:
    return Shelf(tmp_path, lambda: spark)


def command(*words: object) -> Any:
    done = CliRunner().invoke(app, [*map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def lasting(task: Any, spark: SparkSession) -> Any:
    """The task on the tests' own session, which it must not stop."""
    task._spark = lambda: spark
    task._disconnect = lambda: None
    return task


def test_a_task_takes_all_above_its_own_frontier_and_a_run_with_nothing_starts_no_spark(
    shelf: Shelf, spark: SparkSession
) -> None:
    shelf.append([("a", 1)], [("b", 2)])
    got: list[Any] = []

    def take(batch: Batch, into: list[Any]) -> None:
        into.append((batch.lower, batch.upper, changes_in(batch.frame)))

    file = shelf.root / "p.yaml"
    with DAG("downstream", schedule=None):
        made = ShardConsumerOperator(
            task_id="take", python_callable=take, pipeline_file=file, shard=SHARD, consumer="billing",
            op_kwargs={"into": got},
        )  # fmt: skip
    lasting(made, spark)
    assert made.execute({}) == {"txn_from": 1, "upper": 3, "batches": 1}
    assert got == [(1, 3, expected(shelf.written, 1, 3))]
    made._spark = lambda: pytest.fail("there is nothing to read")
    assert made.execute({}) == {"txn_from": 3, "upper": 3, "batches": 0}


def test_a_decorated_function_gets_batches_beginning_with_a_snapshot_until_that_is_delivered(
    shelf: Shelf, spark: SparkSession
) -> None:
    shelf.append([("a", 1)], [("a", 2)])
    got: list[tuple[bool, int]] = []
    fails = [True]

    with DAG("downstream", schedule=None) as dag:

        @shard_task(pipeline_file=shelf.root / "p.yaml", shard=SHARD, consumer="copy", snapshot=True)
        def copy(batch: Batch, target: str) -> None:
            assert target == "somewhere"
            got.append((batch.is_snapshot, batch.txn))
            if fails.pop():
                raise ZeroDivisionError

        copy(target="somewhere")
    task = lasting(dag.get_task("copy"), spark)
    with pytest.raises(ZeroDivisionError):
        task.execute({})
    shelf.append([("b", 3)])
    fails[:] = [False] * 9
    assert task.execute({}) == {"txn_from": 1, "upper": 4, "batches": 2}
    assert got == [(True, 2), (True, 2), (False, 3)]
    with pytest.raises(TypeError, match="needs a parameter 'batch'"), DAG("other", schedule=None):
        shard_task(pipeline_file="p.yaml", shard=SHARD, consumer="copy")(lambda: None)()


def test_r1_the_command_shows_a_frozen_consumer_and_passes_over_with_a_reason(
    shelf: Shelf, spark: SparkSession
) -> None:
    shelf.append([("a", 1)], [("b", 2)], [("c", 3)])
    shelf.parts_of(2)[0].unlink()
    file = shelf.root / "p.yaml"

    def ignore(batch: Batch) -> None:
        """Reading it is enough."""

    task = ShardConsumerOperator(
        task_id="take", python_callable=ignore, pipeline_file=file, shard=SHARD, consumer="billing"
    )
    with pytest.raises(AirflowFailException, match=r"frozen at txn 2 .* --mode repair"):
        lasting(task, spark).execute({})
    (told,) = command("consumers", "list", file)
    assert (told["consumer"], told["shard"], told["frontier"], told["lag"]) == ("billing", "t", 2, 2)
    assert "there is no such file" in told["frozen"]
    (lease,) = command("leases", file)
    assert (lease["name"], lease["txn"], lease["state"]) == ("billing/t", 2, "released")
    command("consumers", "skip", file, SHARD, "billing", 2, "--reason", "b is known")
    assert command("consumers", "list", file)[0]["frozen"] == ""
    assert lasting(task, spark).execute({})["upper"] == 4
    assert command("consumers", "forget", file, SHARD, "billing")["state"] == "forgotten"
    assert command("consumers", "list", file) == command("leases", file) == []


def test_r1_a_part_that_replay_brings_back_thaws_the_consumer(shelf: Shelf) -> None:
    works = shelf.works
    folder = shelf.root / "in"
    folder.mkdir()
    for number in (1, 2, 3):
        (folder / f"{number}.json").write_text(f'{{"k": "k{number}", "v": {number}}}\n')
        run(works.pipeline, attempt())
    (part,) = shelf.parts_of(2)
    part.unlink()

    def listened() -> list[tuple[int, str, int | None]]:
        with Consumer(shelf.again(works.session), SHARD, "billing", ttl_seconds=5) as reader:
            return [change for batch in reader.listen() for change in changes_in(batch.frame)]

    with pytest.raises(Frozen, match="frozen at txn 2"):
        listened()
    _, restored = replay_range(works, attempt(), txn_from=2, txn_to=2, mode="repair")
    assert [(txn, shard) for txn, shard, _ in restored] == [(2, SHARD)]
    assert listened() == [(2, "k2", 2), (3, "k3", 3)]
    assert leases_of(works).current("billing/t").txn == Txn(4)  # type: ignore[union-attr]
