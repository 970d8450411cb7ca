"""Address of a cache of samples, which each reading process opens."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from modyn.cache.keys import TierName
from modyn.cache.tiers.breaker import CircuitBreaker
from modyn.cache.tiers.memory_tier import MemoryTier
from modyn.cache.tiers.tier import CacheTier, StoreName, TierPlace
from modyn.config.cache import SamplerName, managed_tier
from modyn.errors import ConfigError, ConflictError, UnavailableError
from modyn.rpc.logs import get_logger

if TYPE_CHECKING:
    from modyn.cache.sample_codec import Compression
    from modyn.dataset.cached.sample_cache import SampleCache, TierInUse


_LOCK: Final = threading.Lock()
_BREAKERS: Final[WeakValueDictionary[str, CircuitBreaker]] = WeakValueDictionary()
"""Circuit breakers by address. A breaker lives as long as an open tier or state uses it. `_LOCK` guards this table, so that each Redis has one
breaker.
"""


@dataclass(frozen=True, slots=True)
class CacheSource:
    """Identifies the cached samples of one dataset. Picklable. Each process opens the cache for itself, because connections do not survive a fork."""

    store: StoreName
    address: str = field(repr=False)
    """A folder, or the URL of Redis, which may hold a password."""
    places: Mapping[TierName, TierPlace]
    compression: Compression = "none"
    sampler: SamplerName = "static"
    """Name of the sampler, which decides the sample order of trainings and the values of one tier."""
    jobs: int = 1
    """Number of trainings that share the cache at once."""

    @property
    def managed(self) -> TierName | None:
        """Name of the tier that the sampler manages; None: each tier keeps values while the tier has room, and the training's plan decides the
        order.
        """
        return managed_tier(self.sampler)

    @property
    def breaker(self) -> CircuitBreaker:
        """The circuit breaker of the Redis. All users in this process share the breaker, so that they wait only once for an unavailable Redis."""
        with _LOCK:
            return _BREAKERS.setdefault(self.address, CircuitBreaker())

    def open(self) -> SampleCache:
        """Open the tiers of encoded and decoded samples, except for the tier of the sampler. Augmented samples are left out, because a training could
        get the same augmented sample more than once. A tier that cannot be used now, or that has another budget, is left out too.

        Raises: ConfigError: a package is not installed.
        """
        from modyn.dataset.cached.sample_cache import SampleCache

        return SampleCache(self._open_tiers([name for name in self.places if name not in ("augmented", self.managed)]))

    def open_managed(self) -> TierInUse | None:
        """Open the tier of the sampler. Returns None if the cache has no such tier, or if the tier cannot be used now. Raises as `open`."""
        opened = self._open_tiers([name for name in self.places if name == self.managed])
        return next(iter(opened.values()), None)

    def _open_tiers(self, names: Sequence[TierName]) -> dict[TierName, TierInUse]:
        # Imported here: services that only name a source start without PyTorch.
        from modyn.cache.sample_codec import SampleCodec
        from modyn.dataset.cached.sample_cache import TierInUse

        codec, breaker = SampleCodec(self.compression), self.breaker
        opened: dict[TierName, TierInUse] = {}
        for name in names:
            tier = self.tier(self.places[name], breaker)
            try:
                tier.open()
            except (ConfigError, ConflictError, UnavailableError) as error:
                get_logger("cache").warning("cache_away", tier=name, reason=error.message)
                continue
            opened[name] = TierInUse(self.places[name], tier, codec)
        return opened

    def tier(self, place: TierPlace, breaker: CircuitBreaker | None = None) -> CacheTier:
        """Make one of the tiers, without opening it. Args: breaker: circuit breaker that the tiers of a store share; None: a new one."""
        if self.store == "memory":
            return MemoryTier(place, Path(self.address))
        # Imported here, because most workers have no such tier and nothing else needs its library.
        from modyn.cache.tiers.redis_tier import RedisTier

        return RedisTier(self.address, place, breaker)
