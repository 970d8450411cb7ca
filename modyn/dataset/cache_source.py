"""What names a cache of samples, to be opened in the process that reads."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from modyn.cache.breaker import CircuitBreaker
from modyn.cache.keys import TierName
from modyn.cache.memory_tier import MemoryTier
from modyn.cache.tier import CacheTier, StoreName, TierPlace
from modyn.config.cache import SamplerName, managed_tier
from modyn.errors import ConfigError, ConflictError, UnavailableError
from modyn.rpc.logs import get_logger

if TYPE_CHECKING:
    from modyn.cache.sample_codec import Compression
    from modyn.dataset.sample_cache import SampleCache, TierInUse


_LOCK: Final = threading.Lock()
_BREAKERS: Final[WeakValueDictionary[str, CircuitBreaker]] = WeakValueDictionary()
"""By address. Each lives as long as something that was opened uses it; `_LOCK` guards them."""


@dataclass(frozen=True, slots=True)
class CacheSource:
    """Where the cached samples of one dataset lie. Picklable: each process opens it for itself, since connections do not survive a fork."""

    store: StoreName
    address: str = field(repr=False)
    """A folder, or the URL of Redis, which may hold a password."""
    places: Mapping[TierName, TierPlace]
    compression: Compression = "none"
    sampler: SamplerName = "static"
    """What decides the order of trainings, and which values one of the tiers holds."""
    jobs: int = 1
    """Trainings that are to share it at once."""

    @property
    def managed(self) -> TierName | None:
        """The tier that is the sampler's; None: values stay wherever there is room for them, and the order is that of the plan."""
        return managed_tier(self.sampler)

    @property
    def breaker(self) -> CircuitBreaker:
        """Of the Redis: one for all that this process has open of it, so that one that is away is waited for once."""
        with _LOCK:
            return _BREAKERS.setdefault(self.address, CircuitBreaker())

    def open(self) -> SampleCache:
        """Open the tiers of encoded and decoded samples, but for that of the sampler: augmented ones would be served again and again. A tier that
        cannot be used now, or to which others have given another budget, is left out.

        Raises: ConfigError: something is not installed.
        """
        from modyn.dataset.sample_cache import SampleCache

        return SampleCache(self._opened([name for name in self.places if name not in ("augmented", self.managed)]))

    def open_managed(self) -> TierInUse | None:
        """Open the tier of the sampler; None: there is none, or it cannot be used now. Raises as `open`."""
        opened = self._opened([name for name in self.places if name == self.managed])
        return next(iter(opened.values()), None)

    def _opened(self, names: Sequence[TierName]) -> dict[TierName, TierInUse]:
        # Imported here: services that only name a source start without PyTorch.
        from modyn.cache.sample_codec import SampleCodec
        from modyn.dataset.sample_cache import TierInUse

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
        """Make one of the tiers, without opening it. Args: breaker: shared with others of the same store; None: one of its own."""
        if self.store == "memory":
            return MemoryTier(place, Path(self.address))
        # Imported here: its library is needed by nothing else, and most workers have no such tier.
        from modyn.cache.redis_tier import RedisTier

        return RedisTier(self.address, place, breaker)
