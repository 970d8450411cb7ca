"""Clear the states of shared caches, in all namespaces of an installation. A running training begins a new state by itself."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

from modyn.errors import UnavailableError

SHARING: Final = "sharing"
"""Folder of the states in memory, next to the folders of the tiers."""
REDIS_KEYS: Final = "modyn:sharing:*"
"""Pattern of the keys of `RedisState`."""
_GONE: Final = ".gone-"
"""Mark in the name of a folder that is being removed. If the process ends before the removal is complete, the next call removes the rest."""
_ANSWER_S: Final = 5.0
"""Longest wait in seconds for an answer of Redis."""
_TOGETHER: Final = 500
"""Largest number of keys in one scan call."""


def clear_memory_states(folder: Path) -> None:
    """Remove the states in shared memory. Args: folder: folder of an installation, see `shared_folder`. Raises: UnavailableError: the folder cannot
    be changed."""
    try:
        # Rename the folder first: a training that starts meanwhile makes a new folder.
        with suppress(FileNotFoundError):
            os.rename(folder / SHARING, folder / f"{SHARING}{_GONE}{token_hex(4)}")
        for gone in folder.glob(f"{SHARING}{_GONE}*"):
            shutil.rmtree(gone)
    except OSError as error:
        raise UnavailableError(f"cannot clear {folder / SHARING}: {error.strerror or error}") from error
    with suppress(OSError):  # The folder may still contain tiers, or may not exist.
        folder.rmdir()


def clear_redis_states(url: str) -> None:
    """Remove the states of all installations from a Redis. Raises: UnavailableError: Redis does not answer. ConfigError: the URL is
    wrong."""
    from redis.exceptions import RedisClusterException, RedisError

    from modyn.cache.tiers.redis_address import RedisAddress

    address = RedisAddress(url, _ANSWER_S)
    try:
        client = address.connect()
        try:
            for key in client.scan_iter(match=REDIS_KEYS, count=_TOGETHER):
                client.unlink(key)
        finally:
            client.close()
    except (RedisError, RedisClusterException, OSError) as error:
        raise UnavailableError(
            f"the Redis at {address.where} does not answer, so the shared state of the cache there is not cleared"
        ) from error
