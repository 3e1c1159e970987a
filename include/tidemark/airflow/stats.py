"""Metrics of a task, by Airflow's own settings: StatsD, DogStatsD or OpenTelemetry, as `[metrics]` says."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats

from tidemark.app.metrics import Kind, Measure, Sink

SETTINGS: Final = ("statsd_on", "statsd_datadog_enabled", "otel_on")
"""Those of `[metrics]` that turn Airflow's metrics on."""


class AirflowStats:
    """Airflow's counters, gauges and timings. Its prefix, its allow list and its tags hold for ours too."""

    def record(self, measure: Measure) -> None:
        name, tags = measure.metric.name, dict(measure.tags)
        match measure.metric.kind:
            case Kind.COUNTER:
                # None would count one.
                if measure.value:
                    stats.incr(name, int(measure.value), tags=tags)
            case Kind.GAUGE:
                stats.gauge(name, measure.value, tags=tags)
            case Kind.TIMING:
                stats.timing(name, timedelta(seconds=measure.value), tags=tags)


def airflow_sink() -> Sink | None:
    """Airflow's own metrics, if they are on."""
    return AirflowStats() if any(conf.getboolean("metrics", one) for one in SETTINGS) else None
