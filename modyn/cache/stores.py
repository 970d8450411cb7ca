"""All that an installation keeps in a store, without knowing which datasets: to be seen and cleared. Imports no torch."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final, get_args

from modyn.cache.breaker import BreakerState, CircuitBreaker
from modyn.cache.keys import TierName
from modyn.cache.memory_tier import MemoryTier
from modyn.cache.tier import StoredTier, StoreName, TierPlace
from modyn.errors import ConfigError, ConflictError, UnavailableError
from modyn.rpc.logs import get_logger

TIERS: Final[tuple[TierName, ...]] = get_args(TierName)
_ANSWER_S: Final = 1.0
"""For an answer of Redis: nothing waits for this but a person."""
CLAIM_S: Final = 1.0
"""For another training, which claims one tier after the other."""
CLEAR_S: Final = 5.0
"""For trainings that keep samples just now."""


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """What a store holds."""

    store: StoreName
    where: str
    """A folder, or the address of Redis without user and password."""
    tiers: tuple[StoredTier, ...]
    """Those that have a budget there."""
    is_reachable: bool = True

    @property
    def used_bytes(self) -> int:
        """Of all its tiers."""
        return sum(tier.used_bytes for tier in self.tiers)


def memory_usage(folder: Path) -> StoreUsage:
    """Count what lies in shared memory. Args: folder: of an installation, by `shared_folder`; it need not be there."""
    found = [_memory_tier(folder, name).stored() for name in TIERS]
    return StoreUsage("memory", str(folder), tuple(tier for tier in found if tier and tier.budget_bytes))


def redis_usage(url: str, breaker: CircuitBreaker | None = None, answer_s: float = _ANSWER_S) -> StoreUsage:
    """Count what lies in a Redis, of all installations that share it.

    Args: breaker: of earlier looks; None: it is asked in any case. answer_s: for each of its answers. Raises: ConfigError: the URL is wrong.
    """
    from modyn.cache.redis_address import address_of
    from modyn.cache.redis_tier import RedisTier

    breaker, found = breaker or CircuitBreaker(), list[StoredTier | None]()
    for name in TIERS:
        tier = RedisTier(url, _place(name), breaker, answer_s)
        found.append(tier.stored())
        tier.close()
    return StoreUsage(
        "redis",
        address_of(url),
        tuple(tier for tier in found if tier and tier.budget_bytes),
        breaker.state is BreakerState.CLOSED,
    )


def check_redis_access(url: str, answer_s: float = _ANSWER_S) -> None:
    """Check that a Redis lets this installation in. One that does not answer passes: trainings do without it.

    Raises: ConfigError: it does not take the password, or it may not be written to with it; or the URL is wrong.
    """
    from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

    from modyn.cache.redis_address import RedisAddress

    address = RedisAddress(url, answer_s)
    try:
        with closing(address.connect()) as client:
            client.eval("return redis.call('HGET', KEYS[1], 'budget')", 1, "modyn:cache:access")
    except (AuthenticationError, NoPermissionError) as error:
        raise ConfigError(
            f"the Redis at {address.where} refuses this installation: {error}; correct the password in `redis_url` or `redis_password_file`, or let "
            "that user run scripts and hash commands on keys `modyn:*`"
        ) from None
    except (RedisError, OSError) as error:
        get_logger("cache").info("redis_not_checked", redis=address.where, reason=str(error) or type(error).__name__)


def check_redis_room(url: str, num_bytes: int) -> None:
    """Check that a Redis may hold all tiers together. Raises ConfigError: it may not, or the URL is wrong."""
    from modyn.cache.redis_address import address_of
    from modyn.cache.redis_tier import RedisTier

    tier = RedisTier(url, _place(TIERS[0]))
    room = tier.room()
    tier.close()
    if room < num_bytes:
        raise ConfigError(
            f"the cache is to have {num_bytes:,} bytes, and the Redis at {address_of(url)} may hold {room:,.0f} (`maxmemory`): give `size` less, or "
            "that Redis more"
        )


class Adopts(Enum):
    """Which division that others have made of as many bytes is as good as the one that is wanted."""

    NONE = auto()
    IN_USE = auto()
    """One that is in use."""
    SAME_TIERS = auto()
    """Also one that is not, and has the tiers that are wanted: what it holds is worth more than the difference."""


def claim_budgets(
    budgets: Mapping[TierName, int],
    stored: Callable[[], Sequence[StoredTier]],
    open_tier: Callable[[TierName, int], None],
    adopts: Adopts,
    patience_s: float = CLAIM_S,
) -> Mapping[TierName, int]:
    """Agree with the trainings that use a store on how it is divided: returned are the budgets that hold.

    Args: budgets: wanted, by tier. stored: looks up what the store holds. open_tier: opens a tier with a budget, which claims it. patience_s: for
    another training that divides it just now.
    Raises: ConflictError: the store is in use, and divided otherwise. ConfigError: it cannot hold this much.
    """
    size, give_up = sum(budgets.values()), time.monotonic() + patience_s
    held = _held(stored(), size)
    if adopts is Adopts.SAME_TIERS and set(budgets) <= set(held):
        budgets = held
    try:
        for name in TIERS:
            # Also without budget: so that no tier of another division is left beside these. Always in this order: of two trainings that divide it at
            # once, one meets the budget of the other at the first tier in which they differ.
            open_tier(name, budgets.get(name, 0))
    except ConflictError:
        while adopts is not Adopts.NONE:
            if held := _held(stored(), size):
                return held
            if time.monotonic() > give_up:
                break
            time.sleep(CLAIM_S / 50)
        raise
    return budgets


def _held(stored: Sequence[StoredTier], size: int) -> Mapping[TierName, int]:
    """How a store is divided; nothing: it is not, or has another size."""
    by_name = {tier.name: tier.budget_bytes for tier in stored if tier.budget_bytes}
    # Each tier is rounded down.
    is_as_large = abs(sum(by_name.values()) - size) < len(TIERS)
    return {name: by_name[name] for name in TIERS if name in by_name} if is_as_large else {}


def clear_memory(folder: Path, tiers: tuple[TierName, ...] = TIERS, patience_s: float = CLEAR_S) -> int:
    """Forget the samples of tiers, and their budgets, in shared memory. Returns how many bytes they have used.

    Args: patience_s: for processes that keep samples just now.
    Raises: UnavailableError: a process that is stopped or busy holds one, or it belongs to another user.
    """
    freed, give_up = 0, time.monotonic() + patience_s
    for name in tiers:
        tier = _memory_tier(folder, name)
        while (stored := tier.stored()) is not None:
            try:
                tier.remove()
                freed += stored.used_bytes
                break
            except BlockingIOError:
                if time.monotonic() < give_up:
                    continue
                reason = "a process that works on it does not let go: end it, or try again"
            except OSError as error:
                if error.errno == errno.ENOENT:  # others have cleared it meanwhile
                    break
                reason = error.strerror or str(error)
            raise UnavailableError(f"cannot clear the tier '{name}' in {folder}: {reason}")
    return freed


def clear_redis(url: str, tiers: tuple[TierName, ...] = TIERS) -> int:
    """As `clear_memory`, in a Redis, for all installations that share it. Raises: UnavailableError: it does not answer. ConfigError: the URL is
    wrong."""
    from modyn.cache.redis_address import address_of
    from modyn.cache.redis_tier import RedisTier

    check_redis_access(url)
    breaker, freed = CircuitBreaker(), 0
    for name in tiers:
        tier = RedisTier(url, _place(name), breaker, CLEAR_S)
        stored = tier.stored()
        tier.clear()
        tier.close()
        if breaker.num_failures:
            raise UnavailableError(
                f"the Redis at {address_of(url)} does not answer, so that what it holds of the cache is not cleared"
            )
        freed += stored.used_bytes if stored else 0
    return freed


def _memory_tier(folder: Path, name: TierName) -> MemoryTier:
    return MemoryTier(_place(name), folder)


def _place(name: TierName) -> TierPlace:
    """That of a tier which keeps nothing itself."""
    return TierPlace(name, b"", 0)
