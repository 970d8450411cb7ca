"""Metrics of the cache. Each scrape reads the usage of the stores, because no process owns cached samples, and the statuses of running trainings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from modyn.cache.served_counts import ServedCounts
from modyn.cache.tiers.breaker import CircuitBreaker
from modyn.cache.tiers.stores import StoreUsage, memory_usage, redis_usage
from modyn.cache.tiers.tier import StoredTier
from modyn.errors import ConfigError
from modyn.rpc.logs import get_logger
from modyn.trainer_server.request.records import TrainingStatus

ANSWER_S: Final = 0.1
"""Limit in seconds for a response of Redis. After a failure, Redis counts as unavailable until the next request: 2 s later, then 4, 8 and 16 s."""
LOOK_S: Final = 0.5
"""Limit in seconds on the wait of a scrape for Redis. This limit also bounds the resolution of the host name, which `ANSWER_S` does not."""

_GAUGES: Final[Sequence[tuple[str, str, Callable[[StoredTier], int]]]] = (
    ("budget_bytes", "Bytes that a tier may use", lambda tier: tier.budget_bytes),
    ("used_bytes", "Bytes that samples in a tier use", lambda tier: tier.used_bytes),
    ("samples", "Samples in a tier", lambda tier: tier.num_samples),
)
_COUNTERS: Final[Sequence[tuple[str, str, Callable[[StoredTier], int]]]] = (
    ("evicted_samples", "Samples that were evicted from a tier since it was made or cleared", lambda tier: tier.num_evicted),
    ("evicted_bytes", "Bytes that these used", lambda tier: tier.evicted_bytes),
)


class CacheCollector(Collector):
    """Reads the usage of each tier in shared memory and in Redis, and the cache counts of running trainings. Omits tiers without a budget."""

    def __init__(self, folder: Path, redis_url: str | None, running: Callable[[], Sequence[TrainingStatus]]) -> None:
        """Args: folder: `shared_folder` of the installation. redis_url: None without Redis. running: returns the statuses of running trainings."""
        self._folder, self._running = folder, running
        self._redis = None if redis_url is None else RedisLook(lambda breaker: redis_usage(redis_url, breaker, ANSWER_S))

    def describe(self) -> Iterator[Metric]:
        """Describe no metric, so that the registration of this collector reads no store."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Return the metrics for a scrape."""
        yield from _of_store("memory", memory_usage(self._folder).tiers)
        if self._redis is not None:
            usage = self._redis.usage()
            is_up = GaugeMetricFamily("modyn_cache_redis_up", "Whether the Redis of the cache answers in time")
            is_up.add_metric([], float(usage is not None and usage.is_reachable))
            yield is_up
            yield from _of_store("redis", usage.tiers if usage is not None else ())
        yield from _of_trainings(self._running())


class RedisLook:
    """Reads the usage of a Redis in a separate thread, so that a scrape can limit its wait."""

    def __init__(self, look: Callable[[CircuitBreaker], StoreUsage], patience_s: float = LOOK_S) -> None:
        """Args: look: reads the usage; every call gets the same circuit breaker. patience_s: limit in seconds on a wait."""
        self._look, self._patience_s, self._breaker = look, patience_s, CircuitBreaker()
        self._lock = threading.Lock()  # Guards the two fields below against simultaneous scrapes. Not held during calls to Redis.
        self._thread: threading.Thread | None = None
        self._found: StoreUsage | None = None

    def usage(self) -> StoreUsage | None:
        """Return the usage of Redis; None without a response in time. Starts a thread only if no earlier thread still runs."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._found = None
                self._thread = threading.Thread(target=self._work, name="cache-metrics", daemon=True)
                self._thread.start()
            thread = self._thread
        # The wait ends with the response of Redis, or after `patience_s`. The lock is not held, because the thread needs it to store its result.
        thread.join(self._patience_s)
        with self._lock:
            return self._found

    def _work(self) -> None:
        try:
            found = self._look(self._breaker)
        except ConfigError as error:  # the URL is wrong; trainings are refused for the same reason
            get_logger("cache").warning("cache_not_measured", reason=error.message)
            return
        with self._lock:
            self._found = found


def _of_store(store: str, tiers: Sequence[StoredTier]) -> Iterator[Metric]:
    where = "shared memory" if store == "memory" else "Redis"
    for name, text, value in _GAUGES:
        gauge = GaugeMetricFamily(f"modyn_cache_{store}_{name}", f"{text}, in {where}", labels=["tier"])
        for tier in tiers:
            gauge.add_metric([tier.name], value(tier))
        yield gauge
    for name, text, value in _COUNTERS:
        counter = CounterMetricFamily(f"modyn_cache_{store}_{name}", f"{text}, in {where}", labels=["tier"])
        for tier in tiers:
            counter.add_metric([tier.name], value(tier))
        yield counter


def _of_trainings(statuses: Sequence[TrainingStatus]) -> Iterator[Metric]:
    """Yield the metrics of running trainings with a cache."""
    samples = GaugeMetricFamily(
        "modyn_cache_training_samples",
        "Samples that a training which runs was given, by where they came from",
        labels=["run", "trigger", "source"],
    )
    decoded = GaugeMetricFamily(
        "modyn_cache_training_decoded_samples",
        "Samples that a training which runs has decoded, for batches and for the cache only",
        labels=["run", "trigger"],
    )
    for status in statuses:
        if any(status.num_cached.values()) or any(status.cache_work.values()):
            counts = ServedCounts.of(status.samples_loaded, status.num_cached, status.cache_work)
            labels = [str(status.run_id), str(status.trigger_id)]
            for source in ("storage", "encoded", "decoded", "augmented"):
                samples.add_metric([*labels, source], getattr(counts, source))
            decoded.add_metric(labels, counts.decodings)
    yield samples
    yield decoded
