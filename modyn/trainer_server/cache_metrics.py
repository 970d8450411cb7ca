"""Metrics of the cache, read when they are asked for: its samples belong to no process, and the counts of a training that runs are in its status."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from modyn.cache.breaker import CircuitBreaker
from modyn.cache.served_counts import ServedCounts
from modyn.cache.stores import StoreUsage, memory_usage, redis_usage
from modyn.cache.tier import StoredTier
from modyn.errors import ConfigError
from modyn.rpc.logs import get_logger
from modyn.trainer_server.client import TrainingStatus

ANSWER_S: Final = 0.1
"""For an answer of Redis. One that fails is asked again after 2, 4, 8 and 16 s: it is away until then."""
LOOK_S: Final = 0.5
"""For a whole look, which a scrape waits for; the resolution of a name is not bounded otherwise."""

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
    """Reads how full each tier is, in shared memory and in Redis, and what trainings that run had of it. A tier without a budget has no value."""

    def __init__(self, folder: Path, redis_url: str | None, running: Callable[[], Sequence[TrainingStatus]]) -> None:
        """Args: folder: of an installation, by `shared_folder`. redis_url: None: there is no Redis. running: statuses of trainings."""
        self._folder, self._running = folder, running
        self._redis = None if redis_url is None else RedisLook(lambda breaker: redis_usage(redis_url, breaker, ANSWER_S))

    def describe(self) -> Iterator[Metric]:
        """As Prometheus asks for it when this is registered: nothing, so that nothing is read then."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """As Prometheus asks for it."""
        yield from _of_store("memory", memory_usage(self._folder).tiers)
        if self._redis is not None:
            usage = self._redis.usage()
            is_up = GaugeMetricFamily("modyn_cache_redis_up", "Whether the Redis of the cache answers in time")
            is_up.add_metric([], float(usage is not None and usage.is_reachable))
            yield is_up
            yield from _of_store("redis", usage.tiers if usage is not None else ())
        yield from _of_trainings(self._running())


class RedisLook:
    """Looks at a Redis in a thread of its own, so that a scrape waits for a bounded time."""

    def __init__(self, look: Callable[[CircuitBreaker], StoreUsage], patience_s: float = LOOK_S) -> None:
        """Args: look: is given a breaker, which all looks share. patience_s: that an answer is waited for."""
        self._look, self._patience_s, self._breaker = look, patience_s, CircuitBreaker()
        self._lock = threading.Lock()  # Guards both below: scrapes may come at once.
        self._thread: threading.Thread | None = None
        self._found: StoreUsage | None = None

    def usage(self) -> StoreUsage | None:
        """What Redis holds now; None: that is not known in time. A look that still goes on is waited for, and no other begun."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._found = None
                self._thread = threading.Thread(target=self._work, name="cache-metrics", daemon=True)
                self._thread.start()
            thread = self._thread
        thread.join(self._patience_s)
        with self._lock:
            return self._found

    def _work(self) -> None:
        try:
            found = self._look(self._breaker)
        except ConfigError as error:  # of the URL, which trainings are refused for
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
    """Those that a cache takes part in, until now."""
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
