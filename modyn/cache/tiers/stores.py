"""Show and clear the content of an installation's store, for all datasets. Imports no torch."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final, get_args

from modyn.cache.keys import TierName
from modyn.cache.tiers.breaker import BreakerState, CircuitBreaker
from modyn.cache.tiers.memory_tier import MemoryTier
from modyn.cache.tiers.tier import StoredTier, StoreName, TierPlace
from modyn.errors import ConfigError, ConflictError, UnavailableError
from modyn.rpc.logs import get_logger

TIERS: Final[tuple[TierName, ...]] = get_args(TierName)
_ANSWER_S: Final = 1.0
"""Longest wait in seconds for an answer of Redis. The wait may be long, because only a person waits for the answer."""
CLAIM_S: Final = 1.0
"""Longest wait in seconds for another training that is claiming its tiers."""
CLEAR_S: Final = 5.0
"""Longest wait in seconds for trainings that are storing samples."""


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """Content of a store."""

    store: StoreName
    where: str
    """A folder, or the address of Redis without user and password."""
    tiers: tuple[StoredTier, ...]
    """Tiers that have a budget in the store."""
    is_reachable: bool = True

    @property
    def used_bytes(self) -> int:
        """Bytes that all tiers of the store use."""
        return sum(tier.used_bytes for tier in self.tiers)


def memory_usage(folder: Path) -> StoreUsage:
    """Count the content of shared memory. Args: folder: folder of an installation, see `shared_folder`; the folder may be missing."""
    found = [_memory_tier(folder, name).stored() for name in TIERS]
    return StoreUsage("memory", str(folder), tuple(tier for tier in found if tier and tier.budget_bytes))


def redis_usage(url: str, breaker: CircuitBreaker | None = None, answer_s: float = _ANSWER_S) -> StoreUsage:
    """Count the content of a Redis, for all installations that share this Redis.

    Args: breaker: circuit breaker of earlier calls; None: Redis is always asked. answer_s: seconds for each answer. Raises: ConfigError: the URL is
    wrong.
    """
    from modyn.cache.tiers.redis_address import address_of
    from modyn.cache.tiers.redis_tier import RedisTier

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
    """Check that a Redis accepts this installation. A Redis that does not answer is accepted, because trainings work without Redis.

    Raises: ConfigError: Redis refuses the password, the user may not write, or the URL is wrong.
    """
    from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

    from modyn.cache.tiers.redis_address import RedisAddress

    address = RedisAddress(url, answer_s)
    try:
        with closing(address.connect()) as client:
            # A script with a hash command needs the same rights as the tiers.
            client.eval("return redis.call('HGET', KEYS[1], 'budget')", 1, "modyn:cache:access")
    except (AuthenticationError, NoPermissionError) as error:
        raise ConfigError(
            f"the Redis at {address.where} refuses this installation: {error}; correct the password in `redis_url` or `redis_password_file`, or let "
            "that user run scripts and hash commands on keys `modyn:*`"
        ) from None
    except (RedisError, OSError) as error:
        get_logger("cache").info("redis_not_checked", redis=address.where, reason=str(error) or type(error).__name__)


def check_redis_room(url: str, num_bytes: int) -> None:
    """Check that a Redis may hold all tiers together. Raises ConfigError: the memory limit of Redis is too small, or the URL is wrong."""
    from modyn.cache.tiers.redis_address import address_of
    from modyn.cache.tiers.redis_tier import RedisTier

    tier = RedisTier(url, _place(TIERS[0]))
    room = tier.room()
    tier.close()
    if room < num_bytes:
        raise ConfigError(
            f"the cache is to have {num_bytes:,} bytes, and the Redis at {address_of(url)} may hold {room:,.0f} (`maxmemory`): give `size` less, or "
            "that Redis more"
        )


class Adopts(Enum):
    """Existing divisions of a store that a training accepts instead of its own, if the total size is the same."""

    NONE = auto()
    IN_USE = auto()
    """A division that is in use."""
    SAME_TIERS = auto()
    """A division that is in use, or an unused division with the wanted tiers, because its samples are worth more than the wanted sizes."""


def claim_budgets(
    budgets: Mapping[TierName, int],
    stored: Callable[[], Sequence[StoredTier]],
    open_tier: Callable[[TierName, int], None],
    adopts: Adopts,
    patience_s: float = CLAIM_S,
) -> Mapping[TierName, int]:
    """Agree on the division of a store with other trainings that use the store. Returns the valid budgets.

    Args: budgets: wanted bytes by tier. stored: returns the tiers of the store. open_tier: opens a tier with a budget, and thereby claims the budget.
    patience_s: longest wait for another training that is dividing the store.
    Raises: ConflictError: the store is in use with another division. ConfigError: the store is too small.
    """
    size, give_up = sum(budgets.values()), time.monotonic() + patience_s
    held = _held(stored(), size)
    if adopts is Adopts.SAME_TIERS and set(budgets) <= set(held):
        budgets = held
    try:
        for name in TIERS:
            # Tiers without a budget are claimed too, so that no tier of another division is left. The order is fixed: if two trainings divide the
            # store at once, one of them finds the other training's budget at the first tier that differs.
            open_tier(name, budgets.get(name, 0))
    except ConflictError:
        while adopts is not Adopts.NONE:
            if held := _held(stored(), size):
                return held
            if time.monotonic() > give_up:
                break
            # The other training may still be dividing the store.
            time.sleep(CLAIM_S / 50)
        raise
    return budgets


def _held(stored: Sequence[StoredTier], size: int) -> Mapping[TierName, int]:
    """Return the division of a store; empty: the store is not divided, or has another size."""
    by_name = {tier.name: tier.budget_bytes for tier in stored if tier.budget_bytes}
    # The bytes of each tier were rounded down.
    is_as_large = abs(sum(by_name.values()) - size) < len(TIERS)
    return {name: by_name[name] for name in TIERS if name in by_name} if is_as_large else {}


def clear_memory(folder: Path, tiers: tuple[TierName, ...] = TIERS, patience_s: float = CLEAR_S) -> int:
    """Remove the samples and budgets of tiers in shared memory. Returns the freed bytes.

    Args: patience_s: longest wait for processes that are storing samples.
    Raises: UnavailableError: a stopped or busy process holds a lock, or a folder belongs to another user.
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
                reason = "a process keeps it locked: end that process, or try again"
            except OSError as error:
                if error.errno == errno.ENOENT:  # Another process cleared the tier meanwhile.
                    break
                reason = error.strerror or str(error)
            raise UnavailableError(f"cannot clear the tier '{name}' in {folder}: {reason}")
    return freed


def clear_redis(url: str, tiers: tuple[TierName, ...] = TIERS) -> int:
    """Clear tiers in a Redis like `clear_memory`, for all installations that share this Redis. Raises: UnavailableError: Redis does not answer.
    ConfigError: the URL is wrong."""
    from modyn.cache.tiers.redis_address import address_of
    from modyn.cache.tiers.redis_tier import RedisTier

    check_redis_access(url)
    breaker, freed = CircuitBreaker(), 0
    for name in tiers:
        tier = RedisTier(url, _place(name), breaker, CLEAR_S)
        stored = tier.stored()
        tier.clear()
        tier.close()
        if breaker.num_failures:
            raise UnavailableError(f"the Redis at {address_of(url)} does not answer, so the cache there is not cleared")
        freed += stored.used_bytes if stored else 0
    return freed


def _memory_tier(folder: Path, name: TierName) -> MemoryTier:
    return MemoryTier(_place(name), folder)


def _place(name: TierName) -> TierPlace:
    """Return a place for a tier object that keeps no samples."""
    return TierPlace(name, b"", 0)
