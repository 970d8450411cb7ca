"""Prometheus metrics of serving."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from modyn.preprocessing.components.input_guard import InputCounts
from modyn.serving.batcher import BatchReport
from modyn.serving.messages.signature import ModelSignature
from modyn.serving.versions.predictor import VersionName

_LATENCIES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Observations:
    """Counts of values by bucket, for one combination of label values. Thread-safe."""

    __slots__ = ("_bounds", "_counts", "_lock", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * len(bounds), 0.0
        self._lock = threading.Lock()  # Protects counts and sum, so that a reader gets a consistent pair.

    def observe(self, value: float) -> None:
        """Count a value in the first bucket with a bound of at least this value."""
        place = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def read(self) -> tuple[list[int], float]:
        """Return the number of values in each bucket, and the sum of all values."""
        with self._lock:
            return self._counts.copy(), self._sum


class QuickHistogram(Collector):
    """Histogram for values that are measured for each request. This histogram takes half the time of the histogram of the Prometheus client library.

    Args: labels: names of the labels. buckets: upper bounds in ascending order; a last bucket without a bound is added.
    """

    def __init__(self, name: str, documentation: str, labels: Sequence[str], *, buckets: Sequence[float]) -> None:
        self._name, self._documentation, self._labels = name, documentation, labels
        self._bounds = (*buckets, math.inf)
        self._made: dict[tuple[str, ...], Observations] = {}
        self._lock = threading.Lock()  # Protects the dictionary, so that the same label values share one object.
        REGISTRY.register(self)

    def labels(self, *values: str) -> Observations:
        """Return the counts for these label values."""
        with self._lock:
            return self._made.setdefault(values, Observations(self._bounds))

    def remove(self, *values: str) -> None:
        """Remove the counts for these label values. Raises KeyError: the label values are unknown."""
        with self._lock:
            del self._made[values]

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Yield the current counts. The metrics registry calls this method."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        with self._lock:
            made = list(self._made.items())
        for values, observations in made:
            counts, total = observations.read()
            upto = [sum(counts[: place + 1]) for place in range(len(counts))]
            family.add_metric(values, list(zip(map(floatToGoString, self._bounds), upto, strict=True)), total)
        yield family


REQUEST_SECONDS = QuickHistogram(
    "modyn_serving_request_seconds",
    "Seconds from the arrival of a request at the model server to its answer, errors included",
    ["model", "version"],
    buckets=_LATENCIES,
)
ERRORS = Counter("modyn_serving_errors", "Requests that ended with an error, by reason", ["model", "reason"])
BATCH_ROWS = QuickHistogram(
    "modyn_serving_batch_rows",
    "Rows in the batches that were predicted",
    ["model"],
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
)
BATCH_SECONDS = QuickHistogram(
    "modyn_serving_batch_seconds", "Seconds that a batch took to predict", ["model"], buckets=_LATENCIES
)
QUEUE_SECONDS = QuickHistogram(
    "modyn_serving_queue_seconds",
    "Seconds that the oldest request of each batch waited in the queue",
    ["model"],
    buckets=_LATENCIES,
)
QUEUE_LENGTH = Gauge("modyn_serving_queue_length", "Requests that wait, in all versions of a model", ["model"])
SERVING_VERSION = Gauge("modyn_serving_version_info", "1 for the version of each model that serves", ["model", "version"])
SWAPS = Counter("modyn_serving_swaps", "Changes of the version that serves", ["model"])
SWAP_SECONDS = Histogram("modyn_serving_swap_seconds", "Seconds that the exchange of the routing table took", ["model"])
LOAD_SECONDS = Histogram("modyn_serving_load_seconds", "Seconds that loading and warming up a version took", ["model"])
SHADOW_ANSWERS = Counter(
    "modyn_serving_shadow_answers",
    "Copies of requests to a shadow version: equal, different, failed or dropped",
    ["model", "version", "result"],
)
SHADOW_DIFFERENCE = Histogram(
    "modyn_serving_shadow_difference",
    "Largest absolute difference between an answer and that of the shadow version",
    ["model", "version"],
    buckets=(0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0),
)
SHADOW_RESULTS: Final = ("equal", "different", "failed", "dropped")
OBSERVATIONS = Counter(
    "modyn_serving_observations",
    "Observations: appended, repeated, expired, dropped, refused, or of a reused id",
    ["model", "result"],
)
UNLIKE_INPUTS = Counter(
    "modyn_serving_unlike_inputs",
    "Values in predicted batches that an InputGuard of the version finds missing, out_of_range or unseen",
    ["model", "version", "column", "what"],
)


def count_error(models: Container[str], model: str, reason: str) -> None:
    """Count a request that ended with an error. Args: models: names of the served models. Other names are counted as `unknown`, because clients
    may invent names, and the counts of such names would never be removed.
    """
    ERRORS.labels(model if model in models else "unknown", reason).inc()


def count_inputs(name: VersionName, found: Mapping[str, InputCounts]) -> None:
    """Count, by column, the input values that differ from the values that a version was trained on."""
    for column, counts in found.items():
        for what, number in counts._asdict().items():
            if number:
                UNLIKE_INPUTS.labels(name.model, name.version, column, what).inc(number)


def forget_inputs(name: VersionName, signature: ModelSignature) -> None:
    """Remove the counts of a version's inputs."""
    for tensor in signature.inputs:
        for what in InputCounts._fields:
            with suppress(KeyError):  # it has counted nothing
                UNLIKE_INPUTS.remove(name.model, name.version, tensor.name, what)


def forget_version(model: str, version: str) -> None:
    """Remove the counts of a version. Without the removal, each new version would permanently add metrics."""
    for metric in (REQUEST_SECONDS, SHADOW_DIFFERENCE, SERVING_VERSION):
        with suppress(KeyError):  # it has counted nothing
            metric.remove(model, version)
    for result in SHADOW_RESULTS:
        with suppress(KeyError):
            SHADOW_ANSWERS.remove(model, version, result)


def request_timer(name: VersionName) -> Callable[[float], None]:
    """Return a function that counts the seconds of requests to a version. After `forget_version` the function counts nothing."""
    return REQUEST_SECONDS.labels(name.model, name.version).observe


def batch_reporter(model: str) -> Callable[[BatchReport], None]:
    """Return a function that counts the batches of a model."""
    rows, seconds, waited = BATCH_ROWS.labels(model), BATCH_SECONDS.labels(model), QUEUE_SECONDS.labels(model)

    def report(batch: BatchReport) -> None:
        rows.observe(batch.rows)
        seconds.observe(batch.seconds)
        waited.observe(batch.waited_s)

    return report
