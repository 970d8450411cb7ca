"""Limits of stored items by age, number and size, and the choice of items to remove."""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from modyn.atomic_write import make_folder

K = TypeVar("K", bound=Hashable)

_IN_USE_S = 3600.0


@dataclass(frozen=True, slots=True)
class KeepLimits:
    """Bounds of stored items; None: no bound. max_age_s: seconds. max_bytes: total of all items."""

    max_age_s: float | None = None
    max_number: int | None = None
    max_bytes: int | None = None

    def __bool__(self) -> bool:
        """Return whether there is a bound."""
        return any(limit is not None for limit in (self.max_age_s, self.max_number, self.max_bytes))


@dataclass(frozen=True, slots=True)
class KeptItem(Generic[K]):
    """A stored item. since: seconds since 1970."""

    key: K
    since: float
    num_bytes: int = 0


def outlived(items: Iterable[KeptItem[K]], limits: KeepLimits, now: float) -> list[K]:
    """Return the keys of the items to remove, oldest first: items that are too old, and further old items until number and size are within limits.

    >>> items = [KeptItem("a", 10, 5), KeptItem("b", 20, 5), KeptItem("c", 30, 5)]
    >>> outlived(items, KeepLimits(max_age_s=75), now=100), outlived(items, KeepLimits(max_bytes=9), now=100)
    (['a', 'b'], ['a', 'b'])
    """
    number = total = 0
    kept = set[K]()
    newest_first = sorted(items, key=lambda item: item.since, reverse=True)
    for item in newest_first:
        number, total = number + 1, total + item.num_bytes
        too_old = limits.max_age_s is not None and now - item.since > limits.max_age_s
        too_many = limits.max_number is not None and number > limits.max_number
        too_large = limits.max_bytes is not None and total > limits.max_bytes
        if too_old or too_many or too_large:
            break
        kept.add(item.key)
    return [item.key for item in reversed(newest_first) if item.key not in kept]


def set_aside(path: Path, folder: Path) -> Path:
    """Move a file to `folder`, which is created if needed, and return its new path. The age of the file for `remove_outlived_files` starts now.
    Raises: OSError.

    The move is not synced. If a crash restores the old path, the caller finds the file there and moves it again.
    """
    make_folder(folder)
    os.utime(path)
    return path.rename(folder / path.name)


def remove_outlived_files(paths: Iterable[Path], limits: KeepLimits, now: float | None = None) -> list[Path]:
    """Remove files that exceed the limits, and return their paths. The age of a file is the time since its last change. Raises: OSError.

    A file that was changed within the last hour may be in use, and is kept.

    Args: now: seconds since 1970; None: the current time.
    """
    now = time.time() if now is None else now
    items = []
    for path in paths:
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        if now - stat.st_mtime >= _IN_USE_S:
            items.append(KeptItem(path, stat.st_mtime, stat.st_size))
    gone = outlived(items, limits, now)
    for path in gone:
        path.unlink(missing_ok=True)
    return gone
