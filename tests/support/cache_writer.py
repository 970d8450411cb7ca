"""A process that keeps samples in a tier for as long as it lives: python -m tests.support.cache_writer redis|memory PLACE BUDGET FIRST NUM

It writes one line once it has kept something. With NUM it ends after NUM samples.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import numpy as np

from modyn.cache.tiers.memory_tier import MemoryTier
from modyn.cache.tiers.redis_tier import RedisTier
from modyn.cache.tiers.tier import CacheTier, TierPlace

NAMESPACE = b"twelve bytes"
BATCH = 8


def content(key: int) -> bytes:
    """The only buffer that a sample of this key may have. Of 0 to 12,000 bytes."""
    return f"{key:08d}".encode() * (key * 7919 % 1500)


def open_tier(kind: str, where: str, budget: int, namespace: bytes = NAMESPACE) -> CacheTier:
    """The tier 'decoded' in a Redis, `where` is its URL, or in a folder. With a time-out that also a busy machine keeps."""
    place = TierPlace("decoded", namespace, budget)
    tier: CacheTier = RedisTier(where, place, timeout_s=20.0) if kind == "redis" else MemoryTier(place, Path(where))
    tier.open()
    return tier


def main(kind: str, where: str, budget: str, first: str, num: str = "") -> None:
    """Keep samples from `first` on, and drop some of them again."""
    tier = open_tier(kind, where, int(budget))
    rounds = range(int(num) // BATCH) if num else count()
    for i in rounds:
        keys = int(first) + np.arange(i * BATCH, (i + 1) * BATCH)
        tier.put(keys, [content(key) for key in keys.tolist()])
        tier.drop(keys[: i % 3] - BATCH)
        if i == 2:
            print("keeping", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
