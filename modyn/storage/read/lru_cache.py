"""A thread-safe LRU cache with a bound on total size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class LRUCache(Generic[T]):
    """Keeps the values used last, up to a total size. Each value is made once, however many threads ask for it at the same time."""

    def __init__(self, limit: int, size_of: Callable[[T], int]) -> None:
        """Args: limit: most that the sizes of all values add up to. size_of: size of a value, in the unit of `limit`, always the same;
        called with the lock held.
        """
        self._limit, self._size_of = limit, size_of
        self._lock = threading.Lock()
        """Protects the table and the size; values are made without it."""
        self._found: OrderedDict[Hashable, Future[T]] = OrderedDict()
        self._size = 0

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`; `make` is called if there is none, and its error is raised to all that wait."""
        with self._lock:
            future = self._found.get(key)
            if future is not None:
                self._found.move_to_end(key)
            else:
                mine = self._found[key] = Future()
        if future is not None:
            # Without the lock, until `make` returns or raises in the thread that was first.
            return future.result()
        try:
            made = make()
        except BaseException as error:
            with self._lock:
                del self._found[key]
            mine.set_exception(error)
            raise
        with self._lock:
            mine.set_result(made)
            self._size += self._size_of(made)
            while self._size > self._limit:
                # A value that is still being made has no size yet.
                oldest = next(old for old, future in self._found.items() if future.done())
                self._size -= self._size_of(self._found.pop(oldest).result())
        return made

    def forget(self, key: Hashable) -> None:
        """Drop the value of `key`: the next `get` makes it again."""
        with self._lock:
            future = self._found.get(key)
            if future is not None and future.done():
                self._size -= self._size_of(self._found.pop(key).result())
