"""What was read or opened last is kept, up to a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """What was made last, up to a total size. Each thing is made once, however many threads ask for it at the same time."""

    def __init__(self, limit: int, size_of: Callable[[T], int]) -> None:
        self._limit, self._size_of = limit, size_of
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, Future[T]] = OrderedDict()
        self._size = 0

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            future = self._found.get(key)
            if future is not None:
                self._found.move_to_end(key)
            else:
                mine = self._found[key] = Future()
        if future is not None:
            return future.result()
        try:
            made = make()
        except BaseException as error:
            with self._lock:
                del self._found[key]
            mine.set_exception(error)
            raise
        mine.set_result(made)
        with self._lock:
            self._size += self._size_of(made)
            for old in [key for key, future in self._found.items() if future.done()]:
                if self._size <= self._limit:
                    break
                self._size -= self._size_of(self._found.pop(old).result())
        return made

    def forget(self, key: Hashable) -> None:
        """The next `get` makes it again."""
        with self._lock:
            future = self._found.get(key)
            if future is not None and future.done():
                self._size -= self._size_of(self._found.pop(key).result())
