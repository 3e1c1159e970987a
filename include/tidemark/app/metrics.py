"""Metrics of a pipeline: counters, gauges and timings of its transactions.

`METRICS` lists all metrics. Their values come from seals and from the status, which are durable, so a step
that ran in a Spark job elsewhere is measured too. They are sent in two ways:

- A task in Airflow sends them to Airflow's `stats`; `[metrics]` in `airflow.cfg` configures the destination
  (`tidemark.airflow.operators`).
- The command and `tidemark.run` send them to OpenTelemetry, which its environment variables configure
  (`OTEL_METRICS_EXPORTER`, `OTEL_EXPORTER_OTLP_ENDPOINT` and so on). If the program has set up a meter
  provider, they go there. Without either, nothing is read and nothing is sent.

Metrics are not exact: a failure to send is only logged, and a task that is retried after it sent its counts
sends them again.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from tidemark import __version__
from tidemark.app.deployment import Deployment
from tidemark.app.reports import decided_by, step_seconds
from tidemark.core.ids import TXN_NONE
from tidemark.core.seal import Lost, Seal, Sealed
from tidemark.core.status import Alarm, Status
from tidemark.core.text import quarantined_in
from tidemark.pipeline.context import Attempt, binding_at
from tidemark.pipeline.run import RunReport

log = logging.getLogger(__name__)


class Kind(StrEnum):
    """How the values of a metric are aggregated."""

    COUNTER = "counter"
    GAUGE = "gauge"
    TIMING = "timing"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Every metric has the tag `pipeline`; `tag` is a second one."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    tag: str = ""


TRANSACTIONS: Final = Metric(
    "tidemark.transactions", Kind.COUNTER, "transactions", "transactions that the run sealed", "decision"
)
READ: Final = Metric("tidemark.records.read", Kind.COUNTER, "records", "records that they read")
QUARANTINED: Final = Metric(
    "tidemark.records.quarantined", Kind.COUNTER, "records", "those of them that are quarantined"
)
ROWS: Final = Metric("tidemark.rows.written", Kind.COUNTER, "rows", "rows that they wrote to a log", "shard")
BYTES: Final = Metric("tidemark.bytes.written", Kind.COUNTER, "bytes", "bytes of their parts", "shard")
RACES_LOST: Final = Metric(
    "tidemark.races.lost", Kind.COUNTER, "transactions", "transactions that another run sealed first"
)
DURATION: Final = Metric(
    "tidemark.transaction.duration", Kind.TIMING, "seconds", "from its binding to its seal"
)
STEP: Final = Metric("tidemark.step.duration", Kind.TIMING, "seconds", "how long one step of it took", "step")
LAG: Final = Metric(
    "tidemark.lag.transactions", Kind.GAUGE, "transactions", "bound and not in a checkpoint yet"
)
LAG_SECONDS: Final = Metric(
    "tidemark.lag.seconds", Kind.GAUGE, "seconds", "age of the oldest input that is not sealed; 0 without any"
)
WAITING: Final = Metric(
    "tidemark.waiting", Kind.GAUGE, "pieces", "input that is not bound, as `status` has it"
)
QUARANTINE: Final = Metric(
    "tidemark.quarantine.records", Kind.GAUGE, "records", "quarantined records that are kept"
)
ALARMS: Final = Metric("tidemark.alarms", Kind.GAUGE, "alarms", "alarms by the pipeline file's limits")
METRICS: Final = (
    TRANSACTIONS, READ, QUARANTINED, ROWS, BYTES, RACES_LOST, DURATION, STEP,
    LAG, LAG_SECONDS, WAITING, QUARANTINE, ALARMS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measure:
    """A value of a metric, with its tags."""

    metric: Metric
    value: float
    tags: Mapping[str, str]


class Sink(Protocol):
    """A destination for measures."""

    def record(self, measure: Measure) -> None: ...


def of_transactions(deployment: Deployment, sealed: Sequence[Seal], *, lost: int = 0) -> Iterator[Measure]:
    """The measures of the transactions that a run sealed, of the races that it lost, and of the lag."""
    tags = {"pipeline": deployment.config.name}
    for seal in sealed:
        yield Measure(TRANSACTIONS, 1, {**tags, "decision": str(seal.decision)})
        yield Measure(READ, seal.source.count, tags)
        yield Measure(QUARANTINED, quarantined_in(seal), tags)
        for shard, parts in seal.shards.items():
            yield Measure(ROWS, parts.digest.count, {**tags, "shard": shard})
            yield Measure(BYTES, sum(part.bytes for part in parts.parts), {**tags, "shard": shard})
        binding = binding_at(deployment.pipeline, seal.txn)
        for step, seconds in step_seconds(deployment, binding, seal).items():
            whole = step == "transaction"
            yield Measure(DURATION if whole else STEP, seconds, tags if whole else {**tags, "step": step})
    if lost:
        yield Measure(RACES_LOST, lost, tags)
    bound = deployment.control.bindings.head().upper - 1
    done = deployment.control.checkpoints.head().upper - 1
    yield Measure(LAG, max(TXN_NONE, bound - done), tags)


def of_report(deployment: Deployment, report: RunReport) -> Iterator[Measure]:
    """The measures of a run in this process."""
    sealed = [one.seal for one in report.decided if isinstance(one, Sealed)]
    lost = sum(isinstance(one, Lost) for one in report.decided)
    yield from of_transactions(deployment, sealed, lost=lost)


def of_run(deployment: Deployment, attempt: Attempt) -> Iterator[Measure]:
    """The measures of a run whose steps were tasks, from the attempts that they recorded in this round."""
    sealed, lost = decided_by(deployment, attempt)
    yield from of_transactions(deployment, sealed, lost=len(lost))


def of_status(found: Status, alarms: Sequence[Alarm], *, now_seconds: float) -> Iterator[Measure]:
    """The measures of a pipeline's status; those of waiting input only if the source has reported it."""
    tags = {"pipeline": found.pipeline}
    yield Measure(LAG, found.bound - found.checkpoint, tags)
    yield Measure(QUARANTINE, found.quarantined.records, tags)
    yield Measure(ALARMS, len(alarms), tags)
    if found.asked and found.waiting.known:
        oldest = [at.timestamp() for at in (found.waiting.oldest, found.open_since) if at is not None]
        yield Measure(LAG_SECONDS, max(0.0, now_seconds - min(oldest, default=now_seconds)), tags)
        yield Measure(WAITING, found.waiting.pieces, tags)


def send(sink: Sink | None, measures: Callable[[], Iterable[Measure]]) -> None:
    """Send measures to a sink. Without a sink nothing is read; a failure is only logged."""
    if sink is None:
        return
    try:
        for measure in measures():
            sink.record(measure)
    except Exception as error:
        log.warning("metrics are not sent: %s", error)


class OpenTelemetrySink:
    """Measures as OpenTelemetry's instruments: counters, gauges and histograms."""

    def __init__(self, meter: Any) -> None:
        self._meter = meter
        self._instruments: dict[str, Any] = {}

    def record(self, measure: Measure) -> None:
        metric = measure.metric
        name = {Kind.COUNTER: "counter", Kind.GAUGE: "gauge", Kind.TIMING: "histogram"}[metric.kind]
        if metric.name not in self._instruments:
            create = getattr(self._meter, f"create_{name}")
            unit = {"seconds": "s", "bytes": "By"}.get(metric.unit, f"{{{metric.unit}}}")
            self._instruments[metric.name] = create(metric.name, unit=unit, description=metric.meaning)
        instrument = self._instruments[metric.name]
        write = {Kind.COUNTER: "add", Kind.GAUGE: "set", Kind.TIMING: "record"}[metric.kind]
        getattr(instrument, write)(measure.value, dict(measure.tags))


_ASKED_BY: Final = (
    "OTEL_METRICS_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)


def opentelemetry_sink() -> Sink | None:
    """A sink for OpenTelemetry, if the environment or the program configures a meter provider; else None.

    Measures are sent when the process ends, at the latest."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if os.environ.get("OTEL_METRICS_EXPORTER", "").lower() == "none":
        return None
    asked = any(os.environ.get(name) for name in _ASKED_BY)
    if not asked and "opentelemetry.sdk.metrics" not in sys.modules:
        return None
    try:
        from opentelemetry import metrics
        from opentelemetry.sdk.metrics import MeterProvider

        if not isinstance(metrics.get_meter_provider(), MeterProvider):
            if not asked:
                return None
            metrics.set_meter_provider(_provider())
    except Exception as error:
        log.warning("metrics are not sent: %s", error)
        return None
    return OpenTelemetrySink(metrics.get_meter("tidemark", __version__))


def _provider() -> Any:
    """A provider with the exporters that the environment names, as in OpenTelemetry's auto-configuration."""
    from importlib.metadata import entry_points

    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    protocol = os.environ.get(
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    )
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    names = os.environ.get("OTEL_METRICS_EXPORTER") or "otlp"
    readers = []
    for name in (one.strip() for one in names.split(",")):
        chosen = otlp if name == "otlp" else name
        (exporter,) = entry_points(group="opentelemetry_metrics_exporter", name=chosen) or (None,)
        if exporter is None:
            raise LookupError(f"there is no metrics exporter {name!r} among the installed packages")
        readers.append(PeriodicExportingMetricReader(exporter.load()()))
    return MeterProvider(metric_readers=readers)
