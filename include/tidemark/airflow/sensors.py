"""Waiting for a shard: a sensor that gives its worker slot back while it waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidemark.airflow.runs import failure
from tidemark.core.errors import Determinate, Indeterminate, TidemarkError
from tidemark.core.ids import ShardId

if TYPE_CHECKING:
    from airflow.sdk import Context

POKE_SECONDS = 10.0


def upper_of(pipeline_file: str, environment: str | None, shard: str) -> int:
    """The first transaction that can't be read in the shard yet; one that doesn't touch it is stepped over.
    Reads a few kilobytes."""
    from tidemark.pipeline.listing import readable_upper
    from tidemark.tasks import open_pipeline

    deployment = open_pipeline(pipeline_file, environment)
    name = ShardId(deployment.config.shard(shard).name)
    return int(readable_upper(deployment.control, name))


class ShardUpperTrigger(BaseTrigger):
    """Fires when a shard has passed a transaction, or when it can't be known however long one waits."""

    def __init__(
        self, *, pipeline_file: str, environment: str | None, shard: str, txn: int, poke_seconds: float
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline_file = pipeline_file
        self.environment = environment
        self.shard = shard
        self.txn = txn
        self.poke_seconds = poke_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("pipeline_file", "environment", "shard", "txn", "poke_seconds")
        return f"{__name__}.ShardUpperTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while True:
            upper = 0
            try:
                upper = await asyncio.to_thread(upper_of, self.pipeline_file, self.environment, self.shard)
            except (Determinate, Indeterminate) as error:
                self.log.warning("looking again: %s", error)
            except TidemarkError as error:
                yield TriggerEvent({"error": str(error)})  # type: ignore[no-untyped-call]
                return
            if upper > self.txn:
                yield TriggerEvent({"upper": upper})  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(self.poke_seconds)


class ShardUpperSensor(BaseSensorOperator):
    """Wait until a shard has passed a transaction; deferrable. Returns the shard's upper.

    :param pipeline_file: the pipeline file; not a template
    :param shard: the shard (templated)
    :param txn: the transaction to wait for (templated)
    :param environment: which of the file's environments (templated)
    :param timeout: seconds after which it fails; like every wait, this one has an end
    """

    template_fields: Sequence[str] = ("shard", "txn", "environment")
    ui_color = "#eef4e2"

    def __init__(
        self,
        *,
        pipeline_file: str | Path,
        shard: str,
        txn: int | str,
        environment: str | None = None,
        poke_interval: float = POKE_SECONDS,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.pipeline_file = str(pipeline_file)
        self.shard = shard
        self.txn = txn
        self.environment = environment

    def poke(self, context: Context) -> bool:
        return self._upper() > int(self.txn)

    def _upper(self) -> int:
        """The shard's upper; 0 while it can't be read, since the next look may be able to."""
        try:
            return upper_of(self.pipeline_file, self.environment, self.shard)
        except (Determinate, Indeterminate) as error:
            self.log.warning("looking again: %s", error)
            return 0
        except TidemarkError as error:
            raise failure(error) from error

    def execute(self, context: Context) -> Any:
        upper = self._upper()
        if upper > int(self.txn):
            return upper
        trigger = ShardUpperTrigger(
            pipeline_file=self.pipeline_file,
            environment=self.environment,
            shard=self.shard,
            txn=int(self.txn),
            poke_seconds=self.poke_interval,
        )
        self.defer(trigger=trigger, method_name="reached", timeout=timedelta(seconds=self.timeout))
        return None

    def reached(self, context: Context, event: dict[str, Any]) -> int:
        """Resume after the trigger has fired."""
        if "error" in event:
            raise AirflowFailException(event["error"])
        self.log.info("shard %s has passed transaction %s: upper %s", self.shard, self.txn, event["upper"])
        return int(event["upper"])
