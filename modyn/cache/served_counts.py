"""Where the samples of a training came from, how often one was prepared for each that was served, and what the cache saved. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from modyn.cache.profile import CacheProfile


@dataclass(frozen=True, slots=True)
class ServedCounts:
    """Samples of a training, by source, and what was prepared besides them."""

    storage: int
    """Samples that no tier had."""
    encoded: int
    decoded: int
    augmented: int
    beside_read: int = 0
    """Samples that were read from storage for the cache only: the values that a sampler fills it with beside batches, and those whose size is
    measured before the first batch."""
    beside_decoded: int = 0
    """Samples that were decoded for the cache only."""
    beside_augmented: int = 0
    """The same, augmented."""
    evicted: int = 0
    """Values that the training's sampler had dropped from its tier."""
    not_asked: int = 0
    """Samples that were not looked up in a tier, since the store was slow or away just before: they came from another one, or storage."""

    @classmethod
    def of(cls, num_loaded: int, num_cached: Mapping[str, Any], work: Mapping[str, Any]) -> Self:
        """Count. Args: num_loaded: samples that the training was given. num_cached: of these, by tier. work: the fields of `CacheWork`."""
        cached = {name: int(num_cached.get(name, 0)) for name in ("encoded", "decoded", "augmented")}
        beside = {f"beside_{name}": int(work.get(name, 0)) for name in ("read", "decoded", "augmented")}
        # Never less than nothing: a sample that the cache had may be left out as a bad one.
        storage = max(0, num_loaded - sum(cached.values()))
        return cls(storage=storage, **cached, **beside, **{name: int(work.get(name, 0)) for name in ("evicted", "not_asked")})

    @classmethod
    def of_result(cls, result: Mapping[str, Any]) -> Self | None:
        """Count by the result of a training; None: no cache took part in it."""
        if "num_cached" not in result:
            return None
        downsampling = result.get("downsampling") or {}
        num_loaded = (
            downsampling["num_candidates"] if downsampling.get("mode") == "batch_then_sample" else result.get("num_samples", 0)
        )
        return cls.of(int(num_loaded), result["num_cached"], result.get("cache_work", {}))

    @property
    def served(self) -> int:
        """All samples that the training was given."""
        return self.storage + self.encoded + self.decoded + self.augmented

    @property
    def hit_share(self) -> float:
        """The part of these that came from a cache; 0 where there are none."""
        return 1 - self.storage / self.served if self.served else 0.0

    @property
    def decodings(self) -> int:
        """How often a sample was decoded: for a batch, or beside it."""
        return self.storage + self.encoded + self.beside_decoded

    @property
    def preparations(self) -> float:
        """Decodings for each sample that was served."""
        return self.decodings / self.served if self.served else 0.0

    def seconds_saved(self, profile: CacheProfile) -> float:
        """Estimate how much longer this machine would have prepared the samples without the cache: what was not read, decoded and augmented, less
        what was done for the cache only. Below 0: the cache has cost more than it saved. What reading from the cache takes is not counted."""
        hits = self.encoded + self.decoded + self.augmented
        saved = profile.preparation_s(hits, self.decoded + self.augmented, self.augmented)
        return saved - profile.preparation_s(self.beside_read, self.beside_decoded, self.beside_augmented)
