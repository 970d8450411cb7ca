"""Forget what trainings know together of the values that they share, in all namespaces of an installation. Each of them begins anew by itself."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

from modyn.errors import UnavailableError

SHARING: Final = "sharing"
"""Folder of the states in memory, beside those of the tiers."""
REDIS_KEYS: Final = "modyn:sharing:*"
"""As `RedisState` names them."""
_GONE: Final = ".gone-"
_ANSWER_S: Final = 5.0
_TOGETHER: Final = 500
"""Keys that are looked for in one call."""


def clear_memory_states(folder: Path) -> None:
    """Forget the states in shared memory. Args: folder: of an installation, by `shared_folder`. Raises: UnavailableError: it cannot be changed."""
    try:
        # Under another name first: a training that comes meanwhile makes a new folder.
        with suppress(FileNotFoundError):
            os.rename(folder / SHARING, folder / f"{SHARING}{_GONE}{token_hex(4)}")
        for gone in folder.glob(f"{SHARING}{_GONE}*"):
            shutil.rmtree(gone)
    except OSError as error:
        raise UnavailableError(f"cannot clear {folder / SHARING}: {error.strerror or error}") from error
    with suppress(OSError):  # tiers are in it, or it is not there
        folder.rmdir()


def clear_redis_states(url: str) -> None:
    """Forget the states in a Redis, of all installations that share it. Raises: UnavailableError: it does not answer. ConfigError: the URL is
    wrong."""
    from redis.exceptions import RedisClusterException, RedisError

    from modyn.cache.redis_address import RedisAddress

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
            f"the Redis at {address.where} does not answer, so that what trainings share of the cache there is not cleared"
        ) from error
