"""What Prometheus sees of a cache is what lies in its folder at that moment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from modyn.cache.memory_tier import MemoryTier
from modyn.cache.tier import TierPlace
from modyn.trainer_server.cache_metrics import CacheCollector

PLACE = TierPlace("decoded", b"twelve bytes", 102_400)


def test_budgets_and_bytes_are_those_of_now(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    registry.register(CacheCollector(tmp_path / "cache"))

    def values() -> list[float | None]:
        names = ("modyn_cache_memory_budget_bytes", "modyn_cache_memory_used_bytes")
        return [registry.get_sample_value(name, {"tier": "decoded"}) for name in names]

    assert values() == [None, None]
    tier = MemoryTier(PLACE, tmp_path / "cache")
    tier.open()
    assert values() == [102_400, 0]
    assert tier.put(np.arange(3), [b"x"] * 3).all()
    assert values() == [102_400, 3 * tier.charge(1)]
    tier.clear()
    assert values() == [None, None]
