"""Counts and durations for Prometheus, of one process or of all workers together."""

import os
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from besnn.predictions import Predictions
from besnn.serve.traffic import DriftReport

MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable by which prometheus_client knows that workers share their counts, and where."""


class Metrics:
    """What the service counts.

    Args:
        score_buckets: upper bounds of the score histogram's buckets, rising.
        drift: gives the drift monitor's state, when the metrics are asked for.
    """

    def __init__(self, score_buckets: Sequence[float], drift: Callable[[], DriftReport]) -> None:
        own = self._registry = CollectorRegistry()
        self._drift = _DriftCollector(drift)
        own.register(self._drift)
        self._requests = Counter("besnn_requests", "Requests answered.", ["route", "method", "status"], registry=own)
        self._seconds = Histogram("besnn_request_seconds", "Time to answer a request.", ["route"], registry=own)
        self._inputs = Counter("besnn_inputs", "Inputs scored.", ["is_ood"], registry=own)
        self._scores = Histogram("besnn_score", "Scores; higher is stranger.", buckets=score_buckets, registry=own)
        self._batch_rows = Histogram(
            "besnn_batch_rows", "Inputs scored together.", buckets=[2**power for power in range(13)], registry=own
        )

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts a request that was answered."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, rows: int) -> None:
        """Counts a batch that was scored."""
        self._batch_rows.observe(rows)

    def predictions(self, predictions: Predictions) -> None:
        """Counts inputs that were scored."""
        strange = int(predictions.is_ood.sum())
        self._inputs.labels("true").inc(strange)
        self._inputs.labels("false").inc(len(predictions) - strange)
        for score in predictions.score.tolist():
            self._scores.observe(score)

    def exposition(self) -> bytes:
        """All of it in Prometheus's text format."""
        registry = self._registry
        if MULTIPROCESS_FOLDER in os.environ:  # the counts of all workers, from the files in that folder
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # prometheus-client's, without types
            registry.register(self._drift)
        return generate_latest(registry)


class _DriftCollector(Collector):
    """The drift monitor's state as gauges; the store behind it is shared by all workers."""

    def __init__(self, report: Callable[[], DriftReport]) -> None:
        self._report = report

    def describe(self) -> list[Metric]:
        """Names nothing beforehand, so that registering needs no report."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        report = self._report()
        yield GaugeMetricFamily("besnn_drift_log_martingale", "Log of the evidence for drift.", value=report.log_martingale)
        yield GaugeMetricFamily("besnn_drift_alarm", "1 since the drift alarm was raised.", value=float(report.alarm))
        yield GaugeMetricFamily("besnn_drift_steps", "Inputs that the drift monitor has seen.", value=report.steps)
        if report.ood_rate is not None:
            yield GaugeMetricFamily("besnn_ood_rate", "Share of unknown inputs among the last ones.", value=report.ood_rate)
