"""What operators see: metrics for Prometheus, and JSON logs with one line per request and nothing that clients sent."""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

if TYPE_CHECKING:  # a worker logs before it has loaded the rest
    from besnn.detection import ConformalThreshold
    from besnn.detector import Predictions
    from besnn.serve.drift import DriftReport


class Metrics:
    """What the service counts, in one process or in all workers together."""

    def __init__(self, threshold: "ConformalThreshold", drift: "Callable[[], DriftReport]") -> None:
        own = self._registry = CollectorRegistry()
        self._drift = _DriftCollector(drift)
        own.register(self._drift)
        self._requests = Counter("besnn_requests", "Requests answered.", ["route", "method", "status"], registry=own)
        self._seconds = Histogram("besnn_request_seconds", "Time to answer a request.", ["route"], registry=own)
        self._inputs = Counter("besnn_inputs", "Inputs scored.", ["is_ood"], registry=own)
        self._scores = Histogram("besnn_score", "Scores; higher is stranger.", buckets=_score_buckets(threshold), registry=own)
        self._batch_rows = Histogram(
            "besnn_batch_rows", "Inputs scored together.", buckets=[2**power for power in range(13)], registry=own
        )

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, rows: int) -> None:
        """Count a scored batch."""
        self._batch_rows.observe(rows)

    def predictions(self, predictions: "Predictions") -> None:
        """Count scored inputs."""
        unknown = int(predictions.is_ood.sum())
        self._inputs.labels("true").inc(unknown)
        self._inputs.labels("false").inc(len(predictions) - unknown)
        for score in predictions.score.tolist():
            self._scores.observe(score)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:  # several workers: read the counts of all from that folder
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # prometheus-client's, without types
            registry.register(self._drift)
        return generate_latest(registry)


class _DriftCollector(Collector):
    """Exposes the drift monitor's state as gauges; all workers share the store behind it."""

    def __init__(self, report: "Callable[[], DriftReport]") -> None:
        self._report = report

    def describe(self) -> list[Metric]:
        return []  # no names in advance, so that registering needs no report

    def collect(self) -> Iterator[Metric]:
        report = self._report()
        yield GaugeMetricFamily("besnn_drift_log_martingale", "Log of the evidence for drift.", value=report.log_martingale)
        yield GaugeMetricFamily("besnn_drift_alarm", "1 once the drift alarm was raised.", value=float(report.alarm))
        yield GaugeMetricFamily(
            "besnn_drift_stale", "1 if the drift state cannot be read.", value=float(report.problem is not None)
        )
        yield GaugeMetricFamily("besnn_drift_steps", "Inputs that the drift monitor has seen.", value=report.steps)
        if report.ood_rate is not None:
            yield GaugeMetricFamily("besnn_ood_rate", "Share of unknown inputs among recent ones.", value=report.ood_rate)


def _score_buckets(threshold: "ConformalThreshold") -> list[float]:
    """Return quantiles of the calibration scores, the threshold, and some bounds beyond the largest score."""
    scores = threshold.scores.double().cpu().numpy()
    low, high = float(scores[0]), float(scores[-1])
    quantiles = np.quantile(scores, [0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1]).tolist()
    return sorted({*quantiles, threshold.threshold, *(high + factor * (high - low) for factor in (0.25, 0.5, 1, 2))})


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON; `extra={"fields": {...}}` adds fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; an exception adds only its type, because its message may quote an input."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.created % 1 * 1000):03}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line)


def log_to_standard_error() -> None:
    """Make this process log in JSON, libraries' messages and warnings included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.disable(logging.NOTSET)  # the command line silences logs for other commands
    logging.captureWarnings(True)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns about every malformed body
