"""Statistics of the cache for one training: sources of samples, preparations for each served sample, and saved time. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from modyn.cache.plan.profile import CacheProfile


@dataclass(frozen=True, slots=True)
class ServedCounts:
    """Samples of a training by source, and samples that were prepared for the cache only."""

    storage: int
    """Samples that came from storage, because no tier had them."""
    encoded: int
    decoded: int
    augmented: int
    fill_read: int = 0
    """Samples that were read from storage for the cache only, to fill the cache in the background, or to measure sizes before the first batch."""
    fill_decoded: int = 0
    """Samples that were decoded for the cache only."""
    fill_augmented: int = 0
    """Samples that were augmented for the cache only."""
    evicted: int = 0
    """Values that the training's sampler removed from the cache."""
    not_asked: int = 0
    """Samples that were not looked up in a tier, because the store was slow or unavailable. These samples came from another tier or from storage."""

    @classmethod
    def of(cls, num_loaded: int, num_cached: Mapping[str, Any], work: Mapping[str, Any]) -> Self:
        """Count the samples of a training. Args: num_loaded: number of samples that the training received. num_cached: tier → number of samples from
        this tier. work: the fields of `CacheWork`."""
        cached = {name: int(num_cached.get(name, 0)) for name in ("encoded", "decoded", "augmented")}
        fills = {f"fill_{name}": int(work.get(name, 0)) for name in ("read", "decoded", "augmented")}
        # At least 0: `num_loaded` omits bad samples, which `num_cached` may contain.
        storage = max(0, num_loaded - sum(cached.values()))
        return cls(storage=storage, **cached, **fills, **{name: int(work.get(name, 0)) for name in ("evicted", "not_asked")})

    @property
    def served(self) -> int:
        """All samples that the training got."""
        return self.storage + self.encoded + self.decoded + self.augmented

    @property
    def hit_share(self) -> float:
        """Share of the served samples that came from the cache, 0 … 1; 0 without samples."""
        return 1 - self.storage / self.served if self.served else 0.0

    @property
    def decodings(self) -> int:
        """Number of decodings, for batches and for the cache only."""
        return self.storage + self.encoded + self.fill_decoded

    @property
    def preparations(self) -> float:
        """Decodings for each sample that was served."""
        return self.decodings / self.served if self.served else 0.0

    def seconds_saved(self, profile: CacheProfile) -> float:
        """Estimate the preparation time that the cache saved on this machine: the time of omitted reads, decodings and augmentations, minus the time
        of work for the cache only. A negative result means that the cache cost more than it saved. The time of reading from the cache does not count.
        """
        hits = self.encoded + self.decoded + self.augmented
        saved = profile.preparation_s(hits, self.decoded + self.augmented, self.augmented)
        return saved - profile.preparation_s(self.fill_read, self.fill_decoded, self.fill_augmented)
