"""Metrics of the cache in this machine's shared memory, counted when they are asked for: its samples belong to no process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from modyn.cache.stores import memory_usage


class CacheCollector(Collector):
    """Reads how full each tier in a folder is; one that nothing has kept samples in has no value."""

    def __init__(self, folder: Path) -> None:
        """Args: folder: of an installation, by `shared_folder`."""
        self._folder = folder

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """As Prometheus asks for it."""
        tiers = memory_usage(self._folder).tiers
        for name, text, values in (
            ("budget", "Bytes that a tier in shared memory may use", [tier.budget_bytes for tier in tiers]),
            ("used", "Bytes that samples in a tier in shared memory use", [tier.used_bytes for tier in tiers]),
        ):
            family = GaugeMetricFamily(f"modyn_cache_memory_{name}_bytes", text, labels=["tier"])
            for tier, value in zip(tiers, values, strict=True):
                family.add_metric([tier.name], value)
            yield family
