"""Metrics of a task through Airflow's own client: StatsD, DogStatsD or OpenTelemetry, as `[metrics]` sets."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats

from tidemark.app.metrics import Kind, Measure, Sink

SETTINGS: Final = ("statsd_on", "statsd_datadog_enabled", "otel_on")
"""The settings of `[metrics]` that turn Airflow's metrics on."""


class AirflowStats:
    """Airflow's counters, gauges and timings. Airflow's prefix, allow list and tags apply to them too."""

    def record(self, measure: Measure) -> None:
        name, tags = measure.metric.name, dict(measure.tags)
        match measure.metric.kind:
            case Kind.COUNTER:
                # A count of 0 is not sent.
                if measure.value:
                    stats.incr(name, int(measure.value), tags=tags)
            case Kind.GAUGE:
                stats.gauge(name, measure.value, tags=tags)
            case Kind.TIMING:
                stats.timing(name, timedelta(seconds=measure.value), tags=tags)


def airflow_sink() -> Sink | None:
    """A sink into Airflow's metrics; None if they are off."""
    return AirflowStats() if any(conf.getboolean("metrics", one) for one in SETTINGS) else None
